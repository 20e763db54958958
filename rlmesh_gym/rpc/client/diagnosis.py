"""Why a handshake failed, in words that say what to do."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import grpc

from rlmesh_gym.errors import DeadlineError, ProtocolError, UnavailableError

if TYPE_CHECKING:
    from rlmesh_gym.rpc.address import Address

__all__ = ["is_not_grpc", "late_handshake", "unreachable", "wrong_service"]

_PROBE_SECONDS = 1.0
_A = {"env": "an env", "model": "a model"}
_OTHER = {"env": "model", "model": "env"}
_USE = {
    "env": "give it to RemoteVectorEnv or RemoteEnv, or check the address",
    "model": "give it to RemotePolicy, or check the address",
}


def wrong_service(details: str, *, endpoint: str, kind: str, is_other_kind: bool) -> ProtocolError:
    """Return the error for a gRPC server that does not know the service called."""
    if is_other_kind:
        other = _OTHER[kind]
        message = (
            f"this is {_A[other]} endpoint where {_A[kind]} endpoint is expected; {_USE[other]}"
        )
    else:
        message = (
            f"a gRPC server answers, but it is no rlmesh {kind} endpoint ({details}); check the "
            "address"
        )
    return ProtocolError(message, endpoint=endpoint, operation="handshake")


def late_handshake(timeout: float | None, *, endpoint: str, kind: str) -> DeadlineError:
    """Return the error for a handshake that was not answered."""
    return DeadlineError(
        f"no answer to the handshake within {timeout} s; is this {_A[kind]} endpoint? raise "
        "timeouts.connect for slow networks",
        endpoint=endpoint,
        operation="handshake",
    )


def is_not_grpc(code: grpc.StatusCode, details: str) -> bool:
    """Return whether a failure says that there may be no gRPC server at all."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return True
    # An HTTP/2 server of another trade answers with a status and a content type of its own.
    return code is not grpc.StatusCode.OK and (
        "http2 header" in details or "content-type" in details
    )


def unreachable(address: Address, details: str, *, kind: str, uses_tls: bool) -> UnavailableError:
    """Return the error for an address without a gRPC server. Looks at what is there instead."""
    try:
        found = _probe(address)
    except OSError as error:
        reason = error.strerror or str(error)
        message = (
            f"nothing listens there ({reason}); start {_A[kind]} endpoint, or check the address"
        )
    else:
        if uses_tls:
            message = (
                f"something listens there, but the TLS connection failed ({details}); check the "
                "certificates, and whether the server uses TLS"
            )
        elif found.startswith(b"HTTP/") or "http2 header" in details:
            message = (
                f"an HTTP server listens there, not a gRPC server; give the address of an rlmesh "
                f"{kind} endpoint"
            )
        else:
            message = (
                f"something listens there, but it is no gRPC server, or one that asks for TLS "
                f"({details}); check the address, or pass tls="
            )
    return UnavailableError(message, endpoint=address.display, operation="handshake")


def _probe(address: Address) -> bytes:
    """Return how something that listens at ``address`` answers an HTTP request."""
    if address.kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_PROBE_SECONDS)
        try:
            connection.connect(address.path)
        except OSError:
            connection.close()
            raise
    else:
        connection = socket.create_connection((address.host, address.port), _PROBE_SECONDS)
    with connection:
        connection.settimeout(_PROBE_SECONDS)
        try:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(16)
        except OSError:
            return b""  # It listens, which is all that must be known; it only says nothing.
