"""What a peer sends never costs much more memory than the bytes that it sent, and none unasked."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from rlmesh_gym.codec.spaces.limits import max_message_bytes
from rlmesh_gym.errors import ConfigurationError, ProtocolError
from rlmesh_gym.rpc import EnvServiceCallbacks, EnvSession, GrpcHost
from rlmesh_gym.rpc.client.link import MESSAGE, STATUS, TOKEN, read_frame, send_frame
from tests.rpc.raw_endpoints import ACTION, env_handshake, env_join, env_shutdown

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 30.0
MIB = 1024 * 1024
MOST = 64 * MIB
"""Above rest, in any of these cases."""

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
SERVER = (
    PEAK
    + """
import sys, gymnasium, rlmesh_gym
with rlmesh_gym.EnvServer(gymnasium.make("CartPole-v1"), token=sys.argv[1]) as server:
    rest = peak()
    print(server.address, flush=True)
    sys.stdin.readline()
    print(peak() - rest, flush=True)
"""
)
CLIENT = (
    PEAK
    + """
import sys, rlmesh_gym, rlmesh_gym.errors
rest = peak()
try:
    rlmesh_gym.RemoteEnv(sys.argv[1])
except rlmesh_gym.errors.RemoteError as error:
    print(type(error).__name__, peak() - rest, flush=True)
"""
)

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@needs_proc
@pytest.mark.parametrize("method", ["env.v1.EnvService/Handshake", "env.v1.EnvService/Shutdown"])
@pytest.mark.parametrize(
    ("compression", "size", "token", "code"),
    [
        (grpc.Compression.Gzip, 200 * MIB, "secret", grpc.StatusCode.UNIMPLEMENTED),
        (grpc.Compression.Gzip, 200 * MIB, "", grpc.StatusCode.UNIMPLEMENTED),
        (grpc.Compression.NoCompression, 200 * MIB, "secret", grpc.StatusCode.UNAUTHENTICATED),
        (grpc.Compression.NoCompression, 17 * MIB, "", grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["compressed", "compressed, no token asked for", "large", "large, no token asked for"],
)
def test_a_server_does_not_unfold_or_read_what_nobody_may_send(
    method: str, compression: Any, size: int, token: str, code: grpc.StatusCode
) -> None:
    with child(SERVER, token) as server:
        target = said(server).removeprefix("tcp://")
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(target, options, compression=compression) as channel:
            call: Any = channel.unary_unary(f"/rlmesh.{method}")
            with pytest.raises(grpc.RpcError) as raised:
                call(bytes(size), timeout=WAIT)
            assert raised.value.code() is code
        assert server.stdin is not None
        server.stdin.write("\n")
        server.stdin.flush()
        assert int(said(server)) < MOST


@needs_proc
@pytest.mark.parametrize(
    "compression",
    [grpc.Compression.Gzip, grpc.Compression.NoCompression],
    ids=["compressed", "large"],
)
def test_a_client_takes_no_huge_handshake(compression: Any) -> None:
    server = grpc.server(
        futures.ThreadPoolExecutor(1),
        compression=compression,
        options=[("grpc.max_send_message_length", -1)],
    )
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: bytes(200 * MIB))
    service = {"Handshake": handler}
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("rlmesh.env.v1.EnvService", service)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with child(CLIENT, f"127.0.0.1:{port}") as client:
            name, grown = said(client).split()
        assert name in {"ProtocolError", "UnavailableError"}
        assert int(grown) < MOST
    finally:
        server.stop(0).wait()


def test_the_limit_of_a_session_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_message_bytes() == 256 * MIB
    monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", "1000000")
    assert max_message_bytes() == 1_000_000
    monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", str(2**40))
    assert max_message_bytes() == 2**31 - 1
    for wrong in ("0", "-1", "1e6", "many"):
        monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", wrong)
        with pytest.raises(ConfigurationError, match="RLMESH_GYM_MAX_MESSAGE_BYTES"):
            max_message_bytes()


def large_answers(requests: Any, peer: Any) -> Any:
    for answer in env_join(requests, peer):
        answer.reset.observation.leaves.append(bytes(20_000))
        yield answer


@pytest.mark.parametrize("is_linked", [False, True], ids=["gRPC", "link"])
def test_a_larger_answer_is_an_error_that_says_so(
    is_linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", "10000")
    host = GrpcHost(EnvServiceCallbacks(env_handshake, large_answers, env_shutdown))
    address, link = host.start(), str(tmp_path / "link")
    host.open_link(link)
    try:
        with (
            EnvSession.open(address, link=link if is_linked else None) as session,
            pytest.raises(ProtocolError, match=r"larger than .*10000"),
        ):
            session.reset().result(WAIT)
    finally:
        host.stop()


def test_a_link_reads_no_frame_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", "10000")
    host = GrpcHost(EnvServiceCallbacks(env_handshake, env_join, env_shutdown))
    host.start()
    link = str(tmp_path / "link")
    host.open_link(link)
    try:
        for frames, status in (
            ([(TOKEN, bytes(100_000))], b"UNAUTHENTICATED"),
            ([(TOKEN, b""), (MESSAGE, bytes(20_000))], b"RESOURCE_EXHAUSTED"),
        ):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(link)
                for kind, payload in frames:
                    send_frame(client, kind, payload)
                with client.makefile("rb") as stream:
                    got = read_frame(stream, MIB)
                assert got is not None
                assert got[0] == STATUS
                assert got[1].startswith(status)
    finally:
        host.stop()


def test_a_link_that_cannot_be_taken_in_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2

    class ShortOfFiles(socket.socket):
        def accept(self) -> Any:
            if failures:
                raise failures.pop()
            return super().accept()

    monkeypatch.setattr("rlmesh_gym.rpc.host.link_serving.socket.socket", ShortOfFiles)
    host = GrpcHost(EnvServiceCallbacks(env_handshake, env_join, env_shutdown))
    address = host.start()
    link = str(tmp_path / "link")
    host.open_link(link)
    monkeypatch.undo()
    try:
        with EnvSession.open(address, link=link) as session:
            session.reset().result(WAIT)
            session.step(ACTION).result(WAIT)
        assert not failures
    finally:
        host.stop()
