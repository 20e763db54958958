"""The bare socket between an embedded server and its parent behaves as the gRPC call does."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlmesh_gym._proto.env.v1 import interaction_pb2 as pb
from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import (
    AuthenticationError,
    ProtocolError,
    ResetNeededError,
    SessionRefusedError,
    UnavailableError,
)
from rlmesh_gym.rpc import EnvServiceCallbacks, EnvSession, GrpcHost, Refused
from rlmesh_gym.rpc.client.link import MESSAGE, TOKEN, LinkCall, send_frame
from rlmesh_gym.rpc.host.silence import Patience
from rlmesh_gym.rpc.status import error_from_status
from tests.rpc.raw_endpoints import ACTION, env_answer, env_handshake, env_join, env_shutdown

WAIT = 20.0


@contextmanager
def hosting(tmp_path: Path, join: Any = env_join, token: str = "") -> Iterator[tuple[Any, Any]]:
    host = GrpcHost(EnvServiceCallbacks(env_handshake, join, env_shutdown), token=token)
    address = host.start()
    link = str(tmp_path / "link")
    host.open_link(link)

    def connect(**options: Any) -> EnvSession:
        return EnvSession.open(address, token=token, link=link, **options)

    try:
        yield host, connect
    finally:
        host.stop()


def test_a_session_over_a_link(tmp_path: Path) -> None:
    with hosting(tmp_path) as (_, connect):
        with connect() as session:
            session.reset().result(WAIT)
            pendings = [session.step(ACTION) for _ in range(20)]
            rewards = [pending.result(WAIT).rewards[0] for pending in pendings]
            assert rewards == list(range(1, 21))
        with connect() as session:
            session.reset().result(WAIT)
        assert oct(os.stat(tmp_path / "link").st_mode & 0o777) == oct(0o600)
    assert not (tmp_path / "link").exists()


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_001])
def test_messages_of_any_size_both_ways(tmp_path: Path, size: int) -> None:
    def echo(requests: Iterator[pb.JoinRequest], _: Any) -> Iterator[pb.JoinResponse]:
        for request in requests:
            answer = env_answer(request)
            if request.HasField("step"):
                answer.step.observation.CopyFrom(request.step.action)
            yield answer

    value = value_pb2.SpaceValue(leaves=[bytes(range(256)) * (size // 256) + b"x" * (size % 256)])
    with hosting(tmp_path, echo) as (_, connect), connect() as session:
        session.reset().result(WAIT)
        for _ in range(3):
            assert session.step(value).result(WAIT).observation == value


def test_sending_does_not_wait_for_a_busy_server(tmp_path: Path) -> None:
    go_on = threading.Event()

    def join(requests: Iterator[pb.JoinRequest], _: Any) -> Iterator[pb.JoinResponse]:
        for request in requests:
            if request.HasField("step"):
                go_on.wait(WAIT)
            yield env_answer(request, float(len(request.step.action.leaves)))

    value = value_pb2.SpaceValue(leaves=[bytes(2_000_000)])
    with hosting(tmp_path, join) as (_, connect), connect() as session:
        session.reset().result(WAIT)
        pendings = [session.step(value) for _ in range(4)]
        assert not any(pending.done() for pending in pendings)
        go_on.set()
        assert [pending.result(WAIT).rewards[0] for pending in pendings] == [1.0] * 4


def test_statuses_come_across(tmp_path: Path) -> None:
    def refusing(_requests: Any, _: Any) -> Iterator[pb.JoinResponse]:
        raise Refused("FAILED_PRECONDITION", "environment already has an active Join session")
        yield

    with hosting(tmp_path, refusing) as (_, connect):
        session = connect(timeouts={"connect": 0.1})
        with pytest.raises(SessionRefusedError, match="already has an active"):
            session.reset().result(WAIT)
        session.close()


def test_a_failing_server_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(requests: Any, _: Any) -> Iterator[pb.JoinResponse]:
        next(requests)
        raise ValueError("broken inside")
        yield

    with (
        hosting(tmp_path, failing) as (_, connect),
        connect() as session,
        pytest.raises(ProtocolError, match="ValueError: broken inside"),
    ):
        session.reset().result(WAIT)
    assert "a call over a link failed" in caplog.text


def test_a_stopped_server_ends_the_call_and_a_reset_tries_anew(tmp_path: Path) -> None:
    with hosting(tmp_path) as (host, connect), connect() as session:
        session.reset().result(WAIT)
        stream = session._connection.stream
        assert stream is not None
        host.stop()
        assert stream.wait_ended(WAIT)
        with pytest.raises(ResetNeededError):
            session.step(ACTION)
        with pytest.raises(UnavailableError):
            session.reset().result(WAIT)


def test_the_token_is_asked_for(tmp_path: Path) -> None:
    with hosting(tmp_path, token="secret") as (_, connect):
        with connect() as session:
            session.reset().result(WAIT)
        call = LinkCall(str(tmp_path / "link"), "wrong", lambda _: None)
        assert list(call) == []
        assert call.code().name == "UNAUTHENTICATED"
    with pytest.raises(AuthenticationError):
        raise_status(call)


def raise_status(call: LinkCall) -> None:
    raise error_from_status(
        call.code(), call.details(), endpoint="x", operation="reset", kind="env"
    )


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\2" + b"\xff" * 8])
def test_garbage_ends_only_its_own_connection(tmp_path: Path, garbage: bytes) -> None:
    with hosting(tmp_path) as (_, connect):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(tmp_path / "link"))
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(WAIT)
            while sock.recv(1000):
                pass
        with connect() as session:
            session.reset().result(WAIT)


def test_bytes_that_make_no_request_are_refused(tmp_path: Path) -> None:
    with hosting(tmp_path) as _:
        call = LinkCall(str(tmp_path / "link"), None, lambda _: None)
        call.put(b"\xff\xff\xff")
        assert list(call) == []
        assert call.code().name == "INVALID_ARGUMENT"


def test_a_client_that_vanishes_is_noticed(tmp_path: Path) -> None:
    gone, begun = threading.Event(), threading.Event()
    peers = []

    def join(requests: Iterator[pb.JoinRequest], peer: Any) -> Iterator[pb.JoinResponse]:
        peer.on_disconnect(gone.set)
        peers.append(peer)
        begun.set()
        yield from map(env_answer, requests)

    with hosting(tmp_path, join):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(tmp_path / "link"))
        send_frame(sock, TOKEN, b"")
        assert begun.wait(WAIT)
        assert peers[0].is_active()
        send_frame(sock, MESSAGE, pb.JoinRequest(request_id="1").SerializeToString()[:1])
        sock.close()
        assert gone.wait(WAIT)
        assert not peers[0].is_active()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("says_the_token", [False, True])
def test_who_says_nothing_on_a_link_is_sent_away(tmp_path: Path, says_the_token: bool) -> None:
    callbacks = EnvServiceCallbacks(env_handshake, env_join, env_shutdown)
    host = GrpcHost(callbacks, patience=Patience(client=0.2))
    host.start()
    host.open_link(str(tmp_path / "link"))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.settimeout(WAIT)
            silent.connect(str(tmp_path / "link"))
            if says_the_token:
                send_frame(silent, TOKEN, b"")
            said = b"".join(iter(lambda: silent.recv(1024), b""))
        assert (b"UNAUTHENTICATED" in said) is not says_the_token
    finally:
        host.stop()
