"""What users type as an address, and what gRPC wants to see. Pure text; opens nothing."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from rlmesh_gym.errors import ConfigurationError

_MAX_UNIX_PATH = 107  # bytes; sockaddr_un holds 108 with the closing NUL
_MAX_PORT = 65535
_FORMS = "host:port, tcp://host:port or unix:///path"


@dataclass(frozen=True, slots=True)
class Address:
    """One address, parsed."""

    kind: Literal["tcp", "unix"]
    target: str  # For gRPC.
    display: str  # For people, and for another client to connect to.
    host: str = ""  # Without brackets.
    port: int = 0  # Also where the system may choose.
    path: str = ""  # Absolute.

    @property
    def is_loopback(self) -> bool:
        """Whether traffic stays on this machine, so that no proxy may be in the way."""
        if self.kind == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def with_port(self, port: int) -> Address:
        """Return the same TCP address with the port that the system chose."""
        return _tcp(self.host, port)


def parse_address(text: str) -> Address:
    """Parse the address of an endpoint to connect to.

    It is ``host:port``, ``tcp://host:port``, ``http://host:port``, ``unix:///absolute/path`` or
    ``unix://relative/path``. IPv6 hosts stand in brackets.

    Raises:
        ConfigurationError: Anything else; the message says which form would do.
    """
    scheme, rest = _split(text)
    if scheme == "unix":
        return _unix(rest, text)
    if scheme == "http":
        rest = rest.rstrip("/")
    host, port = _host_and_port(rest, text)
    if not host:
        raise ConfigurationError(f"address {text!r} has no host; write {_FORMS}")
    if port == 0:
        raise ConfigurationError(f"address {text!r}: port 0 is for servers; name the port")
    return _tcp(host, port)


def parse_bind_address(text: str | None) -> Address:
    """Parse the address that a server is to listen on.

    Like :func:`parse_address`, also ``port`` and ``:port``, which mean 127.0.0.1 as ``localhost``
    does; port 0 lets the system choose; ``None`` is ``127.0.0.1:0``.

    Raises:
        ConfigurationError: Anything else; the message says which form would do.
    """
    if text is None:
        return _tcp("127.0.0.1", 0)
    scheme, rest = _split(text)
    if scheme == "unix":
        return _unix(rest, text)
    if scheme == "http":
        raise ConfigurationError(f"address {text!r}: a server listens on {_FORMS}, not on http://")
    if not scheme and rest.isascii() and rest.isdigit():
        rest = f":{rest}"
    host, port = _host_and_port(rest, text)
    return _tcp("127.0.0.1" if host in {"", "localhost"} else host, port)


def _split(text: str) -> tuple[str, str]:
    if not isinstance(text, str):
        raise ConfigurationError(f"an address must be a str such as {_FORMS}, got {text!r}")
    if not text or text != text.strip() or "\0" in text:
        raise ConfigurationError(f"address {text!r} is empty or badly spaced; write {_FORMS}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        if text.startswith("unix:"):
            raise ConfigurationError(f"address {text!r}: write unix:// with two slashes")
        return "", text
    scheme = scheme.lower()
    if scheme == "https":
        raise ConfigurationError(f"address {text!r}: write host:port and tls=True for TLS")
    if scheme not in {"tcp", "http", "unix"}:
        raise ConfigurationError(f"address {text!r} has an unknown scheme; write {_FORMS}")
    return scheme, rest


def _host_and_port(rest: str, text: str) -> tuple[str, int]:
    host, separator, port_text = rest.rpartition(":")
    if not separator or host.endswith(":") or (host.startswith("[") != host.endswith("]")):
        raise ConfigurationError(f"address {text!r} has no port; write {_FORMS}")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > _MAX_PORT:
        raise ConfigurationError(f"address {text!r}: the port must be 0 to {_MAX_PORT}")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ConfigurationError(f"address {text!r}: {error}") from None
    elif ":" in host:
        raise ConfigurationError(f"address {text!r}: write an IPv6 host in brackets, [::1]:5555")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigurationError(f"address {text!r}: {host!r} is no name of a host") from None
    if any(character in "/?#@\\ " for character in host):
        raise ConfigurationError(f"address {text!r} is not host:port; write {_FORMS}")
    return host, int(port_text)


def _tcp(host: str, port: int) -> Address:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Address(kind="tcp", target=authority, display=f"tcp://{authority}", host=host, port=port)


def _unix(rest: str, text: str) -> Address:
    if not rest or rest.endswith("/"):
        raise ConfigurationError(f"address {text!r} names no socket file")
    path = os.path.abspath(rest)
    size = len(os.fsencode(path))
    if size > _MAX_UNIX_PATH:
        raise ConfigurationError(
            f"address {text!r}: the socket path {path!r} has {size} bytes, the system's limit is "
            f"{_MAX_UNIX_PATH}; use a shorter directory such as one under /tmp"
        )
    # gRPC reads a target as a URI, so spaces and the like must be escaped there, and only there.
    return Address(
        kind="unix", target=f"unix:{quote(os.fsencode(path))}", display=f"unix://{path}", path=path
    )
