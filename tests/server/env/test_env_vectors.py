"""Vector envs that others wrote: what their habits become, and what they may not do."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rlmesh_gym.codec import decode_meta_map
from rlmesh_gym.codec.lane_infos import take_lanes
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server import EnvServer
from tests.env_wire import Code, infos, masks, pb, serving_raw
from tests.fake_envs import CountingEnv


class Foreign(VectorEnv[Any, Any, Any]):
    """Two lanes; every part of a step can be replaced by ``parts``."""

    def __init__(self, mode: Any = AutoresetMode.NEXT_STEP, **parts: Any) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 1), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.render_mode = "rgb_array"
        self.parts = parts
        self.frames: Any = None
        self.last_options: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.last_options = options
        return np.zeros((2, 1), dtype=np.float32), self.parts.get("reset_infos", {})

    def step(self, actions: Any) -> Any:
        result = {
            "observations": np.ones((2, 1)),
            "rewards": np.array([1.0, 2.0]),
            "terminations": np.array([False, False]),
            "truncations": np.array([False, False]),
            "infos": {},
        }
        result |= {key: value for key, value in self.parts.items() if key in result}
        return tuple(result.values())

    def render(self) -> Any:
        return self.frames


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", AutoresetMode.DISABLED])
def test_the_mode_may_be_a_string(mode: Any) -> None:
    with serving_raw(Foreign(mode)) as client:
        assert client.contract.autoreset_mode is AutoresetMode(mode)
        assert "rlmesh_gym.partial_reset" not in client.capabilities


def test_a_vector_without_a_mode_is_taken_for_next_step() -> None:
    with pytest.warns(UserWarning, match="does not say how it resets its lanes"):
        server = EnvServer(Foreign(None))
    server.stop()
    own = Foreign(None)
    own.autoreset_mode = AutoresetMode.SAME_STEP  # type: ignore[attr-defined]
    with serving_raw(own) as client:
        assert client.contract.autoreset_mode is AutoresetMode.SAME_STEP


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match="unknown autoreset mode 'Never'"):
        EnvServer(Foreign("Never"))


def test_partial_reset_can_be_vouched_for() -> None:
    env = Foreign()
    with serving_raw(env, partial_reset=True) as client:
        assert client.capabilities["rlmesh_gym.partial_reset"] == "true"
        join = client.open()
        join.reset()
        join.reset(lanes=[1], options={"x": 1})
        assert env.last_options["x"] == 1
        assert env.last_options["reset_mask"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"rewards": np.zeros(3)}, "rewards must be 2 numbers"),
        ({"rewards": [None, 1.0]}, "rewards must be 2 numbers"),
        ({"terminations": np.zeros(2)}, "terminations must be 2 bools"),
        ({"truncations": [True]}, "truncations must be 2 bools"),
        ({"observations": np.zeros((3, 1))}, r"expected shape \(2, 1\)"),
        ({"observations": np.full((2, 1), np.nan)}, "nan .*the observation of lane 0"),
    ],
)
def test_results_of_another_form(parts: dict[str, Any], match: str) -> None:
    with serving_raw(Foreign(**parts)) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        error = join.refused(client.step_request([1, 1]))
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL
        assert re.search(match, error.message), error.message
        assert [e.episode_id for e in error.interrupted_episodes] == ["a", "b"]


def test_results_that_are_only_unusual() -> None:
    parts = {
        "rewards": np.array([[1], [2]], dtype=np.int32),
        "terminations": [True, False],
        "truncations": np.array([[False], [False]]),
        "infos": None,
        "reset_infos": None,
    }
    with serving_raw(Foreign(AutoresetMode.DISABLED, **parts)) as client:
        join = client.open()
        assert not join.reset(ids=["a", "b"]).HasField("infos")
        step = join.step([1, 1])
        assert list(step.rewards) == [1.0, 2.0]
        assert masks(step) == ([True, False], [False, False])
        assert not step.HasField("infos")
        (record,) = step.completed_episodes
        assert decode_meta_map(record.final_info) == {}


@pytest.mark.parametrize(
    "parts", [{"rewards": np.array([0.5, 0.0])}, {"terminations": np.array([True, True])}]
)
def test_a_roll_with_reward_or_ending_breaks_the_mode(parts: dict[str, Any]) -> None:
    env = Foreign(terminations=np.array([True, False]))
    with serving_raw(env) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1, 1])
        env.parts = parts
        error = join.refused(client.step_request([1, 1]))
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL
        assert "lanes [0] were to be reset by this step" in error.message


def test_terminal_infos_as_one_dict_per_lane() -> None:
    final = np.array([{"score": 3}, None], dtype=object)
    told = {"final_info": final, "_final_info": np.array([True, False])}
    env = Foreign(AutoresetMode.SAME_STEP, infos=told, terminations=np.array([True, False]))
    with serving_raw(env) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        step = join.step([1, 1])
        assert decode_meta_map(step.completed_episodes[0].final_info) == {"score": 3}
        assert infos(step)["final_info"] == [{"score": 3}, None]


@pytest.mark.parametrize("final_obs", [np.full(3, None), np.zeros((2, 4)), "x"])
def test_terminal_observations_of_another_form(final_obs: Any) -> None:
    told = {"final_obs": final_obs, "_final_obs": np.array([True, False])}
    env = Foreign(AutoresetMode.SAME_STEP, infos=told, terminations=np.array([True, False]))
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        error = join.refused(client.step_request([1, 1]))
        assert "a terminal observation does not fit its space" in error.message


def test_frames_that_do_not_match_the_lanes() -> None:
    env = Foreign()
    with serving_raw(env) as client:
        join = client.open()
        for frames in (None, (), (np.zeros((2, 2), np.uint8),)):
            env.frames = frames
            response = join.ask(pb.JoinRequest(render=pb.RenderRequest(env_indices=[1])))
            assert not response.render.HasField("frame")


def test_a_picture_of_all_lanes_is_the_first_lanes() -> None:
    env = Foreign()
    env.frames = np.full((2, 4, 3), 7, np.uint8)  # Two rows of pixels, and no two lanes.
    with serving_raw(env) as client:
        join = client.open()
        first, second = (
            join.ask(pb.JoinRequest(render=pb.RenderRequest(env_indices=[lane]))).render
            for lane in (0, 1)
        )
    assert first.HasField("frame")
    assert not second.HasField("frame")


class Ranged(CountingEnv):
    def __init__(self, high: float) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, high, (1,), np.float32)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_bounds_of_each_lane_are_not_announced_as_the_first_lanes(kind: Any) -> None:
    lanes = [partial(Ranged, 10), partial(Ranged, 99)]
    options = {"context": "spawn"} if kind is AsyncVectorEnv else {}
    envs = kind(lanes, observation_mode="different", **options)
    with pytest.raises(ConfigurationError, match="observation spaces of their own"):
        EnvServer(envs)
    envs.close()
    common = spaces.Box(0, 99, (1,), np.float32)
    envs = kind(lanes, observation_mode=(batch_space(common, 2), common), **options)
    with serving_raw(envs) as client:
        assert client.contract.single_observation_space == common


def test_the_rows_of_some_lanes() -> None:
    told = {"a": np.array([1, 2, 3]), "_a": [True, False, True], "deep": {"x": np.eye(3)}, "n": 4}
    cut = take_lanes(told, [2, 0], 3)
    assert cut["a"].tolist() == [3, 1]
    assert cut["_a"] == [True, True]
    assert cut["deep"]["x"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert cut["n"] == 4


def test_a_callable_that_returns_something_else() -> None:
    server = EnvServer(lambda: "an env")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="got str"):
        server.start()


def test_a_failing_close_does_not_keep_the_server_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(CountingEnv):
        def close(self) -> None:
            raise OSError("window gone")

    with EnvServer([Broken(), CountingEnv()]):
        pass
    assert "closing the environment failed" in caplog.text
    assert "window gone" in caplog.text
