"""A spec is checked as a whole, before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime import RuntimeLimits, RuntimeSessionSpec


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_episodes": -1}, "max_episodes"),
        ({"max_episodes": 1.5}, "max_episodes"),
        ({"max_episodes": True}, "max_episodes"),
        ({"max_steps": -1}, "max_steps"),
        ({"max_episode_steps": 0}, "max_episode_steps"),
        ({"max_episode_seconds": 0}, "max_episode_seconds"),
        ({"max_episode_seconds": float("nan")}, "max_episode_seconds"),
        ({"execution_horizon": 0}, "must be 1 to 1024, got"),
        ({"execution_horizon": 1025}, "must be 1 to 1024, got"),
        ({"predict_rows": "both"}, "predict_rows"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"reset_options": "size=3"}, "reset_options"),
        ({"limits": 5}, "limits must be RuntimeLimits"),
        ({"base_seed": 2**63}, "base_seed"),
        ({"base_seed": 1, "episode_seeds": (1,)}, "not both"),
        ({"episode_seeds": (1, -2)}, r"episode_seeds\[1\]"),
        ({"episode_seeds": (1, 2), "max_episodes": 3}, "only 2"),
        ({"limits": RuntimeLimits(close_timeout=0)}, "close_timeout"),
        ({"limits": RuntimeLimits(close_timeout=float("inf"))}, "close_timeout"),
        ({"limits": RuntimeLimits(env_step_timeout=0)}, "env_step_timeout"),
        ({"limits": RuntimeLimits(env_reset_timeout=-1)}, "env_reset_timeout"),
        ({"limits": RuntimeLimits(model_predict_timeout=float("nan"))}, "model_predict_timeout"),
        ({"limits": RuntimeLimits(telemetry_window=-1)}, "telemetry_window"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        RuntimeSessionSpec(**options).validate()


def test_the_number_of_seeds_is_the_number_of_episodes() -> None:
    seeds: Any = (np.int64(4), 5)
    spec = RuntimeSessionSpec(episode_seeds=seeds).validate()
    assert spec.max_episodes == 2
    assert spec.episode_seeds == (4, 5)
    assert all(type(seed) is int for seed in spec.episode_seeds or ())


def test_no_limits_and_no_window_are_fine() -> None:
    limits = RuntimeLimits(None, None, None, None, telemetry_window=0)
    assert RuntimeSessionSpec(limits=limits).validate().max_episodes is None


@pytest.mark.parametrize(("episodes", "lanes"), [(0, 3), (1, 3), (3, 3), (7, 3), (5, 1)])
def test_quotas_add_up_and_differ_by_one_at_most(episodes: int, lanes: int) -> None:
    spec = RuntimeSessionSpec(max_episodes=episodes)
    quotas = [spec.quota(lane, lanes) for lane in range(lanes)]
    counts = [quota for quota in quotas if quota is not None]
    assert sum(counts) == episodes
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
