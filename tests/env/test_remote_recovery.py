"""Lost endpoints: one clear error, or a restart that the other lanes never notice."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rlmesh_gym.env.drive.recovery
import rlmesh_gym.env.vector_env
import rlmesh_gym.restarts
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    EnvError,
    ResetNeededError,
    UnavailableError,
)
from rlmesh_gym.lanes import LanePhase
from rlmesh_gym.server import EnvServer
from tests.env.local_session import Answer, LocalSession, LocalSource
from tests.fake_envs import CountingEnv

MODES = list(AutoresetMode)


class Pair:
    """A vector over two local endpoints of two lanes each; the second one can be lost."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode, **options: Any
    ) -> None:
        def make(first_lane: int) -> LocalSession:
            lanes = range(first_lane, first_lane + 2)
            return LocalSession(
                [partial(CountingEnv, 6, base=100.0 * lane) for lane in lanes], mode
            )

        self.steady = LocalSource(partial(make, 0))
        self.shaky = LocalSource(partial(make, 2))
        sources = [self.steady, self.shaky]
        monkeypatch.setattr(rlmesh_gym.env.vector_env, "find_sources", lambda **_: sources)
        monkeypatch.setattr(rlmesh_gym.restarts, "_FIRST_PAUSE", 0.001)
        self.envs = RemoteVectorEnv(autoreset_mode=mode, **options)

    @property
    def session(self) -> LocalSession:
        return self.shaky.sessions[-1]


LOSSES = [
    UnavailableError("lost", endpoint="local"),
    EnvError("broken", code="INTERNAL", is_recoverable=False),
]


