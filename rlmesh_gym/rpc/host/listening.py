"""Claiming an address before gRPC binds it, and saying why it could not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.rpc.address import Address


_IN_USE = "address in use by another server"
_BAD_CERTIFICATE = (
    "the certificate cannot be used; tls: check that certificate_chain and private_key are PEM "
    "files that belong together"
)
_PROBE_SECONDS = 1.0
_UMASK_LOCK = threading.Lock()
"""The umask is that of the whole process; two that change it must not restore each other's."""


def claim(address: Address) -> None:
    """Make sure that an address is free, since gRPC itself does not say why it could not bind it.

    Of a Unix socket, the file that a dead server has left is removed. gRPC would remove any socket
    file in its way, also that of a server that still runs.
    """
    if address.kind == "unix":
        reason = _why_not_claimed(address.path)
    else:
        reason = _why_not_bound(address) if address.port else ""
    if reason:
        raise _cannot_listen(address, reason)


@contextlib.contextmanager
def private_socket(path: str) -> Iterator[None]:
    """Within this, bind a Unix socket at ``path``: at no moment may anybody else connect to it.

    A file that another thread makes meanwhile is private to this user as well.
    """
    with _UMASK_LOCK:
        before = os.umask(0o077)
        try:
            yield
        finally:
            os.umask(before)
        os.chmod(path, 0o600)


def explain_bind_failure(address: Address, *, uses_tls: bool) -> ConfigurationError:
    """Return the error for an address that gRPC could not bind."""
    reason = _why_not_bound(address) if address.kind == "tcp" else ""
    if not reason:
        reason = _BAD_CERTIFICATE if uses_tls else "the address cannot be bound"
    return _cannot_listen(address, reason)


def _cannot_listen(address: Address, reason: str) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {address.display}: {reason}")


def _why_not_claimed(path: str) -> str:
    """Return why no server may listen at ``path``, clear of what a dead one has left."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        directory = os.path.dirname(path)
        return "" if os.path.isdir(directory) else f"there is no directory {directory!r}"
    if not stat.S_ISSOCK(mode):
        return "the path is a file that is not a socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return ""
        except OSError as error:
            return error.strerror or str(error)
    return _IN_USE


def _why_not_bound(address: Address) -> str:
    """Return why no socket can be bound to ``address``; empty where one can."""
    reason = ""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does; else connections of a server that has just ended would count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(target)
            except OSError as error:
                in_use = error.errno == errno.EADDRINUSE
                reason = _IN_USE if in_use else (error.strerror or str(error))
            else:
                return ""
    return reason
