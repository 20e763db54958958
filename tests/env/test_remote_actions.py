from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.env.drive.actions import ActionCheck
from rlmesh_gym.errors import ActionError, ActionTypeError
from rlmesh_gym.server import EnvServer
from tests.env.comparison import equal
from tests.fake_envs import ActionTypeEnv, AllSpacesEnv, CountingEnv


def reader(space: spaces.Space[Any], lanes: int = 3) -> ActionCheck:
    return ActionCheck(SpaceCodec(space), lanes)


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.Discrete(5), [0, 1, 2], [0, 1, 2]),
        (spaces.Discrete(5), np.array([0, 1, 2], np.int32), [0, 1, 2]),
        (spaces.Discrete(5), np.array([0, 1, 2], np.uint8), [0, 1, 2]),
        (spaces.Discrete(5), (np.int64(0), 1, np.uint8(2)), [0, 1, 2]),
        (spaces.Discrete(3, start=-1), [-1, 0, 1], [-1, 0, 1]),
        (spaces.Box(-1, 1, (1,)), np.zeros((3, 1)), [[0.0]] * 3),
        (spaces.Box(-1, 1, (1,)), np.ones((3, 1), np.int64), [[1.0]] * 3),
        (spaces.Box(-1, 1, (1,)), [[5.0], [0.0], [0.0]], [[5.0], [0.0], [0.0]]),
        (spaces.Box(-1, 1, ()), [0.5, 0.25, 0.0], [0.5, 0.25, 0.0]),
        (spaces.MultiBinary(2), np.eye(3, 2, dtype=np.int64), [[1, 0], [0, 1], [0, 0]]),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 1], [0, 0]], [[0, 2], [1, 1], [0, 0]]),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3)).T, [[0.0, 0.0]] * 3),
    ],
    ids=range(12),
)
def test_accepted(space: Any, actions: Any, expected: Any) -> None:
    before = np.array(actions, copy=True)
    (leaf,) = reader(space).read(actions)
    assert leaf.tolist() == expected
    assert leaf.flags.c_contiguous
    assert np.array_equal(before, np.asarray(actions))