@pytest.mark.parametrize("loss", LOSSES, ids=["lost", "broken"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_restart(monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode, loss: Any) -> None:
    pair = Pair(monkeypatch, mode, on_failure="restart")
    with pair.envs as envs:
        envs.reset(seed=1)
        envs.step([1, 1, 1, 1])
        before = envs.episode_ids
        pair.session.fail_next = loss
        pair.shaky.refusals = 2
        observations, rewards, terminations, truncations, infos = envs.step([2, 2, 2, 2])
        assert rewards.tolist() == [2.0, 2.0, 0.0, 0.0]
        assert terminations.tolist() == [False] * 4
        assert truncations.tolist() == [False, False, True, True]
        assert infos["interrupted"].tolist() == [False, False, True, True]
        assert infos["_interrupted"].tolist() == [False, False, True, True]
        assert infos["t"].tolist()[:2] == [2, 2]
        records = envs.episodes.interrupted
        assert [(record.lane, record.episode_id, record.length) for record in records] == [
            (2, before[2], 1),
            (3, before[3], 1),
        ]
        assert envs.episode_ids[:2] == before[:2]
        if mode is AutoresetMode.SAME_STEP:
            # The server lost its count of episodes, so they begin at 0 again.
            assert observations[:, 0].tolist() == [2.0, 102.0, 200.0, 300.0]
            assert [value[0] for value in infos["final_obs"][2:]] == [201.0, 301.0]
            assert infos["final_info"]["interrupted"].tolist() == [False, False, True, True]
        else:
            # The last that was really seen.
            assert observations[:, 0].tolist() == [2.0, 102.0, 201.0, 301.0]
            assert envs.lane_phases[2:] == (LanePhase.ENDED,) * 2
            if mode is AutoresetMode.NEXT_STEP:
                observations, rewards, _, truncations, infos = envs.step([3, 3, 3, 3])
                assert observations[:, 0].tolist() == [3.0, 103.0, 200.0, 300.0]
                assert rewards.tolist() == [3.0, 3.0, 0.0, 0.0]
            else:
                with pytest.raises(ResetNeededError):
                    envs.step([0] * 4)
                observations, infos = envs.reset(options={"reset_mask": truncations})
                assert observations[:, 0].tolist() == [2.0, 102.0, 200.0, 300.0]
            assert infos["kind"].tolist()[2:] == ["reset", "reset"]
        assert "interrupted" not in infos or mode is AutoresetMode.SAME_STEP
        assert envs.lane_phases == (LanePhase.RUNNING,) * 4
        assert not set(envs.episode_ids[2:]) & set(before)
        assert len(pair.shaky.sessions) == 2
        assert pair.shaky.sessions[0].is_closed
        assert len(pair.steady.sessions) == 1
        observations, *_ = envs.step([0] * 4)
        assert observations[2:, 0].tolist() == [201.0, 301.0]


class LateLoss(Answer):
    """Misses its deadline, and then turns out to be lost."""

    def __init__(self) -> None:
        super().__init__(None, DeadlineError("slow", endpoint="local", operation="step"))

    def result(self, timeout: float | None = None) -> Any:
        error, self.error = self.error, LOSSES[0]
        assert error is not None
        raise error


@pytest.mark.parametrize("told_by", ["step", "render"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_loss_beside_a_step_is_told_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode, told_by: str
) -> None:
    pair = Pair(monkeypatch, mode, on_failure="restart")
    with pair.envs as envs:
        envs.reset(seed=1)
        envs.step([1] * 4)
        if told_by == "step":
            monkeypatch.setattr(pair.session, "step", lambda *_, **__: LateLoss())
            with pytest.raises(DeadlineError):
                envs.step([1] * 4)
        else:
            envs.render_mode = "rgb_array"
            monkeypatch.setattr(pair.session, "render", lambda *_: Answer(None, LOSSES[1]))
            with pytest.raises(EnvError):
                envs.render()
        observations, rewards, _, truncations, infos = envs.step([2] * 4)
        # What came for the others while these were late is handed out now.
        reward = 1.0 if told_by == "step" else 2.0
        assert observations[:2, 0].tolist() == [2.0, 102.0]
        assert rewards.tolist() == [reward, reward, 0.0, 0.0]
        assert truncations.tolist() == [False, False, True, True]
        assert infos["interrupted"].tolist() == [False, False, True, True]
        if mode is AutoresetMode.DISABLED:
            with pytest.raises(ResetNeededError, match=r"lanes \[2, 3\] are over"):
                envs.step([2] * 4)
            envs.reset(options={"reset_mask": truncations})
        elif mode is AutoresetMode.NEXT_STEP:
            assert envs.step([3] * 4)[0][2:, 0].tolist() == [200.0, 300.0]
        assert envs.lane_phases == (LanePhase.RUNNING,) * 4
        assert len(pair.shaky.sessions) == 2


def test_a_reset_heals_what_a_render_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP)
    with pair.envs as envs:
        envs.reset(seed=1)
        envs.render_mode = "rgb_array"
        monkeypatch.setattr(pair.session, "render", lambda *_: Answer(None, LOSSES[1]))
        with pytest.raises(EnvError):
            envs.render()
        with pytest.raises(ResetNeededError):
            envs.step([0] * 4)
        envs.reset()
        assert len(pair.shaky.sessions) == 2
        envs.step([0] * 4)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_restart_within_a_reset(monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode) -> None:
    pair = Pair(monkeypatch, mode, on_failure="restart")
    with pair.envs as envs:
        pair.session.fail_next = LOSSES[0]
        observations, _ = envs.reset()
        assert observations[:, 0].tolist() == [0.0, 100.0, 200.0, 300.0]
        envs.step([0] * 4)
        pair.session.fail_next = LOSSES[0]
        assert envs.reset(seed=3)[0][:, 0].tolist() == [10.0, 110.0, 200.0, 300.0]


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP, on_failure="restart", restart_patience=0.02)
    with pair.envs as envs:
        envs.reset()
        pair.session.fail_next = LOSSES[0]
        pair.shaky.refusals = 10**6
        envs.step([0] * 4)
        with pytest.raises(UnavailableError, match="nobody there"):
            envs.step([0] * 4)
        with pytest.raises(UnavailableError, match="nobody there"):
            envs.reset()
        pair.shaky.refusals = 0
        assert envs.reset()[0][2:, 0].tolist() == [200.0, 300.0]


def test_another_env_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP, on_failure="restart")
    with pair.envs as envs:
        envs.reset()
        pair.session.fail_next = LOSSES[0]
        pair.shaky.make = lambda: LocalSession([CountingEnv], AutoresetMode.NEXT_STEP)
        envs.step([0] * 4)
        with pytest.raises(ConfigurationError, match="came back with another environment"):
            envs.step([0] * 4)


