"""Addresses and settings: what is taken, what is refused, and with which words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc import Timeouts, TLSConfig, parse_address, parse_bind_address, resolve_token


@pytest.mark.parametrize(
    ("text", "display", "target"),
    [
        ("127.0.0.1:5555", "tcp://127.0.0.1:5555", "127.0.0.1:5555"),
        ("example.org:80", "tcp://example.org:80", "example.org:80"),
        ("tcp://host:1", "tcp://host:1", "host:1"),
        ("TCP://host:1", "tcp://host:1", "host:1"),
        ("http://host:1", "tcp://host:1", "host:1"),
        ("http://host:1/", "tcp://host:1", "host:1"),
        ("[::1]:5555", "tcp://[::1]:5555", "[::1]:5555"),
        ("unix:///tmp/a b.sock", "unix:///tmp/a b.sock", "unix:/tmp/a%20b.sock"),
        ("unix:///tmp/50%?#ü", "unix:///tmp/50%?#ü", "unix:/tmp/50%25%3F%23%C3%BC"),
    ],
)
def test_connect(text: str, display: str, target: str) -> None:
    address = parse_address(text)
    assert (address.display, address.target) == (display, target)
    assert parse_address(address.display) == address


def test_relative_socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert parse_address("unix://x/../y.sock").display == "unix:///tmp/y.sock"
    assert parse_bind_address("unix://y.sock").path == "/tmp/y.sock"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" host:1", "badly spaced"),
        ("5555", "no port"),
        (":5555", "no host"),
        ("host", "no port"),
        ("host:", "port must be"),
        ("host:x", "port must be"),
        ("host:65536", "0 to 65535"),
        ("host:0", "port 0 is for servers"),
        ("host:-1", "port must be"),
        ("https://host:1", "tls=True"),
        ("ftp://host:1", "unknown scheme"),
        ("unix:/tmp/x", "two slashes"),
        ("unix:x", "two slashes"),
        ("unix://", "no socket file"),
        ("unix:///tmp/", "no socket file"),
        ("::1:5555", "brackets"),
        ("[::1:5555", "no port"),
        ("[zz]:5555", "zz"),
        ("host/path:1", "is not host:port"),
        ("unix:///tmp/nul\0byte", "badly spaced"),
    ],
)
def test_connect_refuses(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_address(text)


def test_not_text() -> None:
    with pytest.raises(ConfigurationError, match="an address must be a str"):
        parse_address(5555)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "display"),
    [
        (None, "tcp://127.0.0.1:0"),
        ("6192", "tcp://127.0.0.1:6192"),
        (":6195", "tcp://127.0.0.1:6195"),
        ("localhost:7", "tcp://127.0.0.1:7"),
        ("tcp://localhost:7", "tcp://127.0.0.1:7"),
        ("0.0.0.0:0", "tcp://0.0.0.0:0"),
        ("[::1]:0", "tcp://[::1]:0"),
        ("unix:///tmp/s", "unix:///tmp/s"),
    ],
)
def test_bind(text: str | None, display: str) -> None:
    assert parse_bind_address(text).display == display


@pytest.mark.parametrize("text", ["", "http://h:1", "https://h:1", "unix:x", "h:65536", "tcp://h"])
def test_bind_refuses(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_bind_address(text)


def test_socket_path_limit() -> None:
    longest = "/tmp/" + "x" * (107 - 5)
    assert parse_address(f"unix://{longest}").path == longest
    with pytest.raises(ConfigurationError, match=r"108 bytes.*limit is 107.*/tmp"):
        parse_bind_address(f"unix://{longest}x")
    with pytest.raises(ConfigurationError, match="limit"):
        parse_address("unix:///tmp/" + "ü" * 60)  # Bytes count, not characters.


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.3.2.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:///tmp/s", True),
        ("10.0.0.1:1", False),
        ("example.org:1", False),
    ],
)
def test_loopback(text: str, *, is_loopback: bool) -> None:
    assert parse_address(text).is_loopback is is_loopback


def test_timeouts() -> None:
    assert Timeouts.from_value(None) == Timeouts()
    assert Timeouts.from_value({"step": 1, "close": None}) == Timeouts(step=1, close=None)
    one = Timeouts.from_value(2.5)
    assert (one.reset, one.step, one.render, one.predict, one.resolve) == (2.5,) * 5
    assert (one.connect, one.close) == (Timeouts().connect, Timeouts().close)
    assert Timeouts.from_value(one) is one
    assert Timeouts(step=float("inf"), connect=1e12) == Timeouts(step=None, connect=None)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True, "3"])
def test_timeouts_refuse(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"timeouts\.step"):
        Timeouts(step=value)


def test_unknown_timeout() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown timeouts stepp; there are close, connect"
    ):
        Timeouts.from_value({"stepp": 1.0})


def test_tls_settings(tmp_path: Path) -> None:
    assert TLSConfig.from_value(None) is None
    assert TLSConfig.from_value(False) is None
    assert TLSConfig.from_value(True) == TLSConfig()
    config = TLSConfig.from_value({"root_certificates": tmp_path / "none.pem"})
    assert config is not None
    with pytest.raises(ConfigurationError, match=r"cannot read root_certificates .*No such file"):
        config.read("root_certificates")
    assert config.read("private_key") is None
    with pytest.raises(ConfigurationError, match="come as a pair"):
        TLSConfig(private_key="x")
    with pytest.raises(ConfigurationError, match="unknown tls settings cert"):
        TLSConfig.from_value({"cert": "x"})
    with pytest.raises(ConfigurationError, match="tls must be"):
        TLSConfig.from_value("x")  # type: ignore[arg-type]


def test_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_token(None) is None
    assert resolve_token("") is None
    assert resolve_token("abc") == "abc"
    monkeypatch.setenv("RLMESH_GYM_TOKEN", "from-outside")
    assert resolve_token(None) == "from-outside"
    assert resolve_token("abc") == "abc"
    assert resolve_token("") is None


@pytest.mark.parametrize("token", ["a\nb", "ü", " edge", "nul\0"])
def test_token_that_metadata_cannot_carry(token: str) -> None:
    with pytest.raises(ConfigurationError, match="printable ASCII") as raised:
        resolve_token(token)
    assert token not in str(raised.value)


def test_path_objects_are_no_addresses() -> None:
    with pytest.raises(ConfigurationError):
        parse_address(Path(os.sep))  # type: ignore[arg-type]
