"""What an episode's success, a frame and an info are does not depend on where the env runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from PIL import Image

import rlmesh_gym as rg
from rlmesh_gym.runtime import VideoRecorder
from tests.env.comparison import equal
from tests.env.success_env import FLAGS, SuccessEnv, flags
from tests.peers import drive_env, env_endpoint

MAKERS: list[Callable[[], Any]] = [SuccessEnv, partial(SuccessEnv, flip=True)]
EPISODES = len(FLAGS)


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


class Without(VectorWrapper):  # type: ignore[type-arg,unused-ignore]
    """Infos without masks, on every level."""

    def step(self, actions: Any) -> Any:
        *rest, infos = self.env.step(actions)
        return *rest, self.stripped(infos)

    def stripped(self, infos: Any) -> Any:
        return {
            key: self.stripped(value) if isinstance(value, dict) else value
            for key, value in infos.items()
            if not key.startswith("_")
        }


class Listed(VectorWrapper):  # type: ignore[type-arg,unused-ignore]
    """One dict per lane instead of one for all."""

    def step(self, actions: Any) -> Any:
        *rest, infos = self.env.step(actions)
        return *rest, self.listed(infos)

    def listed(self, infos: Any) -> Any:
        return [dict(rg.codec.lane_info(infos, lane, self.num_envs)) for lane in range(2)]


class FinalListed(Listed):
    """The last infos one dict per lane, as Gymnasium 0.29 had them: a list or an object array."""

    as_array = False

    def step(self, actions: Any) -> Any:
        *rest, infos = self.env.step(actions)
        if "final_info" in infos:
            final = [infos["final_info"]] * 2
            rows = [rg.codec.lane_info(infos["final_info"], lane, 2) for lane in range(2)]
            final = [row or None for row in rows]
            infos["final_info"] = np.array(final, object) if self.as_array else final
        return *rest, infos


class FinalObjects(FinalListed):
    as_array = True


def vector(mode: AutoresetMode, wrapper: Any = None) -> Any:
    envs = SyncVectorEnv(MAKERS, autoreset_mode=mode)
    return envs if wrapper is None else wrapper(envs)


MODES = list(AutoresetMode)
LOCAL: dict[str, Callable[[], Any]] = {
    **{f"sync-{mode.value}": partial(vector, mode) for mode in MODES},
    **{f"no-masks-{mode.value}": partial(vector, mode, Without) for mode in MODES},
    "dicts-NextStep": partial(vector, AutoresetMode.NEXT_STEP, Listed),
    "dicts-Disabled": partial(vector, AutoresetMode.DISABLED, Listed),
    "final-list": partial(vector, AutoresetMode.SAME_STEP, FinalListed),
    "final-objects": partial(vector, AutoresetMode.SAME_STEP, FinalObjects),
}
SERVED: dict[str, Callable[[], Any]] = {"lanes": lambda: [make() for make in MAKERS], **LOCAL}


def loop(envs: rg.RemoteVectorEnv, episodes: int) -> None:
    """Play until every lane has had that many episodes."""
    envs.reset()
    while len(envs.episodes) < episodes * envs.num_envs:
        *_, terminations, truncations, _ = envs.step(zeros(range(envs.num_envs)))
        ended = terminations | truncations
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})


def check(records: Any, num_lanes: int) -> None:
    for lane in range(num_lanes):
        seen = [record.success for record in records if record.lane == lane]
        assert len(seen) >= 2
        assert seen == flags(len(seen), flip=lane == 1)


@pytest.mark.parametrize("make", SERVED.values(), ids=SERVED.keys())
def test_success_of_our_server(make: Callable[[], Any]) -> None:
    with rg.EnvServer(make()) as server, rg.RemoteVectorEnv(server.address) as envs:
        loop(envs, EPISODES)
        check(envs.episodes, 2)
    with rg.EnvServer(make()) as server:
        report = rg.run(server.address, zeros, episodes=2 * EPISODES)
        assert len(report.episodes) == 2 * EPISODES
        check(report.episodes, 2)


@pytest.mark.parametrize("make", LOCAL.values(), ids=LOCAL.keys())
def test_success_of_a_local_vector(make: Callable[[], Any]) -> None:
    report = rg.run(make(), zeros, episodes=2 * EPISODES)
    assert len(report.episodes) == 2 * EPISODES
    check(report.episodes, 2)


def test_success_of_a_local_env() -> None:
    report = rg.run(SuccessEnv(), zeros, episodes=EPISODES)
    check(report.episodes, 1)
    assert report.statistics.success_rate == 0.5


@pytest.mark.parametrize("mode", [None, "SameStep"])
def test_success_of_an_embedded_env(mode: Any) -> None:
    with rg.RemoteVectorEnv(
        env_id="tests.env.success_env:Success-v0", num_envs=1, autoreset_mode=mode
    ) as envs:
        loop(envs, EPISODES)
        check(envs.episodes, 1)


@pytest.mark.parametrize("kind", ["single", "lanes", "next_step", "disabled"])
def test_success_of_the_released_server(kind: Any) -> None:
    num_envs = 1 if kind == "single" else 2
    endpoint = partial(env_endpoint, kind, "tests.env.success_env:SuccessEnv", num_envs=num_envs)
    with endpoint() as peer, rg.RemoteVectorEnv(peer.address) as envs:
        loop(envs, EPISODES)
        records = [*envs.episodes]
    with endpoint() as peer:
        report = rg.run(peer.address, zeros, episodes=num_envs * EPISODES)
    for episodes in (records, report.episodes):
        for lane in range(num_envs):
            mine = [record.success for record in episodes if record.lane == lane]
            assert len(mine) >= 2
            assert mine == flags(len(mine))


class Painter(SuccessEnv):
    """Renders what it was given."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, frame: Any) -> None:
        super().__init__()
        self.render_mode = "rgb_array"
        self.frame = frame

    def render(self) -> Any:
        return self.frame


