from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlmesh_gym
from rlmesh_gym.env import RemoteEnv
from rlmesh_gym.errors import ConfigurationError, ResetNeededError
from rlmesh_gym.lanes import LanePhase
from rlmesh_gym.server import EnvServer
from tests.env.comparison import equal
from tests.fake_envs import AllSpacesEnv, CountingEnv, DiscreteEnv

ID = "rlmesh_gym:rlmesh/Remote-v0"
MODES = list(AutoresetMode)


@pytest.fixture(autouse=True)
def _registered() -> None:
    assert rlmesh_gym is not None


@pytest.mark.parametrize("mode", [None, *MODES], ids=str)
def test_any_mode_serves_a_single_env(mode: AutoresetMode | None) -> None:
    served: Any = AllSpacesEnv(3)
    if mode is not None:
        served = SyncVectorEnv([lambda: AllSpacesEnv(3)], autoreset_mode=mode)
    reference = AllSpacesEnv(3)
    with EnvServer(served) as server, RemoteEnv(server.address) as env:
        assert env.observation_space == reference.observation_space
        assert env.action_space == reference.action_space
        got, expected = env.reset(seed=5), reference.reset(seed=5)
        for step in range(40):
            assert equal(got[0], expected[0]), step
            assert data_equivalence(got[1], expected[1]), (got[1], expected[1])
            action = step % 3
            mine, theirs = env.step(action), reference.step(action)
            assert equal(mine[0], theirs[0])
            assert mine[1:4] == theirs[1:4]
            assert [type(value) for value in mine[1:4]] == [float, bool, bool]
            assert data_equivalence(mine[4], theirs[4]), (mine[4], theirs[4])
            if mine[2] or mine[3]:
                assert env.lane_phases == (LanePhase.ENDED,)
                with pytest.raises(ResetNeededError):
                    env.step(action)
                got, expected = env.reset(), reference.reset()
        ended = [record for record in env.episodes if not record.interrupted]
        assert len(ended) > 5
        assert ended[0].seed == 5
        assert ended[1].seed is None


def test_observations_are_fresh() -> None:
    with EnvServer(CountingEnv(9)) as server, RemoteEnv(server.address) as env:
        first, _ = env.reset()
        second = env.step(0)[0]
        assert not np.shares_memory(first, second)
        second[:] = 7
        assert env.step(0)[0].tolist() == [2.0]


def test_discrete_observations() -> None:
    with EnvServer(DiscreteEnv(3)) as server, RemoteEnv(server.address) as env:
        observation, _ = env.reset()
        assert observation == 0
        assert isinstance(observation, np.int64)
        assert env.observation_space.contains(observation)


def test_several_lanes_are_refused() -> None:
    with (
        EnvServer([CountingEnv(), CountingEnv()]) as server,
        pytest.raises(ConfigurationError, match=r"serves 2 lanes.*make_vec"),
    ):
        RemoteEnv(server.address)


def test_time_limit_and_seed_survive() -> None:
    with EnvServer(gym.make("CartPole-v1", max_episode_steps=3)) as server:
        env = gym.make(ID, address=server.address)
        try:
            first, info = env.reset(seed=5)
            assert info == {}
            flags = [env.step(0)[2:4] for _ in range(3)]
            assert flags == [(False, False), (False, False), (False, True)]
            assert np.array_equal(env.reset(seed=5)[0], first)
        finally:
            env.close()


def test_max_episode_steps_of_make() -> None:
    with EnvServer(CountingEnv(9)) as server:
        env = gym.make(ID, address=server.address, max_episode_steps=2)
        env.reset()
        assert env.step(0)[3] is False
        assert env.step(0)[3] is True
        env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "tests.fake_envs:RlmeshTest/AllSpaces-v0"])
def test_check_env(env_id: str) -> None:
    with warnings.catch_warnings():
        # About the spaces of the env itself, infinite bounds for one.
        warnings.filterwarnings("ignore", message=r".*(Box|symmetric|normalized|infinity).*")
        env = gym.make(ID, env_id=env_id)
        try:
            check_env(env.unwrapped)
        finally:
            env.close()


def test_frames_of_a_running_endpoint() -> None:
    with EnvServer(lambda: CountingEnv(9, render_mode="rgb_array"), max_sessions=3) as server:
        env = gym.make(ID, address=server.address, render_mode="rgb_array")
        try:
            assert env.unwrapped.metadata["render_modes"] == ["rgb_array"]
            env.reset()
            frame: Any = env.render()
            assert frame.shape == (6, 8, 3)
            assert frame.dtype == np.uint8
        finally:
            env.close()


def test_another_render_mode_is_refused() -> None:
    with (
        EnvServer(CountingEnv()) as server,
        pytest.raises(ConfigurationError, match=r"render_mode='rgb_array'.*render_mode=None"),
    ):
        RemoteEnv(server.address, render_mode="rgb_array")


def test_several_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLMESH_GYM_ADDRESS", "127.0.0.1:1, 127.0.0.1:2")
    with pytest.raises(ConfigurationError, match="one environment takes one endpoint"):
        RemoteEnv()
