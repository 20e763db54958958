"""The life of both servers: one suite, since there is one life."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import (
    AuthenticationError,
    ConfigurationError,
    RemoteError,
    StateError,
    UnavailableError,
    UnsupportedCallError,
)
from rlmesh_gym.rpc import EnvSession, ModelSession
from tests.fake_envs import CountingEnv
from tests.model_client import Client, EchoHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT = 20.0


class Gate:
    """Lets a call of what is served wait, and tells of its close."""

    def __init__(self) -> None:
        self.entered, self.release, self.closed = (threading.Event() for _ in range(3))
        self.blocks = False
        self.closes = 0
        self.on_close: Callable[[], None] = lambda: None
        self.on_call: Callable[[], None] = lambda: None

    def call(self) -> None:
        self.on_call()
        if self.blocks:
            self.entered.set()
            assert self.release.wait(WAIT)

    def close(self) -> None:
        assert not self.blocks or not self.entered.is_set() or self.release.is_set()
        self.closes += 1
        try:
            self.on_close()
        finally:
            self.closed.set()


class GatedEnv(CountingEnv):
    def __init__(self, gate: Gate) -> None:
        super().__init__(50)
        self.gate = gate

    def step(self, action: Any) -> Any:
        self.gate.call()
        return super().step(action)

    def close(self) -> None:
        self.gate.close()


class GatedHandler(EchoHandler):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def predict(self, observation: rg.ModelObservation) -> Any:
        self.gate.call()
        return super().predict(observation)

    def on_close(self) -> None:
        self.gate.close()


@dataclass
class Caller:
    """A client of one of the servers."""

    begin: Callable[[], Any]
    session: EnvSession | ModelSession


@dataclass
class Kind:
    """One of the two servers, with what the suite needs to know of it."""

    name: str
    options: dict[str, Any]

    def make(self, gate: Gate, address: str | None = "127.0.0.1:0", **options: Any) -> Any:
        options = {**self.options, **options}
        if self.name == "model":
            return rg.ModelServer(GatedHandler(gate), address, **options)
        return rg.EnvServer(GatedEnv(gate), address, **options)

    @contextmanager
    def caller(self, server: Any, token: str | None = None) -> Iterator[Caller]:
        """A client that has made its first call."""
        if self.name == "model":
            with ModelSession.open(server.address, token=token) as model:
                client = Client(model)
                client.resolve()
                yield Caller(lambda: client.begin({"a": 1}), model)
            return
        from rlmesh_gym.codec import SpaceCodec

        with EnvSession.open(server.address, token=token) as env:
            codec = SpaceCodec(CountingEnv(5).action_space)
            env.reset().result(WAIT)
            action = codec.encode(codec.flatten_row(1), 1)
            yield Caller(lambda: env.step(action), env)


KINDS = [
    Kind("env", {}),
    Kind("env", {"dedicated_thread": True}),
    Kind("env", {"overlap": True}),
    Kind("model", {}),
]


@pytest.fixture(params=KINDS, ids=["env", "env on one thread", "env with overlap", "model"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def test_start_and_stop(kind: Kind) -> None:
    gate = Gate()
    server = kind.make(gate)
    assert "not started" in repr(server)
    with pytest.raises(StateError, match="before start"):
        _ = server.address
    address = server.start()
    assert server.start() == server.address == address
    assert address.startswith("tcp://127.0.0.1:")
    assert address in repr(server)
    with kind.caller(server) as caller:
        caller.begin().result(WAIT)
    assert not server.wait(0)
    server.stop()
    server.stop()
    assert server.wait(0)
    assert gate.closes == 1
    assert "stopped" in repr(server)
    with pytest.raises(StateError, match="make a new one"):
        server.start()
    with pytest.raises(UnavailableError):
        type(caller.session).open(address, timeouts=1.0)


def test_the_default_address_is_a_free_port_of_this_machine(kind: Kind) -> None:
    served = GatedHandler(Gate()) if kind.name == "model" else GatedEnv(Gate())
    kinds: dict[str, Any] = {"model": rg.ModelServer, "env": rg.EnvServer}
    with kinds[kind.name](served, **kind.options) as server:
        assert server.address.startswith("tcp://127.0.0.1:")
    with kind.make(Gate(), None) as server:
        assert server.address.startswith("tcp://127.0.0.1:")


def test_unix_sockets(kind: Kind, socket_dir: Path) -> None:
    path = socket_dir / "with space.sock"
    with kind.make(Gate(), f"unix://{path}") as server, kind.caller(server) as caller:
        caller.begin().result(WAIT)
    assert not path.exists()


def test_stopping_what_never_started_closes_it(kind: Kind) -> None:
    gate = Gate()
    server = kind.make(gate)
    server.stop()
    server.stop()
    assert server.wait(0)
    assert gate.closes == 1


def test_a_start_that_fails_closes_what_is_served(kind: Kind) -> None:
    gate = Gate()
    with kind.make(Gate()) as server:
        other = kind.make(gate, server.address)
        with pytest.raises(ConfigurationError, match="in use"):
            other.start()
    assert other.wait(0)
    assert gate.closes == 1
    with pytest.raises(StateError):
        other.start()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"idle_timeout": 0}, "idle_timeout must be a number above 0, got 0"),
        ({"idle_timeout": "3"}, "idle_timeout must be a number above 0, got '3'"),
        ({"idle_timeout": True}, "idle_timeout"),
        ({"drain_timeout": "x"}, "drain_timeout must be a number of at least 0, got 'x'"),
        ({"drain_timeout": -1}, "drain_timeout must be a number of at least 0, got -1"),
        ({"close_timeout": None}, "close_timeout must be a number of at least 0, got None"),
        ({"close_timeout": float("nan")}, "close_timeout"),
        ({"address": "http://x:1"}, "http"),
    ],
)
def test_options_that_cannot_work(kind: Kind, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        kind.make(Gate(), **options)
    assert says in str(refused.value)


@pytest.mark.parametrize("count", [0, "2", 1.5, None, True])
def test_counts_that_cannot_work(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_sessions must be a whole number of at least"):
        rg.EnvServer(CountingEnv, max_sessions=count)
    with pytest.raises(ConfigurationError, match="max_adapters must be a whole number of at least"):
        rg.ModelServer(EchoHandler(), max_adapters=count)


def test_numbers_of_numpy_are_numbers(kind: Kind) -> None:
    kind.make(Gate(), drain_timeout=np.float32(1), close_timeout=np.int64(2)).stop()


def test_a_drain_that_cannot_work_stops_nothing(kind: Kind) -> None:
    with kind.make(Gate()) as server:
        with pytest.raises(ConfigurationError, match="drain must be a number"):
            server.stop("x")
        assert not server.wait(0)


def test_a_server_cannot_be_copied(kind: Kind) -> None:
    server = kind.make(Gate())
    for duplicate in (pickle.dumps, copy.copy):
        with pytest.raises(UnsupportedCallError, match="pickle what it serves"):
            duplicate(server)
    server.stop()


def test_wait_and_serve_return_when_all_is_closed(kind: Kind) -> None:
    gate, proceed, closing = Gate(), threading.Event(), threading.Event()

    def linger() -> None:
        closing.set()
        assert proceed.wait(WAIT)

    gate.on_close = linger
    server = kind.make(gate, allow_remote_shutdown=True, close_timeout=WAIT, drain_timeout=0.1)
    server.start()
    thread = threading.Thread(target=server.serve)
    thread.start()
    with kind.caller(server) as caller:
        assert caller.session.request_shutdown("done") == (True, "shutdown accepted: done")
        assert closing.wait(WAIT)
        assert not server.wait(0.02)
        assert thread.is_alive()
        proceed.set()
        assert server.wait(WAIT)
    thread.join(WAIT)
    assert not thread.is_alive()
    assert gate.closes == 1


def test_stop_does_not_wait_for_ever_and_closes_afterwards(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    gate.blocks = True
    server = kind.make(gate, close_timeout=0.05)
    server.start()
    with kind.caller(server) as caller:
        pending = caller.begin()
        assert gate.entered.wait(WAIT)
        server.stop()
        with pytest.raises(RemoteError):
            pending.result(WAIT)
    assert "still at work" in caplog.text
    assert gate.closes == 0
    gate.release.set()
    assert gate.closed.wait(WAIT)
    assert gate.closes == 1


def test_draining_lets_what_is_at_work_finish(kind: Kind) -> None:
    gate = Gate()
    gate.blocks = True
    server = kind.make(gate)
    server.start()
    with kind.caller(server) as caller:
        pending = caller.begin()
        assert gate.entered.wait(WAIT)
        stopper = threading.Thread(target=server.stop, kwargs={"drain": WAIT})
        stopper.start()
        gate.release.set()
        pending.result(WAIT)
        caller.session.close()
        stopper.join(WAIT)
        assert not stopper.is_alive()
    assert gate.closes == 1


@pytest.mark.parametrize("started", [True, False], ids=["started", "never started"])
def test_what_is_served_may_stop_its_server_while_it_is_closed(kind: Kind, started: bool) -> None:
    gate = Gate()
    server = kind.make(gate, close_timeout=WAIT)
    gate.on_close = server.stop
    if started:
        server.start()
    stopper = threading.Thread(target=server.stop, daemon=True)
    stopper.start()
    stopper.join(WAIT / 2)  # Less than a stop that waits for itself.
    assert not stopper.is_alive()
    assert server.wait(WAIT)
    assert gate.closes == 1


def test_what_is_served_may_stop_its_server_in_the_middle_of_a_call(kind: Kind) -> None:
    gate = Gate()
    server = kind.make(gate, close_timeout=WAIT)
    gate.on_call = server.stop
    server.start()
    with kind.caller(server) as caller:
        caller.begin()
        assert server.wait(WAIT)
    assert gate.closes == 1


def test_a_close_that_fails_is_logged(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("already unplugged")

    for started in (True, False):
        caplog.clear()
        gate = Gate()
        gate.on_close = fail
        server = kind.make(gate)
        if started:
            server.start()
        server.stop()
        assert server.wait(0)
        assert "already unplugged" in caplog.text


def test_remote_shutdown_is_refused_unless_allowed(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "model" if kind.name == "model" else "environment"
    with kind.make(Gate()) as server, kind.caller(server) as caller:
        assert caller.session.request_shutdown("please") == (
            False,
            f"remote shutdown is disabled for this {what} endpoint",
        )
    monkeypatch.setenv("RLMESH_ALLOW_REMOTE_SHUTDOWN", "True")
    gate = Gate()
    with kind.make(gate) as server, kind.caller(server) as caller:
        assert caller.session.request_shutdown("") == (True, "shutdown accepted")
        caller.session.close()
        assert server.wait(WAIT)
        assert gate.closes == 1


def test_an_idle_server_stops_and_one_at_work_does_not(kind: Kind) -> None:
    gate = Gate()
    gate.blocks = True
    with kind.make(gate, idle_timeout=1.5) as server, kind.caller(server) as caller:
        pending = caller.begin()
        assert gate.entered.wait(WAIT)
        assert server._idle_seconds() == 0, "a call is at work"
        gate.release.set()
        pending.result(WAIT)
        assert server.wait(WAIT)
    assert gate.closes == 1


def test_a_token_is_asked_of_everyone(kind: Kind) -> None:
    with kind.make(Gate(), token="secret") as server:
        assert "secret" not in repr(server)
        with kind.caller(server, "secret") as caller:
            caller.begin().result(WAIT)
            session = type(caller.session)
        with pytest.raises(AuthenticationError):
            session.open(server.address, token="wrong")


def test_health_checks_are_answered(kind: Kind) -> None:
    with kind.make(Gate()) as server:
        channel = grpc.insecure_channel(server.address.removeprefix("tcp://"))
        with channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=WAIT) == b"\x08\x01"  # SERVING


def test_stop_by_several_threads_closes_once(kind: Kind) -> None:
    gate = Gate()
    server = kind.make(gate)
    server.start()
    stoppers = [threading.Thread(target=server.stop) for _ in range(5)]
    for stopper in stoppers:
        stopper.start()
    for stopper in stoppers:
        stopper.join(WAIT)
        assert not stopper.is_alive()
    assert gate.closes == 1
