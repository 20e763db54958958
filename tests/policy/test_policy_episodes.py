"""What a model with state per episode sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import ModelServer
from tests.policy.served_models import SPACES, EpisodeKeepingModel, LocalLanes, ScriptedLanes

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_lives(events: Sequence[tuple[str, str]], *, all_ended: bool) -> int:
    """Each id begins once and ends once, in this order; return the number of episodes."""
    begun: set[str] = set()
    ended: set[str] = set()
    for event, episode_id in events:
        if event == "begin":
            assert episode_id not in begun
            begun.add(episode_id)
        else:
            assert episode_id in begun
            assert episode_id not in ended
            ended.add(episode_id)
    if all_ended:
        assert ended == begun
    return len(begun)


@pytest.mark.parametrize("prefetch", [False, True], ids=["plain", "prefetch"])
@pytest.mark.parametrize("kind", [ScriptedLanes, LocalLanes], ids=["lane table", "told"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_episode_begins_once_and_ends_once(
    mode: AutoresetMode, kind: type[ScriptedLanes], prefetch: bool
) -> None:
    model = EpisodeKeepingModel()
    random = np.random.default_rng(1)
    lanes = kind(lambda: random.integers(1, 20), mode, chunk=6, num_envs=5)
    observations = lanes.reset()
    with ModelServer(model) as server:
        with RemotePolicy(server.address, lanes, execution_horizon=6, prefetch=prefetch) as policy:
            for _ in range(150):
                policy(observations)
                observations, terminations, truncations = lanes.step()
                policy_sees_ends(policy, lanes, terminations, truncations)
        episodes = check_lives(model.events, all_ended=True)
    assert episodes > 40
    assert episodes <= int(lanes.episode.sum()) + 5


def policy_sees_ends(
    policy: RemotePolicy, lanes: ScriptedLanes, terminations: Any, truncations: Any
) -> None:
    if isinstance(lanes, LocalLanes):
        policy.observe_step(terminations, truncations)
        if lanes.mode is AutoresetMode.DISABLED:
            policy.reset(terminations)


def test_ten_thousand_episodes_leave_only_the_live_ones() -> None:
    model = EpisodeKeepingModel()
    random = np.random.default_rng(2)
    lanes = ScriptedLanes(
        lambda: random.integers(1, 4), AutoresetMode.SAME_STEP, chunk=4, num_envs=64
    )
    observations = lanes.reset()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, lanes, execution_horizon=4) as policy,
    ):
        while lanes.episode.sum() < 10_000:
            policy(observations)
            observations, _, _ = lanes.step()
        policy(observations)
        assert check_lives(model.events, all_ended=False) >= 10_000
        # Ends are sent ahead of the plans that follow them, so none is outstanding now.
        assert model.held_state().episodes == 64
        assert set(model.held) == set(lanes.episode_ids)
        assert policy.stats.evicted_episodes == len(model.events) // 2 - 32
        assert model.most_held == 64


def test_an_episode_without_a_prediction_is_not_reported() -> None:
    model = EpisodeKeepingModel()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, **SPACES, execution_horizon=2) as policy,
    ):
        policy.reset()
        policy(np.array([[0, 0, 0, 2]], np.float32))
        policy.reset()
        policy.reset()
    assert [event for event, _ in model.events] == ["begin", "end"]
