"""Envs that are not thread-safe: lanes and sessions take turns, and each is rendered once."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError
from tests.env_wire import serving_raw
from tests.fake_envs import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 10.0


class Entries:
    """Counts who is inside, in whatever envs; those inside wait a moment for one more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.inside = self.most = 0

    def __enter__(self) -> None:
        with self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > 1, timeout=0.002)

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self.inside -= 1


class SharingEnv(CountingEnv):
    """As simulators do that keep state in their module."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        with entries:
            super().__init__(50, render_mode="rgb_array")

    def reset(self, **options: Any) -> Any:
        with self.entries:
            return super().reset(**options)

    def step(self, action: Any) -> Any:
        with self.entries:
            return super().step(action)

    def render(self) -> Any:
        with self.entries:
            return super().render()

    def close(self) -> None:
        with self.entries:
            super().close()


def _drive(client: Any) -> None:
    """Lane operations in flight together, then whole steps, renders and a close."""
    join = client.open()
    join.reset()
    for _ in range(5):
        for lane in range(3):
            join.send_step([1], lanes=[lane])
        for _ in range(3):
            join.take()
    for _ in range(5):
        join.step([1, 1, 1])
    join.send_reset(lanes=[1])
    join.send_step([1], lanes=[2])
    join.take()
    join.take()
    join.close()
    join.take_end()


def test_lanes_take_turns_by_default() -> None:
    entries = Entries()
    with serving_raw(lambda: [SharingEnv(entries) for _ in range(3)]) as client:
        _drive(client)
    assert entries.most == 1


def test_sessions_take_turns_by_default() -> None:
    entries = Entries()

    def build() -> list[SharingEnv]:
        return [SharingEnv(entries) for _ in range(3)]

    with serving_raw(build, max_sessions=3) as client:
        threads = [threading.Thread(target=_drive, args=(client,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT * 3)
            assert not thread.is_alive()
    assert entries.most == 1


def test_lanes_overlap_where_it_is_asked_for() -> None:
    entries = Entries()
    with serving_raw([SharingEnv(entries) for _ in range(3)], overlap=True) as client:
        _drive(client)
    assert entries.most > 1


def test_one_thread_and_overlap_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="choose one of them"):
        rg.EnvServer(CountingEnv, overlap=True, dedicated_thread=True)


def test_processes_wait_for_nobody() -> None:
    """Two sessions with lanes in processes: the second is served while the first is stepping."""
    gates: list[Any] = []

    class Slow(AsyncVectorEnv):
        def step(self, actions: Any) -> Any:
            if len(gates) == 2 and self is gates[0]:
                entered.set()
                assert release.wait(WAIT)
            return super().step(actions)

    def build() -> Slow:
        gates.append(Slow([CountingEnv], context="spawn"))
        return gates[-1]  # type: ignore[no-any-return]

    entered, release = threading.Event(), threading.Event()
    with serving_raw(build, max_sessions=2) as client:
        first, second = client.open(), client.open()
        first.reset()
        second.reset()
        first.send(client.step_request([1]))
        assert entered.wait(WAIT)
        second.step([1])
        release.set()
        first.take()


class MovingEnv(CountingEnv):
    """Its render changes its state, as LunarLander's does: particles age."""

    def __init__(self, lane: int = 0) -> None:
        super().__init__(50, render_mode="rgb_array")
        self.lane = lane
        self.rendered = 0

    def render(self) -> Any:
        self.rendered += 1
        return np.full((2, 2, 3), 10 * self.lane + self.rendered, np.uint8)


class NativeVector(VectorEnv[Any, Any, Any]):
    """Renders all lanes at once, and cannot do otherwise."""

    def __init__(self, lanes: list[MovingEnv]) -> None:
        self._envs = SyncVectorEnv([partial(lambda env: env, lane) for lane in lanes])
        self.num_envs = len(lanes)
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.observation_space = self._envs.observation_space
        self.action_space = self._envs.action_space
        self.metadata = self._envs.metadata
        self.render_mode = "rgb_array"

    def reset(self, **options: Any) -> Any:
        return self._envs.reset(**options)

    def step(self, actions: Any) -> Any:
        return self._envs.step(actions)

    def render(self) -> Any:
        return self._envs.render()