def test_recoverable_errors_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP, on_failure="restart")
    with pair.envs as envs:
        envs.reset()
        pair.session.fail_next = EnvError("no", code="INVALID_ACTION", is_recoverable=True)
        with pytest.raises(EnvError, match=r"no \(lanes \[0, 1\] moved on; the next step\(\) "):
            envs.step([5] * 4)
        observations, rewards, *_ = envs.step([7] * 4)
        assert observations[:, 0].tolist() == [1.0, 101.0, 201.0, 301.0]
        assert rewards.tolist() == [5.0, 5.0, 7.0, 7.0]
        assert envs.step([0] * 4)[0][:, 0].tolist() == [2.0, 102.0, 202.0, 302.0]


def test_on_failure_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="on_failure"):
        RemoteVectorEnv("127.0.0.1:1", on_failure="ignore")  # type: ignore[arg-type]


def test_a_dead_server_is_one_clear_error() -> None:
    served: list[Any] = [CountingEnv(9), CountingEnv(9)]
    server = EnvServer(served)
    server.start()
    envs = RemoteVectorEnv(server.address, timeouts={"close": 0.5, "connect": 2.0})
    try:
        envs.reset()
        ids = envs.episode_ids
        server.stop()
        with pytest.raises(UnavailableError) as caught:
            envs.step([0, 0])
        assert caught.value.endpoint == server.address
        assert server.address in str(caught.value)
        assert [record.episode_id for record in envs.episodes.interrupted] == list(ids)
        with pytest.raises(ResetNeededError, match=r"call reset\(\) to reconnect"):
            envs.step([0, 0])
        with pytest.raises(UnavailableError):
            envs.reset()
    finally:
        server.stop()
        envs.close()
        envs.close()


def test_a_server_that_comes_back_at_its_address(socket_dir: Any) -> None:
    address = f"unix://{socket_dir}/env.sock"
    envs = None
    with EnvServer([CountingEnv(9)], address) as server:
        envs = RemoteVectorEnv(server.address, on_failure="restart", autoreset_mode="SameStep")
        envs.reset()
        envs.step([0])
    with envs, EnvServer([CountingEnv(9, base=500.0)], address):
        observations, _, _, truncations, infos = envs.step([0])
        assert truncations.tolist() == [True]
        assert observations[:, 0].tolist() == [500.0]
        assert infos["final_obs"][0].tolist() == [1.0]
        assert infos["interrupted"].tolist() == [True]


def test_a_killed_child_is_started_anew() -> None:
    with RemoteVectorEnv(
        env_id="tests.fake_envs:RlmeshTest/Counting-v0",
        num_envs=2,
        on_failure="restart",
        workers=2,
    ) as envs:
        envs.reset()
        envs.step([1, 1])
        victim = envs._group.endpoints[1].source._child.process.pid  # type: ignore[attr-defined]
        os.kill(victim, signal.SIGKILL)
        _, rewards, _, truncations, _ = envs.step([2, 2])
        assert rewards.tolist() == [2.0, 0.0]
        assert truncations.tolist() == [False, True]
        observations, *_ = envs.step([1, 1])
        assert observations[:, 0].tolist() == [3.0, 0.0]


def test_a_killed_child_without_restart() -> None:
    with RemoteVectorEnv(
        env_id="tests.fake_envs:RlmeshTest/Counting-v0", num_envs=2, timeouts={"close": 1.0}
    ) as envs:
        envs.reset()
        os.kill(envs._group.endpoints[0].source._child.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError):
            envs.step([1, 1])
        assert np.array_equal(envs.reset()[0][:, 0], [0.0, 0.0])
        envs.step([1, 1])


