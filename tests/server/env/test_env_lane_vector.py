"""The server's own vector env gives what ``SyncVectorEnv`` gives, where that one is right."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmesh_gym.errors import ConfigurationError, ResetNeededError
from rlmesh_gym.server.env.lane_vector import LaneVector
from rlmesh_gym.server.env.scalar_envs import as_flag, as_reward
from rlmesh_gym.server.env.served_lanes import ServedLanes
from tests.fake_envs import (
    AllSpacesEnv,
    BufferReusingEnv,
    CountingEnv,
    InfoVarietyEnv,
    RewardArrayEnv,
)
from tests.lengths import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = list(AutoresetMode)


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", disable_env_checker=True)


def short_cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", disable_env_checker=True, max_episode_steps=7)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "make",
    [
        cartpole,
        short_cartpole,
        AllSpacesEnv,
        partial(CountingEnv, 3),
        partial(InfoVarietyEnv, 4),
        partial(CountingEnv, 3, truncate=True),
    ],
    ids=["CartPole", "truncated CartPole", "AllSpaces", "Counting", "InfoVariety", "truncating"],
)
@pytest.mark.parametrize("copy", [True, False], ids=["copies", "buffers"])
def test_equals_sync_vector_env(
    make: Callable[[], gym.Env[Any, Any]], mode: AutoresetMode, copy: bool
) -> None:
    num_envs = 5
    expected = SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    got = LaneVector([make() for _ in range(num_envs)], autoreset_mode=mode, copy=copy)
    assert got.observation_space == expected.observation_space
    assert got.action_space == expected.action_space
    assert got.metadata == expected.metadata
    expected.action_space.seed(3)
    assert data_equivalence(got.reset(seed=11), expected.reset(seed=11), exact=True)
    for step in range(shortened(60)):
        actions = expected.action_space.sample()
        theirs = expected.step(actions)
        ours = got.step(actions)
        assert data_equivalence(ours, theirs, exact=True), step
        assert set(ours[4]) == set(theirs[4])
        over = theirs[2] | theirs[3]
        if mode is AutoresetMode.DISABLED and over.any():
            lane_seeds: list[int | None] = [step + lane for lane in range(num_envs)]
            for seed in (lane_seeds, None):
                mask = over if seed else np.arange(num_envs) % 2 == 0
                masked = [{"reset_mask": mask.copy(), "level": 2} for _ in range(2)]
                theirs_reset = expected.reset(seed=seed, options=masked[0])
                ours_reset = got.reset(seed=seed, options=masked[1])
                assert data_equivalence(ours_reset, theirs_reset, exact=True)
                assert "reset_mask" in masked[1], "the caller's options were changed"
    assert data_equivalence(got.reset(seed=[1] * 5), expected.reset(seed=[1] * 5), exact=True)
    expected.close()
    got.close()


def test_masked_reset_cancels_a_pending_autoreset() -> None:
    expected = SyncVectorEnv([partial(CountingEnv, 2)] * 2)
    got = LaneVector([CountingEnv(2) for _ in range(2)])
    for envs in (expected, got):
        envs.reset(seed=0)
        envs.step(np.array([1, 1]))
        envs.step(np.array([1, 1]))
    mask = np.array([True, False])
    both = [envs.reset(options={"reset_mask": mask.copy()}) for envs in (expected, got)]
    assert data_equivalence(both[0], both[1], exact=True)
    theirs, ours = (envs.step(np.array([3, 3])) for envs in (expected, got))
    assert data_equivalence(ours, theirs, exact=True)
    assert ours[1].tolist() == [3.0, 0.0]


def test_terminal_values_survive_lanes_that_reuse_their_buffers() -> None:
    envs = LaneVector(
        [BufferReusingEnv(3, base=100 * lane) for lane in range(2)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=0)
    for _ in range(3):
        observations, _, terminated, _, infos = envs.step(np.array([0, 0]))
    assert terminated.all()
    assert observations.tolist() == [[10.0], [110.0]]
    assert [final.tolist() for final in infos["final_obs"]] == [[3.0], [103.0]]
    assert infos["final_info"]["inner"].tolist() == [[3.0, 3.0], [103.0, 103.0]]
    assert infos["final_info"]["t"].tolist() == [3, 3]
    assert infos["t"].tolist() == [0, 0]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_rewards_of_one_element_in_every_mode(mode: AutoresetMode) -> None:
    envs = LaneVector([RewardArrayEnv(3), RewardArrayEnv(4)], autoreset_mode=mode)
    envs.reset(seed=0)
    for step in range(10):
        _, rewards, terminated, truncated, _ = envs.step(np.array([0, 0]))
        assert rewards.shape == (2,)
        assert rewards.dtype == np.float64
        if mode is not AutoresetMode.NEXT_STEP:
            assert rewards.tolist() == [1.0, 1.0], step
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})


def test_stepping_an_ended_lane_touches_no_lane() -> None:
    lanes = [CountingEnv(2), CountingEnv(5)]
    envs = LaneVector(lanes, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(np.array([0, 0]))
    envs.step(np.array([0, 0]))
    with pytest.raises(ResetNeededError, match=r"lanes \[0\] are over"):
        envs.step(np.array([0, 0]))
    assert [lane.steps_taken for lane in lanes] == [2, 2]


def test_a_short_action_batch_touches_no_lane() -> None:
    lanes = [CountingEnv(2), CountingEnv(5)]
    envs = LaneVector(lanes)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="expected 2 actions, got 1"):
        envs.step(np.array([0]))
    assert [lane.steps_taken for lane in lanes] == [0, 0]


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        ([True, False], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, r"must have shape `\(2,\)`, got \(1,\)"),
        (np.array([1, 0]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.array([False, False]), ValueError, "at least one True value"),
    ],
)
def test_wrong_masks(mask: Any, error: type[Exception], match: str) -> None:
    envs = LaneVector([CountingEnv(2), CountingEnv(5)])
    envs.reset(seed=0)
    with pytest.raises(error, match=match):
        envs.reset(options={"reset_mask": mask})


def test_seeds_are_those_of_the_envs() -> None:
    class Choosy(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=None if seed is None else seed % 10, options=options)

    envs = LaneVector([Choosy(), Choosy()])
    envs.reset(seed=[13, None])
    first, second = envs.np_random_seed
    assert first == 3
    assert second == envs.envs[1].np_random_seed
    assert second >= 0, "one that the env has drawn"
    assert envs.np_random == tuple(env.np_random for env in envs.envs)
    envs.close()


def test_construction_errors() -> None:
    with pytest.raises(ConfigurationError, match="must not be empty"):
        LaneVector([])
    with pytest.raises(ConfigurationError, match="lane 1: observation_space is"):
        LaneVector([CountingEnv(2), AllSpacesEnv()])
    with pytest.raises(ValueError, match="num_envs=1 but got length=2"):
        LaneVector([CountingEnv(2)]).reset(seed=[1, 2])


def test_the_envs_keep_their_own_metadata() -> None:
    lane = CountingEnv(2)
    before = dict(lane.metadata)
    with closing(LaneVector([lane], autoreset_mode=AutoresetMode.SAME_STEP)) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert lane.metadata == before


class ExitingEnv(CountingEnv):
    def close(self) -> None:
        super().close()
        sys.exit(3)


@pytest.mark.parametrize("serve", [LaneVector, lambda envs: ServedLanes(envs, "Exiting-v0")])
def test_an_env_that_exits_when_it_is_closed_keeps_no_other_from_closing(serve: Any) -> None:
    lanes = [ExitingEnv(), CountingEnv()]
    with pytest.raises(SystemExit):
        serve(lanes).close()
    assert [lane.close_calls for lane in lanes] == [1, 1]


def test_closes_every_lane_and_raises_the_first_failure() -> None:
    class Broken(CountingEnv):
        def close(self) -> None:
            raise OSError("window gone")

    last = CountingEnv(2)
    envs = LaneVector([Broken(2), last])
    with pytest.raises(OSError, match="window gone"):
        envs.close()
    assert last.close_calls == 1


class TellingEnv(CountingEnv):
    """Its infos are what the test says, step by step."""

    def __init__(self, *told: dict[str, Any]) -> None:
        super().__init__(99)
        self.told = told

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, self.told[self.t - 1]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"x": 1}, {"x": "one"}, [1, "one"]),
        ({"x": 1}, {"x": None}, [1, None]),
        ({"x": 1}, {"x": {"deep": 2}}, [1, {"deep": 2}]),
        ({"x": {"deep": 2}}, {"x": 1}, [{"deep": 2}, 1]),
        ({"x": "a"}, {"x": {"deep": 2}}, ["a", {"deep": 2}]),
        ({"x": {"deep": {"er": 1}}}, {"x": [1]}, [{"deep": {"er": 1}}, [1]]),
        ({"x": 1}, {"x": 2**70}, [1, 2**70]),
    ],
)
def test_infos_that_do_not_fit_each_other(
    first: dict[str, Any], second: dict[str, Any], expected: list[Any]
) -> None:
    for lanes, order in ((1, 1), (3, 1)):
        others = [TellingEnv({"y": 1}) for _ in range(lanes - 1)]
        envs = LaneVector([TellingEnv(first | {"y": 2}), *others, TellingEnv(second)])
        envs.reset(seed=0)
        infos = envs.step(np.zeros(lanes + 1, dtype=np.int64))[4]
        got = infos["x"]
        assert got.dtype == object
        assert got.tolist() == [expected[0], *[None] * (lanes - 1), expected[1]]
        assert infos["_x"].tolist() == [True, *[False] * (lanes - 1), True], order
        assert infos["y"].dtype == np.int64
        assert infos["_y"].tolist() == [True] * lanes + [False]


def test_arrays_of_different_shapes_and_nested_misfits() -> None:
    envs = LaneVector(
        [
            TellingEnv({"v": np.zeros(2), "deep": {"a": 1, "b": 1}}),
            TellingEnv({"v": np.ones(3), "deep": {"a": "x", "b": 2}}),
        ]
    )
    envs.reset(seed=0)
    infos = envs.step(np.array([0, 0]))[4]
    assert [value.tolist() for value in infos["v"]] == [[0, 0], [1, 1, 1]]
    assert infos["deep"]["a"].tolist() == [1, "x"]
    assert infos["deep"]["b"].tolist() == [1, 2]
    assert infos["deep"]["b"].dtype == np.int64
    assert infos["_deep"].tolist() == [True, True]


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.array([3.0]), np.array(4), True])
def test_numbers_are_rewards(value: Any) -> None:
    assert as_reward(value, 0) == float(np.asarray(value).reshape(-1)[0])


@pytest.mark.parametrize("value", [None, np.array([1.0, 2.0]), np.zeros(0), "1", [1.0], {}])
def test_other_things_are_no_rewards(value: Any) -> None:
    with pytest.raises(TypeError, match="lane 2: the reward must be one number"):
        as_reward(value, 2)


@pytest.mark.parametrize("value", [True, np.bool_(False), np.array([True]), np.array(False)])
def test_bools_are_flags(value: Any) -> None:
    assert as_flag(value, "terminated", 0) is bool(value)


@pytest.mark.parametrize("value", [0, 1, 1.0, None, "x", np.array([True, False]), np.int64(1)])
def test_other_things_are_no_flags(value: Any) -> None:
    with pytest.raises(TypeError, match="lane 1: terminated must be a bool"):
        as_flag(value, "terminated", 1)
