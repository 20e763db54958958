"""Our environments on endpoints of the released ``rlmesh`` package, against ``SyncVectorEnv``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env import ConformanceWarning, RemoteEnv, RemoteVectorEnv
from rlmesh_gym.errors import (
    AutoresetError,
    DeadlineError,
    EnvError,
    ProtocolError,
    ResetNeededError,
    UnavailableError,
)
from tests.env.comparison import compare, equal
from tests.env.peer_spaces import PeerSpacesEnv
from tests.fake_envs import CountingEnv
from tests.lengths import IS_THOROUGH, shortened
from tests.peers import env_endpoint

pytestmark = pytest.mark.interop

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
ALL_SPACES = "tests.env.peer_spaces:PeerSpacesEnv"
COUNTING = "tests.fake_envs:CountingEnv"


MAKERS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "CartPole-v1": partial(gym.make, "CartPole-v1"),
    ALL_SPACES: PeerSpacesEnv,
    COUNTING: CountingEnv,
}


@pytest.mark.parametrize("factory", ["CartPole-v1", ALL_SPACES])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_lane_endpoints_in_every_mode(factory: str, mode: AutoresetMode) -> None:
    with (
        env_endpoint("lanes", factory, num_envs=3) as peer,
        RemoteVectorEnv(peer.address, autoreset_mode=mode) as envs,
    ):
        steps = 300 if mode is NEXT else 100
        compare(envs, [MAKERS[factory]] * 3, mode, steps=steps, reset_rate=0.03)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("factory", ["CartPole-v1", ALL_SPACES])
def test_next_step_endpoints(factory: str, transport: str, socket_dir: Any) -> None:
    address = "127.0.0.1:0" if transport == "tcp" else f"unix://{socket_dir}/a b.sock"
    with (
        env_endpoint("next_step", factory, num_envs=3, address=address) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        assert envs.autoreset_mode is NEXT
        makers = [MAKERS[factory]] * 3
        compare(envs, makers, NEXT, steps=300, reset_rate=0.02, can_reset_lanes=False)


@pytest.mark.parametrize("factory", ["CartPole-v1", ALL_SPACES])
def test_disabled_endpoints(factory: str) -> None:
    with (
        env_endpoint("disabled", factory, num_envs=2) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        assert envs.autoreset_mode is DISABLED
        makers = [MAKERS[factory]] * 2
        compare(envs, makers, DISABLED, steps=60, reset_rate=0.02, can_reset_lanes=False)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_single_endpoints_as_vectors(mode: AutoresetMode) -> None:
    with (
        env_endpoint("single", COUNTING) as first,
        env_endpoint("lanes", COUNTING, num_envs=2) as second,
        RemoteVectorEnv(addresses=[first.address, second.address], autoreset_mode=mode) as envs,
    ):
        compare(envs, [CountingEnv] * 3, mode, steps=60)


@pytest.mark.parametrize("kind", ["next_step", "disabled"])
def test_modes_that_need_lane_operations(kind: Any) -> None:
    own = NEXT if kind == "next_step" else DISABLED
    with env_endpoint(kind, COUNTING, num_envs=2) as peer:
        for mode in AutoresetMode:
            if mode is own:
                continue
            with pytest.raises(AutoresetError, match=rf"subset_step.*that work: {own.value}$"):
                RemoteVectorEnv(peer.address, autoreset_mode=mode)


@pytest.mark.parametrize("factory", ["CartPole-v1", ALL_SPACES])
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_single_env(factory: str, transport: str, socket_dir: Any) -> None:
    address = "127.0.0.1:0" if transport == "tcp" else f"unix://{socket_dir}/env.sock"
    reference = MAKERS[factory]()
    with (
        env_endpoint("single", factory, address=address) as peer,
        RemoteEnv(peer.address) as env,
    ):
        assert env.observation_space == reference.observation_space
        env.action_space.seed(0)
        got, expected = env.reset(seed=3), reference.reset(seed=3)
        for _ in range(shortened(300)):
            assert equal(got[0], expected[0])
            action = env.action_space.sample()
            got_step, expected_step = env.step(action), reference.step(action)
            assert equal(got_step[0], expected_step[0])
            assert got_step[1:4] == expected_step[1:4]
            if got_step[2] or got_step[3]:
                got, expected = env.reset(), reference.reset()
            else:
                got, expected = got_step[:1], expected_step[:1]  # type: ignore[assignment]
    reference.close()


def test_frames() -> None:
    kwargs = {"render_mode": "rgb_array"}
    with (
        env_endpoint("lanes", COUNTING, num_envs=2, kwargs=kwargs) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        envs.reset()
        with pytest.warns(UserWarning, match=r"cannot render lanes \[1\]"):
            frames = envs.render()
        assert frames is not None
        assert frames[0].shape == (6, 8, 3)
        assert frames[1] is None
        envs.step([0, 0])
    with (
        env_endpoint("single", COUNTING, kwargs=kwargs) as peer,
        RemoteEnv(peer.address, render_mode="rgb_array") as env,
    ):
        env.reset()
        assert env.render().shape == (6, 8, 3)


def test_its_conformance_notes_become_warnings() -> None:
    with (
        env_endpoint("lanes", "tests.fake_envs:RangeEnv", num_envs=2) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        envs.reset()
        actions = {"u": np.full((2, 2), 50.0), "word": ("abc", "toolong")}
        with pytest.warns(ConformanceWarning, match=r"action at \$\.") as seen:
            infos = envs.step(actions)[4]
        assert len(seen) == 1
        assert infos == {}
        envs.step(actions)


def test_a_late_answer_is_absorbed() -> None:
    kwargs = {"seconds": 0.6, "at": 2}
    with (
        env_endpoint("lanes", "tests.fake_envs:SleepEnv", num_envs=2, kwargs=kwargs) as peer,
        RemoteVectorEnv(
            peer.address, timeouts={"step": 0.4, "reset": 30.0}, autoreset_mode="NextStep"
        ) as envs,
    ):
        envs.reset()
        envs.step([1, 1])
        with pytest.raises(DeadlineError):
            envs.step([2, 2])
        for _ in range(10):
            try:
                observations, rewards, *_ = envs.step([3, 3])
            except DeadlineError:
                continue
            break
        assert observations[:, 0].tolist() == [3.0, 3.0]
        assert rewards.tolist() == [3.0, 3.0]


def test_a_killed_endpoint() -> None:
    with (
        env_endpoint("lanes", COUNTING, num_envs=2) as steady,
        env_endpoint("lanes", COUNTING, num_envs=2) as shaky,
        RemoteVectorEnv(addresses=[steady.address, shaky.address], timeouts={"close": 1.0}) as envs,
    ):
        envs.reset()
        shaky.kill()
        with pytest.raises(UnavailableError) as caught:
            envs.step([0] * 4)
        assert caught.value.endpoint == shaky.address
        with pytest.raises(ResetNeededError):
            envs.step([0] * 4)
        # The others go on.
        envs.reset(options={"reset_mask": np.array([True, True, False, False])})


@pytest.mark.skipif(not IS_THOROUGH, reason="its spaces take 20 seconds; scripts/test-thorough")
def test_a_request_above_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLMESH_GYM_MAX_SPACE_BYTES", str(2**30))
    monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", str(2**30))
    with (
        env_endpoint("lanes", "tests.fake_envs:WideEnv", num_envs=270) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        envs.reset()
        with pytest.raises(ProtocolError, match=r"has 270 MiB and endpoints .* take 256 MiB"):
            envs.step(np.zeros(envs.action_space.shape))
        envs.reset()


def test_errors_of_its_envs_and_the_reset_after() -> None:
    with (
        env_endpoint("next_step", "tests.fake_envs:FailingEnv", num_envs=2) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        envs.reset()
        envs.step([0, 0])
        # Lane 0 fails, and lane 1 when its turn comes.
        for _ in range(2):
            with pytest.raises(EnvError, match="gripper is stuck"):
                envs.step([0, 0])
            with pytest.raises(ResetNeededError):
                envs.step([0, 0])
            envs.reset()
        envs.step([0, 0])


def test_client_side_truncation() -> None:
    makers = [partial(gym.wrappers.TimeLimit, CountingEnv(9), 3) for _ in range(2)]
    with (
        env_endpoint("lanes", COUNTING, num_envs=2, kwargs={"length": 9}) as peer,
        RemoteVectorEnv(peer.address, autoreset_mode=SAME, max_episode_steps=3) as envs,
    ):
        compare(envs, makers, SAME, steps=40)


def test_the_variable_and_make_vec(monkeypatch: pytest.MonkeyPatch) -> None:
    with env_endpoint("next_step", "CartPole-v1", num_envs=2) as peer:
        monkeypatch.setenv("RLMESH_GYM_ADDRESS", peer.address)
        envs = gym.make_vec("rlmesh_gym:rlmesh/Remote-v0", num_envs=2)
        try:
            envs.reset(seed=0)
            assert envs.step(envs.action_space.sample())[1].tolist() == [1.0, 1.0]
        finally:
            envs.close()
