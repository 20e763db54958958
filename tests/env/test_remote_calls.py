"""Calls in two halves, calls that come too late, calls that cannot be answered from afar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.errors import (
    ClosedError,
    DeadlineError,
    EnvError,
    NoPendingCallError,
    PendingCallError,
    ResetNeededError,
    UnsupportedCallError,
)
from rlmesh_gym.lanes import LanePhase
from rlmesh_gym.rpc import Pending
from rlmesh_gym.server import EnvServer
from tests.fake_envs import BlockingEnv, CountingEnv, FailingEnv


@pytest.fixture
def blocking() -> Iterator[tuple[list[BlockingEnv], EnvServer, EnvServer]]:
    served = [BlockingEnv(base=100.0 * lane, blocking=False) for lane in range(4)]
    first: Any = served[:2]
    second: Any = served[2:]
    with EnvServer(first) as one, EnvServer(second) as two:
        yield served, one, two
        for env in served:
            env.release.set()


def test_halves(blocking: Any) -> None:
    _, one, two = blocking
    with RemoteVectorEnv(addresses=[one.address, two.address]) as envs:
        with pytest.raises(NoAsyncCallError, match="step_wait"):
            envs.step_wait()
        with pytest.raises(NoPendingCallError) as missing:
            envs.reset_wait()
        assert missing.value.name == "reset"
        envs.reset_async(seed=3)
        with pytest.raises(AlreadyPendingCallError):
            envs.reset_async()
        with pytest.raises(PendingCallError) as pending:
            envs.step([0] * 4)
        assert pending.value.name == "reset"
        with pytest.raises(NoPendingCallError):
            envs.step_wait()
        observations, infos = envs.reset_wait(timeout=10)
        assert observations[:, 0].tolist() == [0.0, 100.0, 200.0, 300.0]
        assert infos["rseed"].tolist() == [3, 4, 5, 6]
        envs.step_async([1, 2, 3, 4])
        for call in (envs.reset, envs.render, lambda: envs.step_async([0] * 4)):
            with pytest.raises(PendingCallError):
                call()
        assert envs.step_wait()[1].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert envs.step([0] * 4)[0][:, 0].tolist() == [2.0, 102.0, 202.0, 302.0]


def test_a_late_answer_is_never_the_next_one(blocking: Any) -> None:
    served, one, two = blocking
    with RemoteVectorEnv(addresses=[one.address, two.address], timeouts={"step": 0.2}) as envs:
        envs.reset()
        served[3].blocking = True
        with pytest.raises(DeadlineError, match=r"within 0.2 s \(lanes \[2, 3\]\)") as late:
            envs.step([1, 1, 1, 1])
        assert isinstance(late.value, (TimeoutError, multiprocessing.TimeoutError))
        assert late.value.endpoint == two.address
        assert [env.steps_taken for env in served] == [1, 1, 1, 0]
        with pytest.raises(DeadlineError, match=r"still under way.*nothing new was sent"):
            envs.step([2, 2, 2, 2])
        served[3].blocking = False
        served[3].release.set()
        observations, rewards, *_ = envs.step([3, 3, 3, 3])
        # The first two lanes had answered in time, which is handed out; the late answers are not.
        assert observations[:, 0].tolist() == [1.0, 101.0, 202.0, 302.0]
        assert rewards.tolist() == [1.0, 1.0, 3.0, 3.0]
        assert [env.steps_taken for env in served] == [1, 1, 2, 2]
        observations, rewards, *_ = envs.step([3, 3, 3, 3])
        assert observations[:, 0].tolist() == [2.0, 102.0, 203.0, 303.0]
        assert rewards.tolist() == [3.0] * 4
        envs.reset()
        assert [record.length for record in envs.episodes] == [2, 2, 3, 3]
        assert [record.episode_return for record in envs.episodes] == [4.0, 4.0, 7.0, 7.0]


def test_step_wait_with_a_timeout_of_its_own(blocking: Any) -> None:
    served, one, _ = blocking
    with RemoteVectorEnv(one.address) as envs:
        envs.reset()
        served[0].blocking = True
        envs.step_async([1, 1])
        assert served[0].entered.wait(10)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.05)
        with pytest.raises(NoPendingCallError):
            envs.step_wait()
        served[0].blocking = False
        served[0].release.set()
        assert envs.step([5, 5])[0][:, 0].tolist() == [2.0, 102.0]


def test_a_late_end_of_an_episode_is_counted() -> None:
    env = BlockingEnv(2, blocking=False)
    other = CountingEnv(9)
    with (
        EnvServer([env, other]) as server,
        RemoteVectorEnv(
            server.address, autoreset_mode="NextStep", timeouts={"step": 0.2, "reset": 30.0}
        ) as envs,
    ):
        envs.reset(seed=1)
        envs.step([1, 1])
        env.blocking = True
        with pytest.raises(DeadlineError):
            envs.step([2, 2])
        env.blocking = False
        env.release.set()
        observations, rewards, terminations, *_ = envs.step([3, 3])
        assert observations[:, 0].tolist() == [10.0, 3.0]
        assert rewards.tolist() == [0.0, 3.0]
        assert terminations.tolist() == [False, False]
        (record,) = envs.episodes
        assert (record.length, record.episode_return, record.seed) == (2, 3.0, 1)


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("place", ["sending", "between", "waiting", "reading", "told"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_an_interrupt_anywhere_leaves_the_env_usable(
    monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode, place: str
) -> None:
    served = [CountingEnv(9) for _ in range(4)]
    with (
        EnvServer(served[:2]) as one,
        EnvServer(served[2:]) as two,
        RemoteVectorEnv(addresses=[one.address, two.address], autoreset_mode=mode) as envs,
    ):
        envs.reset()
        envs.step([1] * 4)
        group = envs._group
        owner, name = {
            "sending": (group.endpoints[1].session, "step"),
            "between": (group, "finish"),
            "waiting": (Pending, "wait"),
            "reading": (group.endpoints[1], "read_step"),
            "told": (envs, "_infos"),
        }[place]
        with monkeypatch.context() as patch:
            interrupt_once(patch, owner, name)
            with pytest.raises(KeyboardInterrupt):
                envs.step([2] * 4)
        if place in {"sending", "reading"}:
            # Nobody knows what became of its half of the step.
            with pytest.raises(ResetNeededError, match="to reconnect"):
                envs.step([3] * 4)
            assert envs.lane_phases == (LanePhase.RUNNING,) * 2 + (LanePhase.ENDED,) * 2
            envs.reset()
            assert envs.step([4] * 4)[1].tolist() == [4.0] * 4
        else:
            assert envs.step([3] * 4)[1].tolist() == [3.0] * 4
            assert group.table.returns.tolist() == [6.0] * 4
        assert envs._group.pending is None
        assert envs.lane_phases == (LanePhase.RUNNING,) * 4


def test_a_late_reset_is_taken_in_too(blocking: Any) -> None:
    served, one, _ = blocking
    with RemoteVectorEnv(one.address, timeouts={"step": 0.1}) as envs:
        envs.reset()
        served[1].blocking = True
        with pytest.raises(DeadlineError):
            envs.step([0, 0])
        served[1].release.set()
        assert envs.reset()[0][:, 0].tolist() == [10.0, 110.0]
        served[1].blocking = False
        assert envs.step([0, 0])[0][:, 0].tolist() == [11.0, 111.0]


def test_errors_of_the_environment() -> None:
    with (
        EnvServer([CountingEnv(9)]) as first,
        EnvServer([CountingEnv(9), FailingEnv(at=2)]) as second,
        RemoteVectorEnv(addresses=[first.address, second.address]) as envs,
    ):
        envs.reset()
        ids = envs.episode_ids
        envs.step([0, 0, 0])
        with pytest.raises(EnvError, match="gripper is stuck") as caught:
            envs.step([0, 0, 0])
        error = caught.value
        assert error.endpoint == second.address
        assert not error.is_recoverable
        assert error.lanes == (1, 2)
        assert set(error.interrupted_episodes) >= set(ids[1:])
        with pytest.raises(
            ResetNeededError,
            match=r"connection to .* lost \(lanes \[1, 2\]\); call reset\(\) to reconnect",
        ):
            envs.step([0, 0, 0])
        with pytest.raises(ResetNeededError, match="must be reset together"):
            envs.reset(options={"reset_mask": np.array([False, True, False])})
        # Lane 0 goes on where it was last seen, with what came for it in the step that failed.
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True, True])})
        assert observations[:, 0].tolist() == [1.0, 10.0, 10.0]
        observations, rewards, *_ = envs.step([5, 6, 7])
        assert observations[:, 0].tolist() == [2.0, 11.0, 11.0]
        assert rewards.tolist() == [0.0, 6.0, 7.0]
        assert envs.step([0, 0, 0])[0][:, 0].tolist() == [3.0, 12.0, 12.0]
        interrupted = envs.episodes.interrupted
        assert {record.episode_id for record in interrupted} == set(ids[1:])


def test_closed() -> None:
    with EnvServer([CountingEnv(9)] * 1) as server:
        envs = RemoteVectorEnv(server.address)
        envs.reset()
        envs.close()
        envs.close()
        assert envs.closed
        for call in (envs.reset, lambda: envs.step([0]), envs.render, envs.step_wait):
            with pytest.raises(ClosedError):
                call()
        with pytest.raises(ClosedEnvironmentError):
            envs.step([0])


def test_closed_by_another_thread_in_the_middle_of_a_step(blocking: Any) -> None:
    served, one, _ = blocking
    envs = RemoteVectorEnv(one.address, timeouts={"close": 0.1})
    envs.reset()
    served[0].blocking = True
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(envs.step, [1, 1])
        assert served[0].entered.wait(10)
        envs.close()
        with pytest.raises(ClosedError):
            step.result(10)
    served[0].release.set()


def test_what_a_contract_can_answer() -> None:
    with (
        EnvServer([CountingEnv(9, render_mode="rgb_array") for _ in range(2)]) as server,
        RemoteVectorEnv(server.address) as envs,
    ):
        assert envs.get_attr("render_mode") == ("rgb_array", "rgb_array")
        assert envs.call("num_envs") == (2, 2)
        assert envs.get_attr("spec") == (None, None)
        metadata = envs.get_attr("metadata")
        assert metadata[0]["maker"] == "tests"
        assert metadata[0] is not metadata[1]
        assert envs.get_attr("action_space") == (envs.single_action_space,) * 2
        assert len(envs.call("render")) == 2
        for name in ("gravity", "steps_taken", "reset"):
            with pytest.raises(NotImplementedError, match=name):
                envs.call(name)
        with pytest.raises(UnsupportedCallError, match=r"'render_mode'.*arguments"):
            envs.call("render_mode", 1)
        with pytest.raises(NotImplementedError, match="cannot be changed"):
            envs.set_attr("gravity", 3)
        with pytest.raises(ValueError, match="Got `1` values for 2 environments"):
            envs.set_attr("gravity", [3])
        with pytest.raises(NotImplementedError):
            _ = envs.np_random
        assert "RemoteVectorEnv(num_envs=2)" in repr(envs)


def test_without_copies_the_arrays_are_the_same() -> None:
    served: list[Any] = [CountingEnv(3, base=100.0 * lane) for lane in range(2)]
    with (
        EnvServer(served) as server,
        RemoteVectorEnv(server.address, copy=False, autoreset_mode="SameStep") as envs,
    ):
        first, _ = envs.reset()
        second = envs.step([0, 0])[0]
        assert first is second
        assert second[:, 0].tolist() == [1.0, 101.0]
        for _ in range(2):
            third, _, _, _, infos = envs.step([0, 0])
        assert third is first
        assert third[:, 0].tolist() == [10.0, 110.0]
        assert infos["final_obs"][0].tolist() == [3.0]


def test_rewards_of_one_element() -> None:
    from tests.fake_envs import RewardArrayEnv

    for mode in gym.vector.AutoresetMode:
        with (
            EnvServer([RewardArrayEnv(3), RewardArrayEnv(2)]) as server,
            RemoteVectorEnv(server.address, autoreset_mode=mode) as envs,
        ):
            envs.reset()
            steps = 2 if mode is gym.vector.AutoresetMode.DISABLED else 10
            for _ in range(steps):
                rewards = envs.step([0, 0])[1]
                assert rewards.shape == (2,)
                assert rewards.dtype == np.float64
                assert set(rewards.tolist()) <= {0.0, 1.0}


def test_a_single_env_after_a_late_answer() -> None:
    env = BlockingEnv(9, blocking=False)
    with (
        EnvServer(env) as server,
        RemoteEnv(server.address, timeouts={"step": 0.5}) as remote,
    ):
        remote.reset()
        env.blocking = True
        with pytest.raises(DeadlineError):
            remote.step(1)
        env.blocking = False
        env.release.set()
        assert remote.step(2)[:2] == (np.array([2.0], np.float32), 2.0)
        assert env.steps_taken == 2
