"""Vector environments that step their lanes as one: they take an int for a seed, nothing else."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
import rlmesh

import rlmesh_gym as rg

NUM_ENVS = 4


def _cart_poles() -> gym.vector.VectorEnv:
    # Without a vectorization mode Gymnasium takes CartPole's own vector environment.
    return gym.make_vec("CartPole-v1", num_envs=NUM_ENVS)


@pytest.fixture(params=["ours", "released"])
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "ours":
        with rg.EnvServer(_cart_poles()) as server:
            yield server.address
        return
    monkeypatch.setenv("RLMESH_WORKFLOW_EDITION", "2026.06")
    released = rlmesh.EnvServer(_cart_poles())
    released.start()
    yield released.address
    released.shutdown()


def test_it_equals_the_vector_itself(address: str) -> None:
    local = _cart_poles()
    local.action_space.seed(1)
    with rg.RemoteVectorEnv(address) as remote:
        expected, _ = local.reset(seed=7)
        observations, _ = remote.reset(seed=7)
        np.testing.assert_array_equal(observations, expected)
        for _ in range(60):
            actions = local.action_space.sample()
            wanted, got = local.step(actions), remote.step(actions)
            for column in range(4):
                np.testing.assert_array_equal(got[column], wanted[column])
        assert remote.lane_seeds[0] is None or remote.lane_seeds[0] == 7
        assert len(remote.episodes) > 0
        assert {record.seed for record in remote.episodes} >= {7, 8, 9, 10}
    local.close()


def test_seeds_of_any_kind_need_lanes() -> None:
    with rg.EnvServer(_cart_poles()) as server, rg.RemoteVectorEnv(server.address) as remote:
        with pytest.raises(
            rg.errors.EnvError, match=r"does not take one seed per lane.*serve a list"
        ):
            remote.reset(seed=[7, 9, 1, 1])
        observations, _ = remote.reset(seed=[7, 8, 9, 10])
        expected, _ = _cart_poles().reset(seed=7)
        np.testing.assert_array_equal(observations, expected)
