"""The server host: addresses that are taken, many clients, garbage, stopping."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from rlmesh_gym.errors import ConfigurationError, StateError, UnavailableError
from rlmesh_gym.rpc import EnvServiceCallbacks, EnvSession, GrpcHost, JoinPeer
from tests.rpc.raw_endpoints import (
    ACTION,
    env_answer,
    env_handshake,
    env_host,
    env_join,
    env_shutdown,
    model_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 10.0


def raw_channel(address: str) -> Any:
    """Return a channel without any of this package's options, for bytes as they are."""
    return grpc.insecure_channel(address.removeprefix("tcp://"))


def test_tcp_address_in_use() -> None:
    with (
        env_host() as address,
        pytest.raises(ConfigurationError, match="address in use") as raised,
        env_host(address=address),
    ):
        pass
    assert address in str(raised.value)
    with env_host(address=address) as again:  # Free again once the first has stopped.
        assert again == address


def test_tcp_address_that_cannot_be_bound() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"cannot listen on tcp://192.0.2.1:5: .*assign"),
        env_host(address="192.0.2.1:5", token="t"),
    ):
        pass


def test_host_name_that_nobody_has() -> None:
    with (
        pytest.raises(ConfigurationError, match="cannot listen on tcp://no-such-host"),
        env_host(address="no-such-host.invalid:5", token="t"),
    ):
        pass


def test_unix_address_in_use(socket_dir: Path) -> None:
    address = f"unix://{socket_dir}/a b.sock"
    with (
        env_host(address=address),
        pytest.raises(ConfigurationError, match=r"a b.sock: address in use"),
        env_host(address=address),
    ):
        pass
    assert not (socket_dir / "a b.sock").exists()


def test_socket_file_of_a_dead_server_is_replaced(socket_dir: Path) -> None:
    path = socket_dir / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with env_host(address=f"unix://{path}") as address:
        EnvSession.open(address).close()


def test_other_files_are_left_alone(socket_dir: Path) -> None:
    path = socket_dir / "notes.txt"
    path.write_text("precious")
    with (
        pytest.raises(ConfigurationError, match="a file that is not a socket"),
        env_host(address=f"unix://{path}"),
    ):
        pass
    assert path.read_text() == "precious"


def test_missing_directory(socket_dir: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"there is no directory .*deep"),
        env_host(address=f"unix://{socket_dir}/deep/s.sock"),
    ):
        pass


def test_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with env_host(address="[::1]:0") as address:
        assert address.startswith("tcp://[::1]:")
        EnvSession.open(address).close()


def test_many_sessions_and_handshakes_are_always_answered() -> None:
    inside = threading.Semaphore(0)
    release = threading.Event()

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("reset"):
                inside.release()
                release.wait()
            yield env_answer(request)

    with env_host(join) as address:
        sessions = [EnvSession.open(address) for _ in range(64)]
        pendings = [session.reset() for session in sessions]
        for _ in sessions:
            assert inside.acquire(timeout=WAIT)
        EnvSession.open(address).close()  # Though no session is answered before release.
        release.set()
        for pending in pendings:
            pending.result(WAIT)
        for session in sessions:
            session.close()


@pytest.mark.parametrize("host", [env_host, model_host])
def test_garbage_ends_only_its_own_session(host: Any) -> None:
    service = "rlmesh.env.v1.EnvService" if host is env_host else "rlmesh.model.v1.ModelService"
    with host() as address, raw_channel(address) as channel:
        for method in ("Handshake", "Shutdown"):
            for data in (b"\xff\xff", b""):
                with pytest.raises(grpc.RpcError) as raised:
                    channel.unary_unary(f"/{service}/{method}")(data, timeout=WAIT)
                assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as raised:
            list(channel.stream_stream(f"/{service}/Join")(iter([b"\xff\xff"]), timeout=WAIT))
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        if host is env_host:
            EnvSession.open(address).close()


