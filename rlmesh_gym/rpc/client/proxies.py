"""Proxies: which one gRPC would go through, by its own rules, and when none may be in the way."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlmesh_gym.rpc.address import Address


_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def is_own_machine(address: Address) -> bool:
    """Whether an address is this machine's own, by its form or name; nothing is looked up."""
    if address.is_loopback:
        return True
    try:
        return ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        own = socket.gethostname().lower()
        return address.host.lower() in {own, own.partition(".")[0], f"{own}.local"}


def proxy_of(address: Address) -> str:
    """Return the proxy between here and an address, without its password; empty for none."""
    proxy = next((value for name in _VARIABLES if (value := os.environ.get(name))), "")
    if not proxy or is_own_machine(address):
        return ""
    exceptions = next((value for name in _EXCEPTIONS if (value := os.environ.get(name))), "")
    suffixes = [part.strip() for part in exceptions.split(",") if part.strip()]
    if any(address.host.lower().endswith(suffix.lower()) for suffix in suffixes):
        return ""
    scheme, separator, rest = proxy.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]