@pytest.mark.parametrize(
    ("space", "actions", "kind", "match"),
    [
        (spaces.Discrete(5), [0, 1], ActionError, r"shape \(3,\) \(num_envs=3.*got \(2,\)"),
        (spaces.Discrete(5), [0, 1, 2, 3], ActionError, r"got \(4,\)"),
        (spaces.Discrete(5), [[0], [1], [2]], ActionError, r"shape \(3,\).*got \(3, 1\)"),
        (spaces.Discrete(5), 0, ActionTypeError, "nothing to iterate over"),
        (spaces.Discrete(5), None, ActionTypeError, "single value None"),
        (spaces.Discrete(5), [0.0, 1.0, 2.0], ActionTypeError, "dtype int64.*got float64"),
        (spaces.Discrete(5), ["a", "b", "c"], ActionTypeError, "dtype int64.*got"),
        (spaces.Discrete(5), [0, 5, 1], ActionError, r"lane 1 .*value 5"),
        (spaces.Discrete(5), [0, 1, -1], ActionError, r"lane 2 .*value -1"),
        (spaces.Discrete(5), [0, [1], 2], ActionTypeError, "makes none"),
        (spaces.Box(-1, 1, (2,)), np.zeros((3, 3)), ActionError, r"\(3, 2\).*\(3, 3\)"),
        (spaces.Box(-1, 1, (2,)), [[0, np.nan]] * 3, ActionError, "lane 0.*nan"),
        (spaces.Box(-1, 1, (2,)), np.zeros((3, 2), complex), ActionTypeError, "complex"),
        (spaces.Box(0, 5, (1,), np.int8), np.full((3, 1), 300), ActionError, "lane 0.*int8"),
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [0, 3], [0, 0]], ActionError, "lane 1"),
        (spaces.Dict({"a": spaces.Discrete(2)}), [0, 1, 0], ActionError, "batch of 3 actions"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 1, 0]}, ActionError, "a"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": [0, 1]}, ActionError, r"\$.a"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": [0, 1, 2]}, ActionError, r"lane 2.*\$.a"),
        (spaces.Dict({"a": spaces.Discrete(2)}), 7, ActionTypeError, "got int"),
    ],
    ids=range(20),
)
def test_refused(space: Any, actions: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        reader(space).read(actions)
    assert isinstance(caught.value, ValueError)


def test_ignored_lanes_may_hold_anything() -> None:
    ignored = np.array([False, True, False])
    given = np.array([0, 99, 1])
    (leaf,) = reader(spaces.Discrete(5, start=0)).read(given, ignored)
    assert leaf.tolist() == [0, 0, 1]
    assert given.tolist() == [0, 99, 1]
    with pytest.raises(ActionError, match="lane 2"):
        reader(spaces.Discrete(5)).read([0, 99, 99], ignored)


def test_fillers_are_members() -> None:
    space = spaces.Dict(
        {
            "move": spaces.Box(0.5, 1.0, (2,)),
            "pair": spaces.Tuple((spaces.Text(4, min_length=2), spaces.MultiBinary(2))),
            "grid": spaces.MultiDiscrete([2, 3]),
            "pick": spaces.Discrete(2, start=4),
        }
    )
    codec = SpaceCodec(space)
    action = space.sample()
    batch = {
        "move": np.full((2, 2), np.nan),
        "pair": ((action["pair"][0],) * 2, np.stack([action["pair"][1]] * 2)),
        "grid": np.stack([action["grid"]] * 2),
        "pick": np.stack([action["pick"]] * 2),
    }
    leaves = ActionCheck(codec, 2).read(batch, np.array([True, True]))
    assert space.contains(codec.unflatten_row(leaves, 1))


def test_a_wrong_batch_changes_nothing() -> None:
    envs_served: list[Any] = [CountingEnv(9, base=100.0 * lane) for lane in range(4)]
    with EnvServer(envs_served) as server, RemoteVectorEnv(server.address) as envs:
        envs.reset()
        for wrong in ([1, 1], [1] * 5, 3, [[1]] * 4, [0.5] * 4, [0, 0, 0, 10]):
            with pytest.raises((ValueError, TypeError)):
                envs.step(wrong)
        assert [env.steps_taken for env in envs_served] == [0] * 4
        observations, rewards, *_ = envs.step([1, 2, 3, 4])
        assert observations[:, 0].tolist() == [1.0, 101.0, 201.0, 301.0]
        assert rewards.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_lane_actions_are_what_the_space_samples() -> None:
    for space in (spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3)):
        env = ActionTypeEnv(space)
        with (
            EnvServer([env, ActionTypeEnv(space)]) as server,
            RemoteVectorEnv(server.address) as envs,
        ):
            envs.reset()
            envs.step(envs.action_space.sample())
            assert type(env.last_action) is type(space.sample())


def test_composite_actions_arrive_whole() -> None:
    served: list[Any] = [AllSpacesEnv(composite_action=True) for _ in range(2)]
    with EnvServer(served) as server, RemoteVectorEnv(server.address) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        envs.step(actions)
        assert equal(served[1].last_action["move"], actions["move"][1])
        assert served[1].last_action["word"][0] == actions["word"][0][1]


def test_next_step_ignores_the_actions_of_ended_lanes() -> None:
    with (
        EnvServer([CountingEnv(1), CountingEnv(9)]) as server,
        RemoteVectorEnv(server.address, autoreset_mode=AutoresetMode.NEXT_STEP) as envs,
    ):
        envs.reset()
        envs.step([0, 0])
        observations, rewards, *_ = envs.step([77, 2])
        assert observations[:, 0].tolist() == [10.0, 2.0]
        assert rewards.tolist() == [0.0, 2.0]


def test_single_actions() -> None:
    with EnvServer(CountingEnv(9)) as server, RemoteEnv(server.address) as env:
        env.reset()
        for fine in (1, np.int64(1), np.array(1), np.int32(1)):
            assert env.step(fine)[1] == 1.0
        for wrong in ([1], np.array([1]), 10, -1, 1.5, "x", None):
            with pytest.raises(ActionError):
                env.step(wrong)
        assert env.step(2)[0].tolist() == [5.0]