def test_a_loss_in_a_partial_reset_tells_of_the_other_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP, on_failure="restart")
    with pair.envs as envs:
        envs.reset()
        envs.step([0] * 4)
        pair.session.fail_next = LOSSES[0]
        mask = np.array([False, False, True, False])
        observations, infos = envs.reset(options={"reset_mask": mask})
        assert observations[:, 0].tolist() == [1.0, 101.0, 200.0, 300.0]
        assert infos["interrupted"].tolist() == [False, False, False, True]


def test_a_loss_that_shows_when_sending_lets_the_others_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP, on_failure="restart")
    with pair.envs as envs:
        envs.reset()

        def step(*_: Any, **__: Any) -> Any:
            message = "the session has ended"
            raise ResetNeededError(message)

        first = pair.steady.sessions[0]
        monkeypatch.setattr(first, "step", step)
        observations, rewards, _, truncations, _ = envs.step([1, 2, 3, 4])
        assert observations[:, 0].tolist() == [0.0, 100.0, 201.0, 301.0]
        assert rewards.tolist() == [0.0, 0.0, 3.0, 4.0]
        assert truncations.tolist() == [True, True, False, False]


class RaisingEnv(CountingEnv):
    """Raises in every step but the first ``good`` ones of its life."""

    def __init__(self, good: int = 0) -> None:
        super().__init__(50)
        self.good = good

    def step(self, action: Any) -> Any:
        self.good -= 1
        if self.good < 0:
            raise ValueError("as always")
        return super().step(action)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_an_env_that_always_raises_is_given_up(mode: AutoresetMode) -> None:
    with (
        EnvServer([RaisingEnv(), RaisingEnv()]) as server,
        RemoteVectorEnv(
            server.address, autoreset_mode=mode, on_failure="restart", max_restarts=2
        ) as envs,
    ):
        cut: list[bool] = []

        def play() -> None:
            for _ in range(20):
                envs.reset()
                cut.append(bool(envs.step(np.zeros(2, np.int64))[3].all()))

        with pytest.raises(EnvError, match=r"given up after 2 restarts .* 1\. .* 3\. ") as raised:
            play()
        assert cut == [True, True]
        assert str(raised.value).count("as always") == 4
        assert len([record for record in envs.episodes if not record.interrupted]) == 0


class SlowToWakeEnv(CountingEnv):
    """Raises in its fifth step, and in the next ``bad`` resets after that."""

    def __init__(self, bad: int) -> None:
        super().__init__(50)
        self.bad = bad

    def reset(self, **options: Any) -> Any:
        if self.steps_taken >= 4 and self.bad:
            self.bad -= 1
            raise ValueError("not awake")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.steps_taken == 4:
            self.steps_taken += 1
            raise ValueError("asleep")
        return super().step(action)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("bad", [2, 5])
def test_an_env_that_fails_in_its_first_resets_comes_back_or_is_given_up(
    mode: AutoresetMode, bad: int
) -> None:
    with (
        EnvServer([SlowToWakeEnv(bad)]) as sick,
        EnvServer([CountingEnv(50)]) as well,
        RemoteVectorEnv(
            addresses=[sick.address, well.address], autoreset_mode=mode, on_failure="restart"
        ) as envs,
    ):
        envs.reset()
        seen: list[float] = []

        def play() -> None:
            for _ in range(9):
                observations, _, _, truncations, _ = envs.step(np.zeros(2, np.int64))
                seen.append(observations[1, 0])
                if mode is AutoresetMode.DISABLED and truncations.any():
                    envs.reset(options={"reset_mask": truncations})

        if bad == 2:
            play()
            assert [record.interrupted for record in envs.episodes] == [True]
        else:
            with pytest.raises(EnvError, match=r"given up after 3 restarts .* 1\. .* 4\. .*awake"):
                play()
        assert seen == [1.0 + step for step in range(len(seen))]