PICTURE = np.linspace(0, 255, 8 * 8 * 3).astype(np.uint8).reshape(8, 8, 3)
FRAMES = {
    "rgb": PICTURE,
    "fractions": PICTURE / 255.0,
    "beyond": PICTURE.astype(np.float64) * 3 - 200,
    "batch_of_one": PICTURE[np.newaxis],
    "channels_first": np.moveaxis(PICTURE, -1, 0),
    "grey": PICTURE[..., 0],
    "rgba": np.dstack([PICTURE, np.full((8, 8), 255, np.uint8)]),
    "lists": PICTURE.tolist(),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_frames_are_the_same_everywhere(frame: Any, tmp_path: Any) -> None:
    expected: Any = rg.codec.as_frame(frame)
    videos = {}
    with rg.EnvServer(Painter(frame), max_sessions=1) as server:
        with rg.RemoteEnv(server.address) as env:
            env.reset()
            assert equal(env.render(), expected)
        with rg.RemoteVectorEnv(server.address) as envs:
            envs.reset()
            assert equal(envs.render(), (expected,))
        for name, end in (("served", server.address), ("local", Painter(frame))):
            recorder = VideoRecorder(tmp_path / name)
            rg.run(end, zeros, episodes=1, hooks=[recorder])
            with Image.open(recorder.paths[0]) as video:
                videos[name] = np.asarray(video.convert("RGB"))
    assert equal(videos["local"], videos["served"])
    assert abs(float(videos["local"].mean()) - float(expected.mean())) < 70


class InfoEnv(SuccessEnv):
    """Infos and the options of the last reset, with dtypes that lists do not have."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        self.kinds = {key: repr(value) for key, value in (options or {}).items()}
        return observation, {**self.info(), "kinds": self.kinds}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.info()

    def info(self) -> dict[str, Any]:
        return {
            "action_mask": np.array([0, 1], np.int8),
            "camera": np.full((4, 3, 3), self.t, np.uint8),
            "empty": np.zeros((0, 2), np.float32),
            "half": np.float16(0.5),
            "small": np.int8(3),
            "list": [1, 2],
            "pair": (1, 2.5),
            "names": {"a", "b"},
            "count": self.t,
            "ratio": 0.5,
            "flag": True,
            "word": "x",
            "deep": {"mask": np.array([True]), "n": 1},
        }


class PlainInfoEnv(InfoEnv):
    """Without what the released server refuses."""

    def info(self) -> dict[str, Any]:
        return {key: value for key, value in super().info().items() if key != "names"}


if "Infos-v0" not in gym.registry:
    gym.register("Infos-v0", entry_point="tests.env.test_value_parity:InfoEnv")


def test_infos_of_one_env_are_the_envs_own() -> None:
    local = InfoEnv()
    options = {"where": np.array([1.5], np.float32), "pair": (1, 2), "n": 3, "tags": {"a"}}
    with rg.EnvServer(InfoEnv()) as server, rg.RemoteEnv(server.address) as env:
        for _ in range(2):
            got, expected = env.reset(options=options)[1], local.reset(options=options)[1]
            names = got.pop("names"), expected.pop("names")
            assert names[0] == names[1] == {"a", "b"}
            assert equal(got, expected)
            for key, value in expected.items():
                assert type(got[key]) is type(value), key
            got, expected = env.step(1)[4], local.step(1)[4]
            assert got.pop("names") == expected.pop("names")
            assert equal(got, expected)
        assert env.action_space.sample(mask=got["action_mask"]) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("served", ["lanes", "vector", "embedded"])
def test_infos_of_vectors_are_gymnasiums(served: str, mode: AutoresetMode) -> None:
    reference = SyncVectorEnv([InfoEnv, InfoEnv], autoreset_mode=mode)
    with contextlib.ExitStack() as stack:
        where: dict[str, Any] = {"env_id": "tests.env.test_value_parity:Infos-v0", "num_envs": 2}
        if served != "embedded":
            lanes: Any = [InfoEnv(), InfoEnv()]
            if served == "vector":
                lanes = SyncVectorEnv([InfoEnv, InfoEnv], autoreset_mode=mode)
            where = {"address": stack.enter_context(rg.EnvServer(lanes)).address}
        envs = stack.enter_context(rg.RemoteVectorEnv(autoreset_mode=mode, **where))
        options = {"where": np.arange(2, dtype=np.int16)}
        assert equal(envs.reset(options=options)[1], reference.reset(options=options)[1])
        for _ in range(1 if mode is AutoresetMode.DISABLED else 5):
            got, expected = envs.step([0, 1])[4], reference.step(np.array([0, 1]))[4]
            assert equal(got, expected), (got, expected)


def test_the_released_client_sees_lists_as_ever() -> None:
    with rg.EnvServer([InfoEnv()]) as server:
        results = drive_env(server.address, [("reset", 1, None), ("step", 1)])["results"]
        info = results[1]["info"]
        assert info["action_mask"] == [0, 1]
        assert info["pair"] == [1, 2.5]
        assert info["names"] == ["a", "b"]


def test_the_released_server_gets_lists_as_ever() -> None:
    with (
        env_endpoint("single", "tests.env.test_value_parity:PlainInfoEnv") as peer,
        rg.RemoteEnv(peer.address) as env,
    ):
        _, info = env.reset(options={"where": np.array([1], np.int8), "pair": (1, 2)})
        assert info["kinds"] == {"pair": "[1, 2]", "where": "[1]"}


class Integers(gym.Env[Any, Any]):
    """Discrete and MultiDiscrete of their own dtype, and a start."""

    observation_space: Any
    action_space: Any

    def __init__(self, *, offset: int = 2) -> None:
        self.observation_space = gym.spaces.MultiDiscrete([3, 4], dtype=np.int32, start=[offset, 0])
        self.action_space = gym.spaces.MultiDiscrete([2, 2], dtype=np.uint8, start=[0, offset])
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.start.astype(np.int32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.start.astype(np.int32), 1.0, False, True, {}


def test_integer_spaces_keep_dtype_and_start() -> None:
    spaces = Integers().observation_space, Integers().action_space
    with rg.EnvServer(Integers()) as server, rg.RemoteEnv(server.address) as env:
        assert (env.observation_space, env.action_space) == spaces
        assert env.observation_space.dtype == np.int32
        assert env.action_space.dtype == np.uint8
        observation, _ = env.reset()
        assert (observation.dtype, observation.tolist()) == (np.int32, [2, 0])
        assert env.step(np.array([1, 3], np.uint8))[1] == 1.0
        env.reset()

        class Handler(rg.ModelHandler):
            def predict(self, observation: Any) -> Any:
                seen.append(observation.observation.dtype)
                return np.array([[1, 2]], np.uint8)

        seen: list[Any] = []
        with (
            rg.ModelServer(Handler()) as model,
            rg.RemotePolicy(model.address, env) as policy,
        ):
            assert policy(observation).tolist() == [1, 2]
        assert seen == [np.int32]


def test_the_released_client_gets_int64_or_a_reason() -> None:
    with rg.EnvServer(Integers(offset=0)) as server:
        results = drive_env(server.address, [("reset", 1, None), ("step", np.array([1, 1]))])
        assert results["results"][1]["reward"] == 1.0
    with (
        rg.EnvServer(Integers()) as server,
        pytest.raises(AssertionError, match="does not know a MultiDiscrete with start"),
    ):
        drive_env(server.address, [("reset", 1, None)])
