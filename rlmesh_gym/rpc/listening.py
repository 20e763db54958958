"""Claiming an address before gRPC binds it, and saying why it could not."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from rlmesh_gym.rpc.address import Address

__all__ = ["claim", "explain_bind_failure"]


def claim(address: Address) -> None:
    """Make sure that a Unix socket's path is free; remove the socket file of a dead server.

    gRPC removes any socket file in its way, also that of a server that still runs.

    Raises:
        ConfigurationError: A server listens there, or the path is something else's.
    """
    if address.kind != "unix":
        return
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        directory = os.path.dirname(address.path)
        if not os.path.isdir(directory):
            raise ConfigurationError(
                f"cannot listen on {address.display}: there is no directory {directory!r}"
            ) from None
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(
            f"cannot listen on {address.display}: the path is a file that is no socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except (ConnectionRefusedError, FileNotFoundError):
            os.unlink(address.path)
            return
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {address.display}: {error.strerror or error}"
            ) from error
    raise ConfigurationError(
        f"cannot listen on {address.display}: address in use by another server"
    )


def explain_bind_failure(address: Address) -> ConfigurationError:
    """Return the error for an address that gRPC could not bind; gRPC itself does not say why."""
    reason = "the address cannot be bound"
    if address.kind == "tcp":
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address.host, address.port))
        except OSError as error:
            reason = (
                "address in use by another server"
                if error.errno == errno.EADDRINUSE
                else (error.strerror or str(error))
            )
    return ConfigurationError(f"cannot listen on {address.display}: {reason}")
