"""Clients that are stopped or ask for nothing give their place away, and others keep it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError, RemoteError, ResetNeededError
from rlmesh_gym.rpc import EnvSession
from tests.env_wire import raw_client
from tests.fake_envs import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 30.0

OURS = """
import sys, rlmesh_gym
with rlmesh_gym.RemoteEnv(sys.argv[1]) as env:
    env.reset()
    print("up", flush=True)
    sys.stdin.readline()
    env.step(0)
    print("stepped", flush=True)
"""
RELEASED = """
import sys, rlmesh
env = rlmesh.RemoteEnv(sys.argv[1])
env.reset(seed=1)
print("up", flush=True)
sys.stdin.readline()
env.step(0)
print("stepped", flush=True)
"""


class ClosingEnv(CountingEnv):
    """Says when it is closed, as it is when its session ends; its steps wait for ``slow``."""

    def __init__(self, closed: threading.Event, slow: threading.Event | None = None) -> None:
        super().__init__(50)
        self.closed, self.slow = closed, slow

    def step(self, action: Any) -> Any:
        if self.slow is not None:
            self.slow.wait(WAIT)
        return super().step(action)

    def close(self) -> None:
        self.closed.set()


class LoudEnv(ClosingEnv):
    """Has a megabyte to say about each step."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "loud": bytes(2**20)}


@contextmanager
def served(
    kind: type[ClosingEnv] = ClosingEnv, **options: Any
) -> Iterator[tuple[str, threading.Event]]:
    """An env for each session, which is closed when the session is over."""
    closed = threading.Event()
    with rg.EnvServer(lambda: kind(closed), max_sessions=2, **options) as server:
        closed.clear()
        yield server.address, closed


@contextmanager
def child(code: str, address: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RLMESH_WORKFLOW_EDITION": "2026.06"},
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("tcp", OURS),
        ("unix", OURS),
        pytest.param("tcp", RELEASED, marks=pytest.mark.interop),
    ],
    ids=["tcp", "unix", "released"],
)
def test_a_stopped_client_gives_its_place_away(kind: str, code: str, socket_dir: Any) -> None:
    address = None if kind == "tcp" else f"unix://{socket_dir}/env.sock"
    with (
        served(address=address, client_timeout=1.5) as (where, closed),
        child(code, where) as process,
    ):
        assert not closed.is_set()
        process.send_signal(signal.SIGSTOP)
        assert closed.wait(WAIT)
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "code", [OURS, pytest.param(RELEASED, marks=pytest.mark.interop)], ids=["ours", "released"]
)
def test_an_idle_client_keeps_its_place(code: str) -> None:
    with served(client_timeout=0.6) as (where, closed), child(code, where) as process:
        assert not closed.wait(2.5)  # That it is kept shows in no event.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stepped\n"


@pytest.mark.parametrize(
    "code", [OURS, pytest.param(RELEASED, marks=pytest.mark.interop)], ids=["ours", "released"]
)
def test_a_client_that_waits_for_a_long_step_keeps_its_place(code: str) -> None:
    closed, slow = threading.Event(), threading.Event()
    env = ClosingEnv(closed, slow)
    with (
        rg.EnvServer(env, client_timeout=0.6, session_timeout=0.6) as server,
        child(code, server.address) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert not slow.wait(2.5)
        slow.set()
        assert process.stdout.readline() == "stepped\n"


def test_a_session_without_a_first_request_is_ended() -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(WAIT)
        yield from ()

    with (
        served(client_timeout=0.5) as (where, closed),
        grpc.insecure_channel(where.removeprefix("tcp://")) as channel,
    ):
        join: Any = channel.stream_stream("/rlmesh.env.v1.EnvService/Join")
        call = join(nothing())
        assert closed.wait(WAIT)
        with pytest.raises(grpc.RpcError) as raised:
            next(call)
        assert raised.value.code() is grpc.StatusCode.CANCELLED
        over.set()


def test_a_session_without_further_requests_is_ended_where_that_is_asked_for() -> None:
    with served(session_timeout=0.5) as (where, closed), EnvSession.open(where) as session:
        session.reset().result(WAIT)
        assert closed.wait(WAIT)
        with pytest.raises((RemoteError, ResetNeededError)):
            session.render().result(WAIT)
    with rg.EnvServer(CountingEnv()) as server, rg.RemoteEnv(server.address) as env:
        env.reset()
        env.step(0)


def test_a_session_whose_answers_nobody_reads_is_ended_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        served(LoudEnv, session_timeout=0.5) as (where, closed),
        raw_client(where) as client,
    ):
        steps = [client.step_request([1]) for _ in range(100)]  # More than flow control lets by.
        call = client.join(iter([client.reset_request(), *steps]))
        next(call)
        assert closed.wait(WAIT)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        assert raised.value.code() is grpc.StatusCode.CANCELLED
    assert "it reads no answer for 0.5 s" in caplog.text


@pytest.mark.parametrize("name", ["client_timeout", "session_timeout"])
@pytest.mark.parametrize("value", [0, -1, "x", float("nan")])
def test_timeouts_that_cannot_work(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigurationError, match=name):
        rg.EnvServer(CountingEnv(), **options)
    with pytest.raises(ConfigurationError, match=name):
        rg.ModelServer(lambda observation: observation, **options)


@pytest.mark.timeout(60)
def test_streams_without_a_token_keep_nobody_out() -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(WAIT)
        yield from ()

    with rg.EnvServer(CountingEnv(50), token="t") as server:
        target = server.address.removeprefix("tcp://")
        with grpc.insecure_channel(target) as channel:
            join: Any = channel.stream_stream("/rlmesh.env.v1.EnvService/Join")
            calls = [join(nothing()) for _ in range(50)]
            try:
                codes = {call.code() for call in calls}  # Waits until each is refused.
                assert codes == {grpc.StatusCode.UNAUTHENTICATED}
                with rg.RemoteEnv(server.address, token="t") as env:
                    env.reset()
                    env.step(0)
            finally:
                over.set()
