"""The bridge to Stable-Baselines3 against Stable-Baselines3's own ``DummyVecEnv``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import ActionError, ConfigurationError
from rlmesh_gym.integrations.sb3 import Sb3VecEnv, as_vec_env
from rlmesh_gym.testing import serving
from tests.env.comparison import equal
from tests.fake_envs import BufferReusingEnv, CountingEnv, DiscreteEnv, InfoVarietyEnv
from tests.training.training_envs import BinaryActionEnv, DictObservationEnv

pytestmark = pytest.mark.training

Makers = list[Any]


def counting() -> Makers:
    return [partial(CountingEnv, 2 + lane, base=100.0 * lane) for lane in range(3)]


def truncated() -> Makers:
    return [partial(CountingEnv, 2 + lane, truncate=lane != 1) for lane in range(3)]


def discrete() -> Makers:
    return [partial(DiscreteEnv, 4) for _ in range(2)]


def dicts() -> Makers:
    return [partial(DictObservationEnv, 2 + lane) for lane in range(3)]


def binary() -> Makers:
    return [partial(BinaryActionEnv, 3) for _ in range(2)]


def reusing() -> Makers:
    return [partial(BufferReusingEnv, 3, base=100.0 * lane) for lane in range(2)]


# Not ``reusing``: DummyVecEnv writes into the info dict that such an env goes on using.
ALL = [counting, truncated, discrete, dicts, binary]


@contextmanager
def bridged(makers: Makers, **options: Any) -> Iterator[Sb3VecEnv]:
    """The bridge over remote lanes of their own process's server."""
    with serving([make() for make in makers]) as address:
        vec_env = as_vec_env(RemoteVectorEnv(address, autoreset_mode="SameStep", **options))
        try:
            yield vec_env
        finally:
            vec_env.close()


def draw(space: gym.Space[Any], num_envs: int, rng: np.random.Generator) -> Any:
    """Actions as an algorithm hands them over: one array, one row per lane."""
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(num_envs)])


def assert_infos(got: list[Any], expected: list[Any], where: str) -> None:
    assert equal(got, expected), f"{where}: got {got}, expected {expected}"


@pytest.mark.parametrize("makers", ALL, ids=lambda makers: makers.__name__)
def test_same_as_dummy_vec_env(makers: Any) -> None:
    rng = np.random.default_rng(3)
    theirs = DummyVecEnv(makers())
    ended, truncations = 0, 0
    with bridged(makers()) as ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        for episode in range(2):
            assert ours.seed(11 + episode) == theirs.seed(11 + episode)
            assert equal(dict_of(ours.reset()), dict_of(theirs.reset()))
            assert_infos(ours.reset_infos, theirs.reset_infos, "reset")
            for step in range(30):
                actions = draw(theirs.action_space, theirs.num_envs, rng)
                got, expected = ours.step(actions), theirs.step(actions)
                where = f"step {step}"
                assert equal(dict_of(got[0]), dict_of(expected[0])), where
                assert equal(got[1], expected[1]), where
                assert equal(got[2], expected[2]), where
                assert_infos(got[3], expected[3], where)
                assert_infos(ours.reset_infos, theirs.reset_infos, where)
                ended += int(got[2].sum())
                truncations += sum(info["TimeLimit.truncated"] for info in got[3])
    assert ended > 10
    assert (truncations > 0) == (makers in (truncated, dicts, binary))


def dict_of(observations: Any) -> Any:
    """DummyVecEnv gives an OrderedDict where the bridge gives a dict."""
    return dict(observations) if isinstance(observations, dict) else observations


def test_terminal_observation_and_time_limit() -> None:
    makers = [
        partial(CountingEnv, 2),
        partial(CountingEnv, 2, truncate=True),
        partial(CountingEnv, 4, truncate=True),
    ]
    with bridged(makers) as vec_env:
        vec_env.reset()
        _, _, _, before = vec_env.step(np.zeros(3, dtype=np.int64))
        assert [info["TimeLimit.truncated"] for info in before] == [False] * 3
        assert all("terminal_observation" not in info for info in before)
        observations, rewards, dones, infos = vec_env.step(np.array([4, 5, 6]))
    assert dones.tolist() == [True, True, False]
    assert rewards.dtype == np.float32
    assert rewards.tolist() == [4.0, 5.0, 6.0]
    assert observations[:, 0].tolist() == [10.0, 10.0, 2.0]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True, False]
    assert infos[0]["terminal_observation"].tolist() == [2.0]
    assert infos[1]["terminal_observation"].tolist() == [2.0]
    assert infos[0]["terminal_observation"].dtype == np.float32
    assert "terminal_observation" not in infos[2]
    assert [info["kind"] for info in infos] == ["step"] * 3
    assert [info["kind"] for info in vec_env.reset_infos] == ["reset"] * 3


def test_terminated_and_truncated_at_once_is_no_time_limit() -> None:
    makers = [partial(CountingEnv, 2)]
    with serving(gym.wrappers.TimeLimit(makers[0](), 2)) as address:
        vec_env = as_vec_env(RemoteVectorEnv(address, autoreset_mode="SameStep"))
        vec_env.reset()
        vec_env.step(np.array([0]))
        _, _, dones, infos = vec_env.step(np.array([0]))
        vec_env.close()
    assert dones.all()
    assert infos[0]["TimeLimit.truncated"] is False