def test_headers_come_before_the_first_request() -> None:
    with env_host() as address, raw_channel(address) as channel:
        silent = threading.Event()

        def nothing() -> Iterator[bytes]:
            silent.wait(WAIT)
            yield from ()

        call = channel.stream_stream("/rlmesh.env.v1.EnvService/Join")(nothing(), timeout=WAIT)
        assert call.initial_metadata() is not None
        silent.set()
        assert list(call) == []


def test_pings_are_no_attack() -> None:
    """Other clients ping idle connections; gRPC's default answer to that is to hang up."""
    ping = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    settings = b"\0\0\0\x04\0\0\0\0\0"
    with env_host() as address:
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), WAIT) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
            stream = connection.makefile("rb")
            for _ in range(20):
                connection.sendall(ping)
                is_acknowledged = False
                while not is_acknowledged:
                    header = stream.read(9)
                    assert len(header) == 9, "the server hung up"
                    stream.read(int.from_bytes(header[:3], "big"))
                    kind, flags = header[3], header[4]
                    assert kind != 7, "the server said GOAWAY"
                    is_acknowledged = kind == 6 and flags == 1


def test_health_checks_are_answered() -> None:
    for host in (model_host, env_host):
        with host() as address, raw_channel(address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=WAIT) == b"\x08\x01"  # SERVING


def test_a_callback_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    def handshake(request: Any) -> Any:
        raise ZeroDivisionError("in the handshake")

    with (
        env_host(handshake=handshake) as address,
        pytest.raises(Exception, match="INTERNAL: ZeroDivisionError: in the handshake"),
    ):
        EnvSession.open(address)
    assert "a call from" in caplog.text

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                raise ZeroDivisionError("in the session")
            yield env_answer(request)

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        with pytest.raises(Exception, match="INTERNAL: ZeroDivisionError: in the session"):
            session.step(ACTION).result(WAIT)


def test_a_session_ends_when_its_client_is_gone() -> None:
    left, told = threading.Event(), threading.Event()
    peers = []

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        peers.append(peer)
        peer.on_disconnect(told.set)
        try:
            for request in requests:
                assert peer.is_active()
                yield env_answer(request)
        finally:  # Either the requests have ended, or nobody takes an answer any more.
            left.set()

    with env_host(join) as address:
        session = EnvSession.open(address)
        session.reset().result(WAIT)
        session._connection.abandon()
        assert left.wait(WAIT)
        assert told.wait(WAIT)
        assert not peers[0].is_active()
        late = threading.Event()
        peers[0].on_disconnect(late.set)  # Too late to be told, so it is told at once.
        assert late.is_set()


def test_large_messages_both_ways() -> None:
    size = 40 * 2**20

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = env_answer(request)
            if request.HasField("step"):
                del response.step.observation.leaves[:]
                response.step.observation.leaves.append(request.step.action.leaves[0])
            yield response.SerializeToString()  # Bytes pass as they are.

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        action = type(ACTION)(leaves=[b"x" * size])
        answer = session.step(action).result(60)
        assert len(answer.observation.leaves[0]) == size


def test_stop() -> None:
    callbacks = EnvServiceCallbacks(env_handshake, env_join, env_shutdown)
    host = GrpcHost(callbacks)
    assert host.address is None
    address = host.start()
    assert host.address == address
    with pytest.raises(StateError):
        host.start()
    host.stop(0.1)
    host.stop()
    with pytest.raises(UnavailableError, match="nothing listens"):
        EnvSession.open(address)
    with pytest.raises(StateError):
        host.start()


def test_stop_gives_running_calls_their_grace() -> None:
    arrived, release = threading.Event(), threading.Event()

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                arrived.set()
                release.wait(WAIT)
            yield env_answer(request)
            if request.HasField("step"):
                return

    host = GrpcHost(EnvServiceCallbacks(env_handshake, join, env_shutdown))
    session = EnvSession.open(host.start())
    session.reset().result(WAIT)
    pending = session.step(ACTION)
    assert arrived.wait(WAIT)
    stopping = threading.Thread(target=host.stop, args=(WAIT,))
    stopping.start()
    release.set()
    pending.result(WAIT)
    stopping.join(WAIT)
    assert not stopping.is_alive()
    session.close()