@pytest.mark.parametrize(
    "serve",
    [
        pytest.param(lambda lanes: lanes, id="list"),
        pytest.param(
            lambda lanes: SyncVectorEnv([partial(lambda env: env, lane) for lane in lanes]),
            id="vector",
        ),
        pytest.param(
            lambda lanes: RecordEpisodeStatistics(
                SyncVectorEnv([partial(lambda env: env, lane) for lane in lanes])
            ),
            id="wrapped",
        ),
        pytest.param(NativeVector, id="native"),
    ],
)
def test_each_env_is_rendered_once_per_render(serve: Callable[[Any], Any]) -> None:
    lanes = [MovingEnv(lane) for lane in range(4)]
    with rg.EnvServer(serve(lanes)) as server, rg.RemoteVectorEnv(server.address) as envs:
        envs.reset(seed=1)
        for count in (1, 2, 3):
            frames = envs.render()
            assert frames is not None
            assert [frame[0, 0, 0] for frame in frames] == [10 * n + count for n in range(4)]
            if count == 2:
                envs.step(np.ones(4, np.int64))
    assert [lane.rendered for lane in lanes] == [3, 3, 3, 3]


def test_car_racing_has_the_pixels_of_a_local_vector() -> None:
    pytest.importorskip("Box2D")
    make = partial(gym.make, "CarRacing-v3")
    local = SyncVectorEnv([make] * 3)
    with (
        rg.EnvServer([make() for _ in range(3)]) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode="NextStep") as envs,
    ):
        local.reset(seed=123)
        envs.reset(seed=123)
        local.action_space.seed(1)
        for _ in range(12):
            actions = local.action_space.sample()
            np.testing.assert_array_equal(local.step(actions)[0], envs.step(actions)[0])
    local.close()


@pytest.mark.parametrize("as_vector", [False, True])
def test_lunar_lander_shows_the_frames_of_a_local_vector(as_vector: bool) -> None:
    pytest.importorskip("Box2D")
    make = partial(gym.make, "LunarLander-v3", render_mode="rgb_array")
    local = SyncVectorEnv([make] * 3)
    served: Any = SyncVectorEnv([make] * 3) if as_vector else [make() for _ in range(3)]
    with rg.EnvServer(served) as server, rg.RemoteVectorEnv(server.address) as envs:
        local.reset(seed=1)
        envs.reset(seed=1)
        for _ in range(5):
            local.step(np.full(3, 2))
            envs.step(np.full(3, 2))
            for one, other in zip(local.render() or (), envs.render() or (), strict=True):
                np.testing.assert_array_equal(one, other)
    local.close()


class WhereEnv(CountingEnv):
    """Notes the threads that it is made, called and closed on."""

    seen: list[threading.Thread] = []  # noqa: RUF012 - of all of them

    def __init__(self) -> None:
        super().__init__()
        self.seen.append(threading.current_thread())

    def reset(self, **options: Any) -> Any:
        self.seen.append(threading.current_thread())
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.seen.append(threading.current_thread())
        return super().step(action)

    def close(self) -> None:
        self.seen.append(threading.current_thread())
        super().close()


@pytest.mark.parametrize("ends", ["stop", "with"])
def test_the_main_thread_runs_the_env_while_it_waits(ends: str) -> None:
    WhereEnv.seen.clear()
    server = rg.EnvServer(lambda: [WhereEnv(), WhereEnv()], thread="main", max_sessions=2)
    server.start()
    with pytest.raises(ConfigurationError, match="takes no timeout"):
        server.wait(1.0)

    def play() -> None:
        for _ in range(2):
            with rg.RemoteVectorEnv(server.address) as envs:
                envs.reset()
                envs.step([1, 1])
        server.stop()

    player = threading.Thread(target=play)
    player.start()
    if ends == "stop":
        assert server.wait()
    else:
        server.serve()
    server.stop()
    player.join(10)
    assert not player.is_alive()
    assert len(WhereEnv.seen) == 16
    assert set(WhereEnv.seen) == {threading.main_thread()}


def test_a_server_of_the_main_thread_is_made_there() -> None:
    with pytest.raises(ConfigurationError, match="allows one"):
        rg.EnvServer(CountingEnv, thread="main", overlap=True)
    with pytest.raises(ConfigurationError, match="'any', 'own' or 'main'"):
        rg.EnvServer(CountingEnv, thread="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="dedicated_thread=True is thread='own'"):
        rg.EnvServer(CountingEnv, thread="any", dedicated_thread=True)
    raised: list[BaseException] = []

    def make() -> None:
        try:
            rg.EnvServer(CountingEnv, thread="main")
        except ConfigurationError as error:
            raised.append(error)

    maker = threading.Thread(target=make)
    maker.start()
    maker.join(10)
    assert "must be made on the main thread" in str(raised[0])