def test_terminal_observations_of_buffers_that_are_reused() -> None:
    with bridged(reusing()) as vec_env:
        vec_env.reset()
        for _ in range(2):
            vec_env.step(np.zeros(2, dtype=np.int64))
        observations, _, dones, infos = vec_env.step(np.zeros(2, dtype=np.int64))
    assert dones.all()
    assert observations[:, 0].tolist() == [10.0, 110.0]
    assert [info["terminal_observation"][0] for info in infos] == [3.0, 103.0]
    assert [info["t"] for info in infos] == [3, 3]


def test_infos_of_every_kind() -> None:
    makers = [partial(InfoVarietyEnv, 3) for _ in range(2)]
    theirs = DummyVecEnv(makers)
    with bridged(makers) as ours:
        ours.reset()
        theirs.reset()
        for _ in range(7):
            actions = np.ones(2, dtype=np.int64)
            got, expected = ours.step(actions)[3], theirs.step(actions)[3]
            for left, right in zip(got, expected, strict=True):
                assert left.keys() == right.keys()
                assert equal(left["nested"], right["nested"])
                assert equal(left["vector"], right["vector"])
                assert left["text"] == right["text"]
                assert left["nothing"] is None


def test_observations_are_the_callers_own() -> None:
    with bridged(counting()) as vec_env:
        first = vec_env.reset()
        kept = first.copy()
        second = vec_env.step(np.zeros(3, dtype=np.int64))[0]
        assert not np.shares_memory(first, second)
        assert np.array_equal(first, kept)


def test_seeds_are_used_once() -> None:
    with bridged(counting()) as vec_env:
        vec_env.seed(40)
        vec_env.reset()
        assert [info["rseed"] for info in vec_env.reset_infos] == [40, 41, 42]
        vec_env.reset()
        assert [info["rseed"] for info in vec_env.reset_infos] == [-1] * 3


def test_options_are_used_once() -> None:
    with bridged(dicts()) as vec_env:
        vec_env.set_options({"level": 7})
        vec_env.reset()
        assert [info["level"] for info in vec_env.reset_infos] == [7] * 3
        vec_env.reset()
        assert [info["level"] for info in vec_env.reset_infos] == [0] * 3
        vec_env.set_options([{"level": np.array([2, 3])}] * 3)
        vec_env.reset()
        assert np.array_equal(vec_env.reset_infos[1]["level"], [2, 3])


def test_options_that_differ_by_lane_are_refused() -> None:
    with bridged(dicts()) as vec_env:
        vec_env.set_options([{"level": 1}, {"level": 2}, {"level": 1}])
        with pytest.raises(ConfigurationError, match="same options for all lanes"):
            vec_env.reset()
        vec_env.set_options()
        vec_env.reset()


def test_other_modes_are_refused() -> None:
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        envs = SyncVectorEnv(counting(), autoreset_mode=mode)
        with pytest.raises(ConfigurationError, match='autoreset_mode="SameStep"'):
            as_vec_env(envs)
        envs.close()


def test_observations_overwritten_in_place_are_refused() -> None:
    with (
        serving([make() for make in counting()]) as address,
        RemoteVectorEnv(address, autoreset_mode="SameStep", copy=False) as envs,
        pytest.raises(ConfigurationError, match="copy=True"),
    ):
        as_vec_env(envs)


def test_bad_actions_reach_no_lane() -> None:
    with bridged(counting()) as vec_env:
        vec_env.reset()
        with pytest.raises(ActionError, match=r"shape \(3,\)"):
            vec_env.step(np.zeros((3, 1), dtype=np.int64))
        assert vec_env.step(np.zeros(3, dtype=np.int64))[0][:, 0].tolist() == [1.0, 101.0, 201.0]


def test_binary_actions_as_policies_give_them() -> None:
    with bridged(binary()) as vec_env:
        vec_env.reset()
        _, rewards, _, _ = vec_env.step(np.array([[1, 0, 1], [0, 0, 0]], dtype=np.float32))
        assert rewards.shape == (2,)


def test_attributes() -> None:
    with bridged(counting()) as vec_env:
        assert vec_env.render_mode is None
        assert vec_env.get_attr("render_mode") == [None] * 3
        assert vec_env.get_attr("render_mode", indices=1) == [None]
        assert vec_env.get_attr("num_envs", indices=[0, 2]) == [3, 3]
        assert vec_env.get_attr("metadata")[0]["maker"] == "tests"
        assert vec_env.metadata["render_fps"] == 30
        assert "autoreset_mode" not in vec_env.metadata
        assert not vec_env.has_attr("gripper")
        assert vec_env.has_attr("action_space")
        with pytest.raises(AttributeError, match="gripper"):
            vec_env.get_attr("gripper")
        with pytest.raises(AttributeError, match="endpoint"):
            vec_env.set_attr("length", 3)
        with pytest.raises(AttributeError, match="endpoint"):
            vec_env.env_method("compute_reward", 1, 2)
        assert vec_env.env_is_wrapped(Monitor) == [False] * 3
        assert vec_env.env_is_wrapped(Monitor, indices=2) == [False]


