"""One name for an environment, whichever way it is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import rlmesh_gym as rg
from rlmesh_gym.codec import find_env_id
from tests.fake_envs import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable


def cart_pole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "an env": (cart_pole, "CartPole-v1"),
    "a vector by its id": (lambda: gym.make_vec("CartPole-v1", num_envs=2), "CartPole-v1"),
    "a vector of functions": (lambda: SyncVectorEnv([cart_pole] * 2), "CartPole-v1"),
    "a wrapped vector": (
        lambda: gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([cart_pole] * 2)),
        "CartPole-v1",
    ),
    "an env without a spec": (lambda: CountingEnv(3), "UnknownEnv-v1"),
    "a vector of those": (lambda: SyncVectorEnv([CountingEnv] * 2), "UnknownEnv-v1"),
}


@pytest.mark.parametrize("kind", list(MADE))
def test_local_served_and_in_a_run(kind: str) -> None:
    make, name = MADE[kind]

    def still(observations: Any) -> Any:
        return np.zeros(len(observations), np.int64)

    local = make()
    assert find_env_id(local) == name
    with rg.ModelServer(still) as model:
        told: list[str] = []
        with rg.RemotePolicy(model.address, local) as policy:
            told.append(policy.lane_policy.adapter._env_spec.env_id)
        with rg.EnvServer(make) as server, rg.RemoteVectorEnv(server.address) as envs:
            assert find_env_id(envs) == envs.contract.env_id == name
            with rg.RemotePolicy(model.address, envs) as policy:
                told.append(policy.lane_policy.adapter._env_spec.env_id)
        assert told == [name, name]
    report = rg.run(local, still, max_steps=2)
    assert {episode.env_id for episode in report.episodes} <= {name}
    local.close()