def test_a_step_in_between_counts_as_progress() -> None:
    made = []

    def make() -> RaisingEnv:
        made.append(RaisingEnv(good=1))
        return made[-1]

    with (
        EnvServer(make, max_sessions=2) as server,
        RemoteVectorEnv(
            server.address, autoreset_mode="SameStep", on_failure="restart", max_restarts=1
        ) as envs,
    ):
        envs.reset()
        flags = [bool(envs.step(np.zeros(1, np.int64))[3][0]) for _ in range(10)]
    assert flags == [False, True] * 5


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_restarts_that_cannot_be_counted(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_restarts"):
        rlmesh_gym.env.drive.recovery.Recovery(1.0, value)


def test_patience_lasts_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Time that passes in sleep only."""

        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    with EnvServer([CountingEnv(5)]) as server:
        envs = RemoteVectorEnv(
            server.address, autoreset_mode="NextStep", on_failure="restart", restart_patience=7.0
        )
        envs.reset()
    clock = Clock()
    monkeypatch.setattr(rlmesh_gym.env.drive.recovery, "time", clock)
    monkeypatch.setattr(rlmesh_gym.restarts, "time", clock)
    envs.step(np.zeros(1, np.int64))
    with pytest.raises(UnavailableError):
        envs.step(np.zeros(1, np.int64))
    assert clock.now == pytest.approx(7.0)
    envs.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_an_endpoint_that_stays_away_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode
) -> None:
    pair = Pair(monkeypatch, mode, on_failure="restart", restart_patience=0.01)
    with pair.envs as envs:
        envs.reset()
        envs.step([1] * 4)
        pair.session.fail_next = LOSSES[0]
        pair.shaky.refusals = 10**6
        observations, rewards, _, truncations, infos = envs.step([2] * 4)
        assert observations[:, 0].tolist() == [2.0, 102.0, 201.0, 301.0]
        assert rewards.tolist() == [2.0, 2.0, 0.0, 0.0]
        assert truncations.tolist() == [False, False, True, True]
        assert infos["interrupted"].tolist() == [False, False, True, True]
        if mode is AutoresetMode.DISABLED:
            with pytest.raises(UnavailableError):
                envs.reset(options={"reset_mask": truncations})
        else:
            for _ in range(2):
                with pytest.raises(UnavailableError, match="nobody there"):
                    envs.step([3] * 4)
        assert envs.episodes.total == 2
        pair.shaky.refusals = 0
        if mode is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": truncations})
        # Nothing was sent to the first two meanwhile.
        observations, rewards, *_ = envs.step([4] * 4)
        assert observations[:2, 0].tolist() == [3.0, 103.0]
        assert rewards[:2].tolist() == [4.0, 4.0]
        if mode is not AutoresetMode.DISABLED:
            assert observations[2:, 0].tolist() == [200.0, 300.0]
        assert envs.episodes.total == 2


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_without_restarts_the_others_results_are_handed_out_next(
    monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode
) -> None:
    pair = Pair(monkeypatch, mode)
    with pair.envs as envs:
        envs.reset()
        envs.step([1] * 4)
        pair.session.fail_next = LOSSES[0]
        with pytest.raises(UnavailableError, match=r"lanes \[0, 1\] moved on; the next step\(\) h"):
            envs.step([2] * 4)
        with pytest.raises(ResetNeededError, match=r"lost \(lanes \[2, 3\]\)"):
            envs.step([3] * 4)
        with pytest.raises(ResetNeededError, match=r"lanes \[0, 1\] .* moved on in a step"):
            envs.reset(options={"reset_mask": np.array([True, False, True, True])})
        mask = np.array([False, False, True, True])
        observations, _ = envs.reset(options={"reset_mask": mask})
        assert observations[:, 0].tolist() == [1.0, 101.0, 200.0, 300.0]
        observations, rewards, *_ = envs.step([4] * 4)
        assert observations[:, 0].tolist() == [2.0, 102.0, 201.0, 301.0]
        assert rewards.tolist() == [2.0, 2.0, 4.0, 4.0]
        observations, rewards, *_ = envs.step([5] * 4)
        assert observations[:, 0].tolist() == [3.0, 103.0, 202.0, 302.0]
        # A reset of all of their lanes takes their place.
        pair.session.fail_next = LOSSES[0]
        with pytest.raises(UnavailableError):
            envs.step([6] * 4)
        assert envs.reset()[0][:, 0].tolist() == [10.0, 110.0, 200.0, 300.0]
        assert envs.step([7] * 4)[0][:, 0].tolist() == [11.0, 111.0, 201.0, 301.0]


def test_an_end_that_is_handed_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.DISABLED)
    with pair.envs as envs:
        envs.reset()
        for _ in range(5):
            envs.step([1] * 4)
        pair.session.fail_next = EnvError("no", code="INVALID_ACTION", is_recoverable=True)
        with pytest.raises(EnvError):
            envs.step([1] * 4)
        _, _, terminations, _, infos = envs.step([1] * 4)
        assert terminations.tolist() == [True] * 4
        assert infos["t"].tolist() == [6] * 4
        assert envs.episodes.total == 4
        with pytest.raises(ResetNeededError):
            envs.step([1] * 4)


def test_a_reset_that_failed_elsewhere_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP)
    with pair.envs as envs:
        envs.reset()
        pair.session.fail_next = EnvError("no", code="INVALID_SEED", is_recoverable=True)
        with pytest.raises(EnvError, match=r"\(lanes \[0, 1\] were reset\)"):
            envs.reset()
        with pytest.raises(ResetNeededError, match=r"lanes \[0, 1\] were reset .* reset\(\) again"):
            envs.step([1] * 4)
        mask = np.array([False, False, True, True])
        observations, _ = envs.reset(options={"reset_mask": mask})
        assert observations[:, 0].tolist() == [10.0, 110.0, 210.0, 310.0]
        envs.step([1] * 4)


def rolling(lanes: int, base: float) -> list[CountingEnv]:
    """Make lanes, the first of which is over after two steps."""
    return [CountingEnv(9 if lane else 2, base=base + 100 * lane) for lane in range(lanes)]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_lane_lost_before_its_roll_ends_once(lanes: int, socket_dir: Any) -> None:
    address = f"unix://{socket_dir}/env.sock"
    with ExitStack() as stack:
        first_server = EnvServer(rolling(lanes, 1000.0), address)
        first_server.start()
        stack.callback(first_server.stop)
        remote = stack.enter_context(
            RemoteVectorEnv(address, autoreset_mode="NextStep", on_failure="restart")
        )
        envs = RecordEpisodeStatistics(remote)
        first = envs.reset()[0][0, 0]
        envs.step(np.zeros(lanes, np.int64))
        _, _, terminations, _, infos = envs.step(np.zeros(lanes, np.int64))
        assert terminations.tolist() == [True, False][:lanes]
        assert infos["episode"]["l"][0] == 2
        first_server.stop()
        stack.enter_context(EnvServer(rolling(lanes, 2000.0), address))
        observations, rewards, terminations, truncations, infos = envs.step(
            np.zeros(lanes, np.int64)
        )
        assert observations[0, 0] > first  # The first one of an episode that goes on.
        assert rewards.tolist() == [0.0] * lanes
        assert terminations.tolist() == [False] * lanes
        assert truncations.tolist() == [False, True][:lanes]
        if lanes == 2:  # A lone lane had nothing that was cut off.
            assert infos["interrupted"].tolist() == [True, True]
        episode = remote.episode_ids[0]
        if lanes == 2:
            assert infos["episode"]["l"].tolist() == [0, 3]  # The lost step counts there.
            assert observations[1, 0] < 2000.0  # The last that was really seen.
        _, _, terminations, truncations, infos = envs.step(np.zeros(lanes, np.int64))
        assert not truncations.any()
        assert not terminations.any()
        assert remote.episode_ids[0] == episode
        _, _, terminations, _, infos = envs.step(np.zeros(lanes, np.int64))
        assert terminations.tolist() == [True, False][:lanes]
        assert infos["episode"]["l"][0] == 2
        records = [(one.lane, one.length, one.interrupted) for one in remote.episodes]
        cut_off = [(1, 2, True)] if lanes == 2 else []
        assert records == [(0, 2, False), *cut_off, (0, 2, False)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_loss_right_after_an_end_counts_the_steps_before_it(
    monkeypatch: pytest.MonkeyPatch, mode: AutoresetMode
) -> None:
    pair = Pair(monkeypatch, mode, on_failure="restart", max_restarts=1)
    with pair.envs as envs:
        envs.reset()
        for _ in range(3):
            for _ in range(6):
                _, _, terminations, truncations, _ = envs.step([1] * 4)
            assert terminations.all()
            pair.session.fail_next = LOSSES[1]
            if mode is AutoresetMode.DISABLED:
                envs.reset()
            else:
                _, _, _, truncations, _ = envs.step([1] * 4)
                cut_off = mode is AutoresetMode.SAME_STEP
                assert truncations.tolist() == [False, False, cut_off, cut_off]
                envs.reset()


def test_what_a_render_loses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.SAME_STEP, on_failure="restart", max_restarts=2)
    with pair.envs as envs:
        envs.render_mode = "rgb_array"
        envs.reset()
        for _ in range(2):
            monkeypatch.setattr(pair.session, "render", lambda *_: Answer(None, LOSSES[1]))
            with pytest.raises(EnvError, match=r"broken$"):
                envs.render()
            envs.reset()
        monkeypatch.setattr(pair.session, "render", lambda *_: Answer(None, LOSSES[1]))
        with pytest.raises(EnvError, match="given up after 2 restarts"):
            envs.render()


def test_a_reset_lost_within_a_step_keeps_what_the_step_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> LocalSession:
        return LocalSession([partial(CountingEnv, 2), partial(CountingEnv, 9)])

    source = LocalSource(make)
    monkeypatch.setattr(rlmesh_gym.env.vector_env, "find_sources", lambda **_: [source])
    with RemoteVectorEnv(autoreset_mode="SameStep", on_failure="restart") as envs:
        envs.reset()
        envs.step([1, 1])
        session = source.sessions[-1]
        monkeypatch.setattr(session, "reset", lambda *_, **__: Answer(None, LOSSES[0]))
        observations, rewards, terminations, truncations, infos = envs.step([5, 7])
        assert rewards.tolist() == [5.0, 7.0]
        assert terminations.tolist() == [True, False]
        assert truncations.tolist() == [False, True]
        assert [value.tolist() for value in infos["final_obs"]] == [[2.0], [2.0]]
        assert infos["final_info"]["t"][0] == 2
        assert infos["final_info"]["interrupted"].tolist() == [False, True]
        assert observations[:, 0].tolist() == [0.0, 0.0]
        assert [(one.length, one.interrupted) for one in envs.episodes] == [(2, False), (2, True)]


def test_a_reset_that_was_never_sent_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch, AutoresetMode.NEXT_STEP)
    with pair.envs as envs:
        envs.reset()
        pair.session.fail_next = LOSSES[0]
        with pytest.raises(UnavailableError):
            envs.step([2] * 4)
        pair.shaky.refusals = 10**6
        with pytest.raises(UnavailableError):
            envs.reset()  # Where the second endpoint stays away, the first one is not sent to.
        pair.shaky.refusals = 0
        envs.reset(options={"reset_mask": np.array([False, False, True, True])})
        observations, rewards, *_ = envs.step([4] * 4)
        assert observations[:2, 0].tolist() == [1.0, 101.0]
        assert rewards.tolist() == [2.0, 2.0, 4.0, 4.0]