def test_render() -> None:
    makers = [
        partial(CountingEnv, 5, base=10.0 * lane, render_mode="rgb_array") for lane in range(4)
    ]
    theirs = DummyVecEnv(makers)
    with bridged(makers) as vec_env:
        assert vec_env.render_mode == "rgb_array"
        vec_env.reset()
        theirs.reset()
        for frame, expected in zip(vec_env.get_images(), theirs.get_images(), strict=True):
            assert np.array_equal(frame, expected)  # type: ignore[arg-type]
        assert np.array_equal(vec_env.render(), theirs.render())
        assert np.array_equal(vec_env.env_method("render", indices=2)[0], theirs.get_images()[2])


def test_vec_monitor_and_frames_and_normalisation_equal(tmp_path: Path) -> None:
    def wrapped(vec_env: Any) -> Any:
        stacked = VecFrameStack(VecMonitor(vec_env), 2)
        return VecNormalize(stacked, gamma=0.9)

    theirs = wrapped(DummyVecEnv(truncated()))
    with bridged(truncated()) as vec_env:
        ours = wrapped(vec_env)
        assert np.array_equal(ours.reset(), theirs.reset())
        episodes = []
        for step in range(20):
            actions = np.full(3, step % 10)
            got, expected = ours.step(actions), theirs.step(actions)
            for left, right in zip(got[:3], expected[:3], strict=True):
                assert np.array_equal(left, right)
            for left, right in zip(got[3], expected[3], strict=True):
                assert left.keys() == right.keys()
                if "episode" in left:
                    assert left["episode"]["r"] == right["episode"]["r"]
                    assert left["episode"]["l"] == right["episode"]["l"]
                    episodes.append(left["episode"])
                    assert np.array_equal(
                        left["terminal_observation"], right["terminal_observation"]
                    )
        assert len(episodes) > 10
        ours.save(str(tmp_path / "normalize.pkl"))
        again = VecNormalize.load(str(tmp_path / "normalize.pkl"), VecFrameStack(vec_env, 2))
        assert again.obs_rms.mean == pytest.approx(ours.obs_rms.mean)


def test_images_are_transposed() -> None:
    with bridged(dicts()) as vec_env:
        transposed = VecTransposeImage(vec_env)
        assert transposed.reset()["image"].shape == (3, 3, 36, 36)
        seen = 0
        for _ in range(6):
            infos = transposed.step(np.zeros(3, dtype=np.int64))[3]
            for info in infos:
                if "terminal_observation" in info:
                    assert info["terminal_observation"]["image"].shape == (3, 36, 36)
                    seen += 1
        assert seen


def test_statistics_of_gymnasiums_wrapper_are_those_of_the_step() -> None:
    with serving([make() for make in counting()]) as address:
        envs = RemoteVectorEnv(address, autoreset_mode="SameStep")
        vec_env = as_vec_env(RecordEpisodeStatistics(envs))
        vec_env.reset()
        vec_env.step(np.full(3, 2))
        infos = vec_env.step(np.full(3, 2))[3]
        vec_env.close()
    assert infos[0]["episode"]["r"] == 4.0
    assert infos[0]["episode"]["l"] == 2
    assert "episode" not in infos[1]
    assert "episode" not in vec_env.reset_infos[0]


def test_several_endpoints() -> None:
    makers = counting()
    theirs = DummyVecEnv(makers)
    with (
        serving([makers[0]()]) as first,
        serving([make() for make in makers[1:]]) as second,
    ):
        ours = as_vec_env(RemoteVectorEnv(addresses=[first, second], autoreset_mode="SameStep"))
        assert np.array_equal(ours.reset(), theirs.reset())
        for _ in range(9):
            got, expected = ours.step(np.ones(3, int)), theirs.step(np.ones(3, int))
            assert np.array_equal(got[0], expected[0])
            assert_infos(got[3], expected[3], "step")
        ours.close()


def test_a_lost_endpoint_is_a_time_limit_to_training(socket_dir: Path) -> None:
    """With ``on_failure="restart"`` the last real observation is what a value is taken of."""
    address = f"unix://{socket_dir}/env.sock"
    with serving([CountingEnv(9), CountingEnv(9)], address):
        envs = RemoteVectorEnv(address, autoreset_mode="SameStep", on_failure="restart")
        vec_env = as_vec_env(envs)
        vec_env.reset()
        vec_env.step(np.ones(2, dtype=np.int64))
    with serving([CountingEnv(9, base=50.0), CountingEnv(9, base=60.0)], address):
        observations, rewards, dones, infos = vec_env.step(np.ones(2, dtype=np.int64))
        vec_env.close()
    assert observations[:, 0].tolist() == [50.0, 60.0]
    assert rewards.tolist() == [0.0, 0.0]
    assert dones.all()
    for info in infos:
        assert info["terminal_observation"].tolist() == [1.0]
        assert info["TimeLimit.truncated"]
        assert info["interrupted"]
