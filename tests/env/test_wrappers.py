"""Gymnasium's vector wrappers on a remote vector give what they give on a local one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers as single_wrappers
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from rlmesh_gym.env import RemoteVectorEnv
from tests.env.comparison import equal
from tests.env.shared_endpoints import EndpointKind, SharedEndpoints
from tests.env.wrapping import Wrap, reference, same_results

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
MODES = (NEXT, SAME, DISABLED)
LANES = 3
VERSION = tuple(int(part) for part in gym.__version__.split(".")[:3])


@pytest.fixture(scope="module")
def endpoints() -> Iterator[SharedEndpoints]:
    with SharedEndpoints() as endpoints:
        yield endpoints


def halved(array: Any) -> Any:
    return (array / 2).astype(np.float32)


def half_observations(env: Any) -> Any:
    return wrappers.TransformObservation(env, halved, env.observation_space)


def half_each_observation(env: Any) -> Any:
    return wrappers.VectorizeTransformObservation(
        env,
        single_wrappers.TransformObservation,
        func=halved,
        observation_space=env.single_observation_space,
    )


def half_each_reward(env: Any) -> Any:
    return wrappers.VectorizeTransformReward(
        env, single_wrappers.TransformReward, func=lambda reward: reward / 2
    )


def clipped_each_action(env: Any) -> Any:
    return wrappers.VectorizeTransformAction(
        env,
        single_wrappers.TransformAction,
        func=lambda action: np.clip(action, -0.5, 0.5),
        action_space=env.single_action_space,
    )


def statistics(env: Any) -> Any:
    # Before 1.2.2 these two do not go together: the one leaves out masks that the other needs.
    return wrappers.RecordEpisodeStatistics(env) if VERSION >= (1, 2, 2) else env


IN_EVERY_MODE: dict[str, Wrap] = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": partial(wrappers.ClipReward, min_reward=-3.0, max_reward=3.0),
    "TransformReward": partial(wrappers.TransformReward, func=lambda reward: 2 * reward + 1),
    "VectorizeTransformReward": half_each_reward,
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": partial(wrappers.RescaleAction, min_action=-2.0, max_action=2.0),
    "VectorizeTransformAction": clipped_each_action,
    "DictInfoToList": wrappers.DictInfoToList,
    "a stack": lambda env: wrappers.DictInfoToList(
        wrappers.NormalizeReward(statistics(wrappers.ClipAction(env)))
    ),
}
OF_OBSERVATIONS: dict[str, Wrap] = {
    "TransformObservation": half_observations,
    "VectorizeTransformObservation": half_each_observation,
    "FlattenObservation": wrappers.FlattenObservation,
    "ReshapeObservation": partial(wrappers.ReshapeObservation, shape=(3, 2)),
    "RescaleObservation": partial(wrappers.RescaleObservation, min_obs=-1.0, max_obs=1.0),
    "DtypeObservation": partial(wrappers.DtypeObservation, dtype=np.float16),
}
SPACES: dict[str, Any] = {"space": "box_float32", "action": "box_elementwise"}


def connect(
    endpoints: SharedEndpoints,
    mode: AutoresetMode,
    *,
    kind: EndpointKind = "lanes",
    released: bool = False,
    **kwargs: Any,
) -> RemoteVectorEnv:
    address = endpoints.address(kind, LANES, released=released, **(kwargs or SPACES))
    return RemoteVectorEnv(address, autoreset_mode=mode)


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # Of the wrapper's own bounds.
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", IN_EVERY_MODE)
def test_wrappers_for_every_mode(
    endpoints: SharedEndpoints, name: str, mode: AutoresetMode
) -> None:
    with connect(endpoints, mode) as envs:
        same_results(envs, reference(LANES, mode, **SPACES), IN_EVERY_MODE[name])


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("mode", [NEXT, DISABLED], ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OF_OBSERVATIONS)
def test_wrappers_of_observations(
    endpoints: SharedEndpoints, name: str, mode: AutoresetMode
) -> None:
    with connect(endpoints, mode) as envs:
        same_results(envs, reference(LANES, mode, **SPACES), OF_OBSERVATIONS[name])


def test_wrappers_of_images(endpoints: SharedEndpoints) -> None:
    kwargs: dict[str, Any] = {"space": "box_image", "action": "discrete"}
    with connect(endpoints, NEXT, **kwargs) as envs:
        same_results(envs, reference(LANES, NEXT, **kwargs), wrappers.GrayscaleObservation)


def test_normalized_observations(endpoints: SharedEndpoints) -> None:
    with connect(endpoints, NEXT) as envs:
        left, right = same_results(
            envs,
            reference(LANES, NEXT, **SPACES),
            wrappers.NormalizeObservation,
            partial_resets=False,
        )
        assert equal(left.obs_rms.mean, right.obs_rms.mean)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["lanes", "single", "next_step"])
def test_on_endpoints_of_the_released_package(endpoints: SharedEndpoints, kind: Any) -> None:
    mode = NEXT if kind == "next_step" else DISABLED
    lanes = 1 if kind == "single" else LANES
    address = endpoints.address(kind, lanes, released=True, **SPACES)
    with RemoteVectorEnv(address, autoreset_mode=mode) as envs:
        same_results(
            envs,
            reference(lanes, mode, **SPACES),
            IN_EVERY_MODE["a stack"],
            partial_resets=kind != "next_step",
        )


@pytest.mark.parametrize(
    ("wrap", "mode"),
    [
        (wrappers.NormalizeObservation, SAME),
        (wrappers.NormalizeObservation, DISABLED),
        *[(wrap, SAME) for wrap in OF_OBSERVATIONS.values()],
    ],
)
def test_what_a_wrapper_refuses_it_refuses_here_too(
    endpoints: SharedEndpoints, wrap: Wrap, mode: AutoresetMode
) -> None:
    def refusal(env: Any) -> type[Exception] | None:
        try:
            wrap(env)
        except (ValueError, AssertionError) as error:  # The latter in old versions.
            return type(error)
        return None

    local = reference(LANES, mode, **SPACES)
    expected = refusal(local)
    local.close()
    with connect(endpoints, mode) as envs:
        assert refusal(envs) is expected is not None


@pytest.mark.parametrize(
    "mode", MODES if VERSION >= (1, 4) else (NEXT, DISABLED), ids=lambda mode: mode.value
)
def test_statistics_agree_with_the_episode_log(
    endpoints: SharedEndpoints, mode: AutoresetMode
) -> None:
    with connect(endpoints, mode) as remote:
        envs = wrappers.RecordEpisodeStatistics(remote, buffer_length=1000)
        envs.action_space.seed(0)
        envs.reset(seed=0)
        generator = np.random.default_rng(0)
        for _ in range(150):
            if mode is DISABLED:
                ended = np.array([phase.name == "ENDED" for phase in remote.lane_phases])
            else:
                ended = generator.random(LANES) < 0.05
            if ended.any():
                envs.reset(options={"reset_mask": ended})
            envs.step(envs.action_space.sample())
        completed = [record for record in remote.episodes if not record.interrupted]
        assert len(completed) > 20
        assert list(envs.length_queue) == [record.length for record in completed]
        assert list(envs.return_queue) == [record.episode_return for record in completed]


def test_a_partial_reset_keeps_the_statistics_of_running_lanes() -> None:
    from rlmesh_gym.server import EnvServer
    from tests.fake_envs import CountingEnv

    with (
        EnvServer([CountingEnv(1), CountingEnv(4)]) as server,
        RemoteVectorEnv(server.address, autoreset_mode=DISABLED) as remote,
    ):
        envs = wrappers.RecordEpisodeStatistics(remote)
        envs.reset()
        for _ in range(3):
            envs.step(np.array([1, 2]))
            # Gymnasium's own vector takes the mask out of these, and lane 1 starts from zero.
            envs.reset(options={"reset_mask": np.array([True, False])})
        infos = envs.step(np.array([1, 2]))[4]
        assert infos["episode"]["l"].tolist() == [1, 4]
        assert infos["episode"]["r"].tolist() == [1.0, 8.0]


@pytest.mark.skipif(not hasattr(wrappers, "RecordVideo"), reason="only since Gymnasium 1.2")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_videos(endpoints: SharedEndpoints, tmp_path: Path, mode: AutoresetMode) -> None:
    kwargs: dict[str, Any] = {"space": "discrete", "action": "discrete"}
    address = endpoints.address("lanes", LANES, render_mode="rgb_array", **kwargs)
    local = reference(LANES, mode, render_mode="rgb_array", **kwargs)
    seen: list[list[list[Any]]] = []

    def wrap(env: Any) -> Any:
        folder = tmp_path / type(env).__name__
        frames: list[list[Any]] = []
        seen.append(frames)

        class Watched(wrappers.RecordVideo):
            def stop_recording(self) -> None:
                frames.append(list(self.recorded_frames))
                super().stop_recording()

        def make() -> Any:
            return Watched(env, str(folder), episode_trigger=lambda episode: episode in (0, 2))

        if mode is not SAME:
            return make()
        with pytest.warns(UserWarning, match="autoreset mode is same-step"):
            return make()

    with RemoteVectorEnv(address, autoreset_mode=mode) as envs:
        same_results(envs, local, wrap, steps=30, partial_resets=False, close=True)
    remote_frames, local_frames = seen
    assert len(remote_frames) == 2
    assert equal(remote_frames, local_frames)
    names = {path.name for path in (tmp_path / "RemoteVectorEnv").iterdir()}
    assert names == {"rl-video-episode-0.mp4", "rl-video-episode-2.mp4"}


def test_make_vec_and_wrappers(endpoints: SharedEndpoints) -> None:
    address = endpoints.address("lanes", LANES, **SPACES)
    envs = gym.make_vec(
        "rlmesh_gym:rlmesh/Remote-v0", num_envs=LANES, address=address, autoreset_mode="SameStep"
    )
    assert isinstance(envs.unwrapped, RemoteVectorEnv)
    same_results(envs.unwrapped, reference(LANES, SAME, **SPACES), IN_EVERY_MODE["a stack"])
    envs.close()
