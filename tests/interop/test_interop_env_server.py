"""The released package's clients, as real processes, on our ``EnvServer``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.server import EnvServer
from tests.fake_envs import (
    AllSpacesEnv,
    CountingEnv,
    FailingEnv,
    RangeEnv,
    SleepEnv,
    counting_vector,
)
from tests.peers import drive_env, expected_action, run_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.interop

STEPS = 60
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=8)


MAKERS = [cartpole, partial(AllSpacesEnv, 4, zero_d=False)]


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, socket_dir: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix://{socket_dir}/env server.sock"


def assert_tree(got: Any, expected: Any) -> None:
    """Compare observations; the other package gives plain numbers for numpy ones."""
    if isinstance(expected, dict):
        assert set(got) == set(expected)
        for key in expected:
            assert_tree(got[key], expected[key])
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_tree(ours, theirs)
    elif isinstance(expected, str):
        assert got == expected
    else:
        assert_array_equal(got, expected)


@pytest.mark.parametrize("make", MAKERS, ids=["CartPole", "AllSpaces"])
def test_its_env_on_a_scalar_env(make: Callable[[], gym.Env[Any, Any]], address: str) -> None:
    local = make()
    actions = [int(action) for action in np.random.default_rng(0).integers(0, 2, 4)]
    plan: list[tuple[Any, ...]] = []
    for episode in range(3):
        plan += [("reset", 5 + episode, None), *(("step", action) for action in actions)]
    with EnvServer(make(), address) as server:
        seen = drive_env(server.address, plan)
    assert seen["num_envs"] == 1
    assert len(seen["results"]) == len(plan)
    for call, result in zip(plan, seen["results"], strict=True):
        assert "error" not in result, result
        if call[0] == "reset":
            observation, info = local.reset(seed=call[1])
        else:
            observation, reward, terminated, truncated, info = local.step(call[1])
            assert result["reward"] == reward
            assert (result["terminated"], result["truncated"]) == (terminated, truncated)
        assert_tree(result["observation"], observation)
        for key in info:
            assert key in result["info"]


def test_its_vector_env_on_lanes(address: str) -> None:
    local = [cartpole() for _ in range(3)]
    actions = np.random.default_rng(1).integers(0, 2, (7, 3))
    plan = [("reset", [1, 2, 3], None), *(("step", row) for row in actions)]
    with EnvServer([cartpole() for _ in range(3)], address) as server:
        seen = drive_env(server.address, plan, client="RemoteVectorEnv")
    assert seen["num_envs"] == 3
    first = [env.reset(seed=seed)[0] for env, seed in zip(local, (1, 2, 3), strict=True)]
    assert_array_equal(seen["results"][0]["observation"], first)
    for row, result in zip(actions, seen["results"][1:], strict=True):
        expected = [env.step(action) for env, action in zip(local, row, strict=True)]
        assert_array_equal(result["observation"], [step[0] for step in expected])
        assert_array_equal(result["reward"], [step[1] for step in expected])
        assert_array_equal(result["terminated"], [step[2] for step in expected])
        assert_array_equal(result["truncated"], [step[3] for step in expected])


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("make", MAKERS, ids=["CartPole", "AllSpaces"])
def test_its_vector_env_on_a_vector_env(
    make: Callable[[], gym.Env[Any, Any]], mode: AutoresetMode, address: str
) -> None:
    local = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    actions = np.random.default_rng(1).integers(0, 2, (STEPS, 3))
    plan = [("reset", 4, None), *(("step", row) for row in actions)]
    with EnvServer(SyncVectorEnv([make] * 3, autoreset_mode=mode), address) as server:
        seen = drive_env(server.address, plan, client="RemoteVectorEnv")
    codec = SpaceCodec(local.single_observation_space)
    assert_tree(seen["results"][0]["observation"], local.reset(seed=4)[0])
    ends = 0
    for row, result in zip(actions, seen["results"][1:], strict=True):
        observation, rewards, terminated, truncated, infos = local.step(row)
        assert_tree(result["observation"], observation)
        assert_array_equal(result["reward"], rewards)
        assert_array_equal(result["terminated"], terminated)
        assert_array_equal(result["truncated"], truncated)
        ended = int((terminated | truncated).sum())
        ends += ended
        assert result["info"]["completed_episodes"] == ended
        assert set(infos) <= set(result["info"])
        for key, value in infos.items():
            if key not in {"final_obs", "final_info"} and not isinstance(value, dict):
                assert_array_equal(result["info"][key], value)
        if "final_obs" in infos:
            # As far as that client goes: it hands on what it was sent.
            for got, expected in zip(result["info"]["final_obs"], infos["final_obs"], strict=True):
                assert (got is None) == (expected is None)
                if expected is not None:
                    value = codec.encode(codec.flatten_row(expected), 1)
                    assert got == value.SerializeToString()
    assert ends > 3
    local.close()


def test_its_vector_env_without_autoreset() -> None:
    with EnvServer(counting_vector(2, AutoresetMode.DISABLED)) as server:
        step = ("step", np.array([1, 2]))
        plan = [("reset", 5, None), step, step, step]
        results = drive_env(server.address, plan, client="RemoteVectorEnv")["results"]
        assert results[2]["terminated"].tolist() == [True, False]
        assert results[3]["error"] == "EnvironmentException"
        assert "lanes [0] are over" in results[3]["message"]
        # A reset by a new client puts it right, as that client's own endpoints do.
        results = drive_env(server.address, plan[:2], client="RemoteVectorEnv")["results"]
        assert_array_equal(results[1]["observation"], [[11.0], [111.0]])


def test_its_env_on_a_vector_of_one() -> None:
    with EnvServer(counting_vector(1)) as server:
        plan = [("reset", 5, None), ("step", 1), ("step", 1), ("step", 1)]
        seen = drive_env(server.address, plan)
    assert seen["metadata"]["autoreset_mode"] == "NextStep"
    observations = [result["observation"].tolist() for result in seen["results"]]
    assert observations == [[0.0], [1.0], [2.0], [10.0]]
    assert seen["results"][3]["reward"] == 0.0


def test_its_env_sees_our_errors() -> None:
    with EnvServer(FailingEnv(9, at=2)) as server:
        results = drive_env(
            server.address, [("reset", None, None), ("step", 1), ("step", 1), ("step", 1)]
        )["results"]
    assert results[2] == {
        "error": "EnvironmentException",
        "message": "[INTERNAL] step failed: ValueError: the gripper is stuck",
    }
    assert results[3]["error"] == "ConnectionError"


def test_its_env_sees_refused_actions_and_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    action = {"u": np.array([7.0, 0.0], dtype=np.float32), "word": "a"}
    plan = [("reset", None, None), ("step", action), ("step", action)]
    with EnvServer(RangeEnv()) as server:
        results = drive_env(server.address, plan)["results"]
    assert all("error" not in result for result in results), results
    monkeypatch.setenv("RLMESH_VALIDATION_POLICY", "strict")
    with EnvServer(RangeEnv()) as server:
        results = drive_env(server.address, plan)["results"]
    assert [result.get("error") for result in results] == [None, "ValueError", "ValueError"]


def test_its_timeout() -> None:
    with EnvServer(SleepEnv(9, seconds=0.5, at=1)) as server:
        plan = [("reset", None, None), ("step", 1), ("step", 2)]
        results = drive_env(server.address, plan, request_timeout_seconds=0.4)["results"]
    assert results[1]["error"] == "TimeoutError"
    assert results[2]["observation"].tolist() == [2.0]


def test_its_frames_and_its_shutdown() -> None:
    env = CountingEnv(5, base=7, render_mode="rgb_array")
    server = EnvServer(env, allow_remote_shutdown=True, drain_timeout=0.2)
    server.start()
    try:
        plan = [("reset", None, None), ("step", 1), ("render",), ("shutdown",)]
        results = drive_env(server.address, plan)["results"]
        assert_array_equal(results[2]["frame"][..., 0], np.full((6, 8), 7))
        assert results[3] != {"accepted": False}
        assert server.wait(10)
    finally:
        server.stop()


def test_every_dtype_reaches_its_client() -> None:
    class Wide(gym.Env[Any, Any]):
        def __init__(self) -> None:
            self.render_mode = None
            self.action_space = gym.spaces.Discrete(2)
            self.observation_space = gym.spaces.Dict(
                {name: gym.spaces.Box(0, 1, (3,), np.dtype(name).type) for name in DTYPES}
            )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.observation_space.seed(3)
            return self.observation_space.sample(), {}

    with EnvServer(Wide()) as server:
        seen = drive_env(server.address, [("reset", None, None)])["results"][0]["observation"]
    expected, _ = Wide().reset()
    for name, value in expected.items():
        assert seen[name].dtype == value.dtype, name
        assert_array_equal(seen[name], value)


@pytest.mark.parametrize("kind", ["single", "lanes", "next_step"])
def test_its_model_runs_on_our_endpoints(kind: str, address: str) -> None:
    env: Any = {
        "single": cartpole,
        "lanes": lambda: [cartpole() for _ in range(3)],
        "next_step": lambda: SyncVectorEnv([cartpole] * 3),
    }[kind]
    # With its own seeds it refuses NEXT_STEP.
    seeds: dict[str, Any] = {} if kind == "next_step" else {"seeds": [11, 12, 13, 14]}
    with EnvServer(env(), address) as server:
        seen = run_model(server.address, "predict", episodes=4, **seeds)
    episodes = seen["episodes"]
    assert len(episodes) == 4
    assert all(episode["steps"] == episode["reward"] <= 8 for episode in episodes)
    if not seeds:
        return
    local = cartpole()
    for episode in episodes:
        observation, _ = local.reset(seed=episode["seed"])
        steps, over = 0, False
        while not over:
            observation, _, terminated, truncated, _ = local.step(expected_action(observation))
            steps += 1
            over = terminated or truncated
        assert episode["steps"] == steps
        assert (episode["terminated"], episode["truncated"]) == (terminated, truncated)
