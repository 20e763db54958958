"""Connecting: what answers at an address, tokens, TLS, editions; and what is said about it."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rlmesh_gym._proto.env.v1 import service_pb2
from rlmesh_gym.codec import encode_contract
from rlmesh_gym.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    ProtocolError,
    UnavailableError,
)
from rlmesh_gym.rpc import EnvSession, ModelSession, answer_handshake
from tests.rpc.raw_endpoints import ACTION, CONTRACT, env_host, model_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 10.0
SECRET = "s3cret-token"


@pytest.fixture
def http_address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *arguments: Any) -> None:
            pass  # gRPC hangs up on it in mid-answer.

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("session", [EnvSession, ModelSession])
def test_nothing_listens(session: Any, free_address: str) -> None:
    with pytest.raises(UnavailableError, match=r"nothing listens there \(.*refused\); start") as e:
        session.open(free_address, timeouts={"connect": 600.0})  # Found out without waiting for it.
    assert e.value.endpoint == free_address
    assert str(e.value).startswith(free_address)
    assert isinstance(e.value, ConnectionError)


def test_no_socket_file(socket_dir: Path) -> None:
    with pytest.raises(UnavailableError, match=r"nothing listens there .*No such file"):
        EnvSession.open(f"unix://{socket_dir}/none.sock")


def test_unknown_host() -> None:
    with pytest.raises(UnavailableError, match="nothing listens there"):
        EnvSession.open("no-such-host.invalid:1", timeouts={"connect": 5.0})


@pytest.mark.parametrize("session", [EnvSession, ModelSession])
def test_http_server_listens(session: Any, http_address: str) -> None:
    with pytest.raises(UnavailableError, match="an HTTP server listens there, not a gRPC") as e:
        session.open(http_address)
    assert str(e.value).startswith(http_address)


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            for _ in range(2):  # To gRPC, and to the look at what is there.
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.0\r\n")
                    connection.recv(64)

        thread = threading.Thread(target=talk)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="not a gRPC server, or one that asks for TLS"):
            EnvSession.open(address)
        thread.join()


def test_silent_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DeadlineError, match=r"within 0.3 s.*timeouts.connect") as e:
            EnvSession.open(address, timeouts={"connect": 0.3, "close": 600.0})
        assert address in str(e.value)


def test_slow_handshake() -> None:
    release = threading.Event()

    def handshake(request: Any) -> Any:
        release.wait(WAIT)
        return service_pb2.HandshakeResponse(base=answer_handshake(request.base, "env"))

    with env_host(handshake=handshake) as address:
        with pytest.raises(DeadlineError, match="no answer to the handshake"):
            EnvSession.open(address, timeouts={"connect": 0.2})
        release.set()


@pytest.mark.parametrize("token", [None, SECRET])
def test_wrong_kind_of_endpoint(token: str | None) -> None:
    with (
        model_host(token=token) as address,
        pytest.raises(ProtocolError, match=r"a model endpoint where an env .*RemotePolicy") as e,
    ):
        EnvSession.open(address)
    assert str(e.value).startswith(address)
    with (
        env_host(token=token) as address,
        pytest.raises(ProtocolError, match=r"an env endpoint where a model .*RemoteVectorEnv"),
    ):
        ModelSession.open(address)


def test_other_generation() -> None:
    def handshake(request: Any) -> Any:
        request.base.protocol_generation = "rlmesh-wire-v9"
        return service_pb2.HandshakeResponse(base=answer_handshake(request.base, "env"))

    with (
        env_host(handshake=handshake) as address,
        pytest.raises(ProtocolError, match="rlmesh-wire-v1: protocol generation 'rlmesh-wire-v9'"),
    ):
        EnvSession.open(address)


def test_no_common_edition() -> None:
    def handshake(request: Any) -> Any:
        base = answer_handshake(request.base, "env")
        base.supported_workflow_editions[:] = ["2031.01"]
        return service_pb2.HandshakeResponse(base=base, env_contract=encode_contract(CONTRACT))

    with (
        env_host(handshake=handshake) as address,
        pytest.raises(ProtocolError, match=r"speaks 2026.06, the endpoint offers 2031.01"),
    ):
        EnvSession.open(address)


def test_contract_missing_or_unreadable() -> None:
    response = service_pb2.HandshakeResponse()

    def handshake(request: Any) -> Any:
        response.base.CopyFrom(answer_handshake(request.base, "env"))
        return response

    with env_host(handshake=handshake) as address:
        with pytest.raises(ProtocolError, match="without a contract"):
            EnvSession.open(address)
        response.env_contract.spec.id = "Empty-v0"
        with pytest.raises(ProtocolError, match="the contract cannot be read"):
            EnvSession.open(address)


def test_what_the_handshake_tells() -> None:
    seen = []

    def handshake(request: Any) -> Any:
        seen.append(request.base)
        base = answer_handshake(request.base, "env", ["subset_step"])
        base.capabilities["x"] = "1"
        return service_pb2.HandshakeResponse(base=base, env_contract=encode_contract(CONTRACT))

    with env_host(handshake=handshake) as address, EnvSession.open(address) as session:
        assert session.contract.env_id == "Scripted-v0"
        assert session.contract.num_envs == 2
        assert session.capabilities == {"subset_step": "true", "x": "1"}
        assert session.has_lane_operations
        assert session.has_partial_reset
        assert session.peer.language == "python"
        assert session.endpoint == address
        assert 0 < session.ping() < 5
        assert session.request_shutdown("bored") == (False, "not today")
        assert "Scripted-v0" in repr(session)
    assert len(seen) == 2
    assert seen[0].protocol_generation == "rlmesh-wire-v1"
    assert list(seen[0].supported_workflow_editions) == ["2026.06"]
    assert seen[0].peer_info.framework_versions["gymnasium"]


def test_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with env_host(token=SECRET) as address:
        for wrong in (None, "other", SECRET + "x"):
            with pytest.raises(
                AuthenticationError, match=r"invalid env token.*RLMESH_GYM_TOKEN"
            ) as e:
                EnvSession.open(address, token=wrong)
            assert SECRET not in str(e.value)
            assert wrong is None or wrong not in str(e.value)
        with EnvSession.open(address, token=SECRET) as session:
            session.reset().result(WAIT)
            session.request_shutdown()
            assert SECRET not in repr(session)
            assert SECRET not in repr(vars(session))
        monkeypatch.setenv("RLMESH_GYM_TOKEN", SECRET)
        EnvSession.open(address).close()


def test_token_is_checked_on_every_call() -> None:
    with env_host(token=SECRET) as address, EnvSession.open(address, token=SECRET) as session:
        session._connection._metadata = ()
        with pytest.raises(AuthenticationError, match="reset: the endpoint refused the token"):
            session.reset().result(WAIT)
        with pytest.raises(AuthenticationError):
            session.request_shutdown()
    with (
        model_host(token=SECRET) as address,
        pytest.raises(AuthenticationError, match="model token"),
    ):
        ModelSession.open(address)


def test_proxies_are_not_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    monkeypatch.setenv("grpc_proxy", "http://192.0.2.1:9")
    with env_host() as address:
        EnvSession.open(address, timeouts={"connect": 5.0}).close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with the openssl program")
    directory = tmp_path_factory.mktemp("tls")
    key, chain = directory / "key.pem", directory / "chain.pem"
    command = (
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -keyout {key} -out {chain} -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return {"private_key": str(key), "certificate_chain": str(chain)}


def test_tls(certificate: dict[str, str]) -> None:
    roots = {"root_certificates": certificate["certificate_chain"]}
    with env_host(tls=certificate, token=SECRET) as address:
        port = address.rpartition(":")[2]
        with EnvSession.open(f"localhost:{port}", tls=roots, token=SECRET) as session:
            session.reset().result(WAIT)
            session.step(ACTION).result(WAIT)
        named = {**roots, "server_name": "localhost"}
        EnvSession.open(address, tls=named, token=SECRET).close()
        with pytest.raises(UnavailableError, match="the TLS connection failed"):
            EnvSession.open(f"localhost:{port}", tls=True, token=SECRET)
        with pytest.raises(UnavailableError, match=r"or one that asks for TLS.*pass tls="):
            EnvSession.open(address, token=SECRET)


def test_tls_over_a_unix_socket(certificate: dict[str, str], socket_dir: Path) -> None:
    roots = {"root_certificates": certificate["certificate_chain"]}
    with env_host(address=f"unix://{socket_dir}/t.sock", tls=certificate) as address:
        EnvSession.open(address, tls=roots).close()


def test_mutual_tls(certificate: dict[str, str]) -> None:
    roots = {"root_certificates": certificate["certificate_chain"]}
    with env_host(tls={**certificate, **roots}) as address:
        server_name = {"server_name": "localhost"}
        EnvSession.open(address, tls={**roots, **certificate, **server_name}).close()
        with pytest.raises(UnavailableError):
            EnvSession.open(address, tls={**roots, **server_name})


def test_tls_server_without_a_certificate() -> None:
    with pytest.raises(ConfigurationError, match="needs certificate_chain"), env_host(tls=True):
        pass


def test_a_server_with_a_useless_certificate(certificate: dict[str, str]) -> None:
    useless = {**certificate, "certificate_chain": __file__}
    with (
        pytest.raises(ConfigurationError, match="certificate cannot be used"),
        env_host(tls=useless),
    ):
        pass
