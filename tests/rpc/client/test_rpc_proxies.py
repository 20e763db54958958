"""No proxy is between this machine and itself; one that fails is named."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc.address import parse_address
from rlmesh_gym.rpc.client.proxies import is_own_machine, proxy_of
from tests.fake_envs import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

# gRPC reads the surroundings itself, so this is a process of its own.
CONNECT = """
import sys, rlmesh_gym, rlmesh_gym.errors
for address in sys.argv[1:]:
    try:
        with rlmesh_gym.RemoteEnv(address, timeouts={"connect": 20}) as env:
            env.reset()
            print("reached")
    except rlmesh_gym.errors.UnavailableError as error:
        print(error)
"""


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def proxy() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_this_machine_is_reached_and_a_proxy_is_named(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:hidden@{proxy}")
    with rg.EnvServer(CountingEnv(3), "0.0.0.0:0", insecure=True) as server:
        port = server.address.rpartition(":")[2]
        own = [f"127.0.0.1:{port}", f"localhost:{port}", f"0.0.0.0:{port}"]
        said = subprocess.run(
            [sys.executable, "-c", CONNECT, *own, "192.0.2.1:5555"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    *reached, refused = said.splitlines()
    assert reached == ["reached"] * 3
    assert f"through the proxy http://{proxy} (" in refused
    assert "403" in refused
    assert "add 192.0.2.1 to no_proxy" in refused
    assert "hidden" not in refused


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]"])
def test_own_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert is_own_machine(parse_address(f"{host}:5555"))
    assert proxy_of(parse_address(f"{host}:5555")) == ""


def test_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7.cluster")
    for name in ("node7", "node7.cluster"):
        assert is_own_machine(parse_address(f"{name}:5555"))
    assert not is_own_machine(parse_address("node8:5555"))


def test_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    far = parse_address("far.example:5555")
    assert proxy_of(far) == ""
    monkeypatch.setenv("http_proxy", "http://first:1")
    assert proxy_of(far) == "http://first:1"
    monkeypatch.setenv("grpc_proxy", "second:2")
    assert proxy_of(far) == "second:2"
    monkeypatch.setenv("no_proxy", "other, .example")
    assert proxy_of(far) == ""


@pytest.mark.parametrize("host", ["my..host", ".", "a" * 64 + ".b"])
def test_a_name_that_is_none(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no name of a host"):
        rg.RemoteEnv(f"{host}:5555")
