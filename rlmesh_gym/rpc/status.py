"""The one place where a gRPC status becomes an error of this package, in words that help."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import grpc

from rlmesh_gym.errors import (
    AuthenticationError,
    DeadlineError,
    ProtocolError,
    RemoteError,
    SessionRefusedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from rlmesh_gym.rpc.address import Address
    from rlmesh_gym.rpc.config import TLSConfig


_PEER_LIMIT_MIB = 256
_PROBE_SECONDS = 1.0
_ENDPOINT = {"env": "an env endpoint", "model": "a model endpoint"}
_USE = {
    "env": "give it to RemoteVectorEnv or RemoteEnv, or check the address",
    "model": "give it to RemotePolicy, or check the address",
}

_LOST = "{operation}: the endpoint cannot be reached or was lost ({text})"
_CANCELLED = "{operation}: the call was cancelled, perhaps the endpoint stops ({text})"
_LATE = "{operation}: no answer in time ({text})"
_REFUSED = (
    "the {kind} endpoint accepts no further session: {text}; close the other client, or serve with "
    "a larger max_sessions (--max-sessions)"
)
_UNAUTHENTICATED = (
    "{operation}: the endpoint refused the token ({text}); pass token=, or set RLMESH_GYM_TOKEN, "
    "to what the server was started with"
)
_OTHER_SERVICE = "{operation}: this is not an rlmesh {kind} endpoint ({text})"
_TOO_LARGE = (
    "{operation}: a message is larger than the endpoint takes or sends ({text}); the released "
    f"package's limit is {_PEER_LIMIT_MIB} MiB, ours RLMESH_GYM_MAX_MESSAGE_BYTES; use fewer lanes "
    "per endpoint"
)
_UNEXPECTED = "{operation}: the endpoint ended the call with {name}: {text}"

_TABLE: dict[grpc.StatusCode, tuple[type[RemoteError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (UnavailableError, _LOST),
    grpc.StatusCode.CANCELLED: (UnavailableError, _CANCELLED),
    grpc.StatusCode.DEADLINE_EXCEEDED: (DeadlineError, _LATE),
    grpc.StatusCode.FAILED_PRECONDITION: (SessionRefusedError, _REFUSED),
    grpc.StatusCode.UNAUTHENTICATED: (AuthenticationError, _UNAUTHENTICATED),
    grpc.StatusCode.PERMISSION_DENIED: (AuthenticationError, _UNAUTHENTICATED),
    grpc.StatusCode.UNIMPLEMENTED: (ProtocolError, _OTHER_SERVICE),
    grpc.StatusCode.OUT_OF_RANGE: (ProtocolError, _TOO_LARGE),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (ProtocolError, _TOO_LARGE),
}
# What a connection that the peer's HTTP/2 stack has thrown away looks like; the status code that
# comes with it depends on gRPC's release.
_THROWN_AWAY = ("goaway", "too_many_data_frames", "enhance_your_calm")


def error_from_status(
    code: grpc.StatusCode, details: str | None, *, endpoint: str, operation: str, kind: str
) -> RemoteError:
    """Return the error for a call to an endpoint of ``kind`` that ended with ``code``, not OK."""
    text = (details or "").strip() or "no details"
    if any(mark in text.lower() for mark in _THROWN_AWAY):
        code = grpc.StatusCode.UNAVAILABLE
    error, template = _TABLE.get(code, (ProtocolError, _UNEXPECTED))
    message = template.format(operation=operation, text=text, kind=kind, name=code.name)
    return error(message, endpoint=endpoint, operation=operation)


def premature_end(*, endpoint: str, operation: str, request_bytes: int) -> RemoteError:
    """Return the error for a stream that ended in good order while an answer was due."""
    size = request_bytes / 2**20
    if size < _PEER_LIMIT_MIB:
        kind: type[RemoteError] = UnavailableError
        reason = (
            "before it answered; it does so after an error that it cannot recover from, when it "
            "stops, or when it cannot read a request; see its log"
        )
    else:
        kind = ProtocolError
        reason = (
            f"without an answer; the request has {size:.0f} MiB and endpoints of the released "
            f"package take {_PEER_LIMIT_MIB} MiB"
        )
    message = f"{operation}: the endpoint ended the session {reason}"
    return kind(message, endpoint=endpoint, operation=operation)


def wrong_service(details: str, *, endpoint: str, kind: str, is_other_kind: bool) -> ProtocolError:
    """Return the error for a gRPC server that does not know the service called."""
    if is_other_kind:
        other = "model" if kind == "env" else "env"
        message = f"this is {_ENDPOINT[other]} where {_ENDPOINT[kind]} is expected; {_USE[other]}"
    else:
        message = (
            f"a gRPC server answers, but it is not an rlmesh {kind} endpoint ({details}); check "
            "the address"
        )
    return ProtocolError(message, endpoint=endpoint, operation="handshake")


def late_handshake(timeout: float | None, *, endpoint: str, kind: str) -> DeadlineError:
    """Return the error for a handshake that was not answered."""
    return DeadlineError(
        f"no answer to the handshake within {timeout} s; is this {_ENDPOINT[kind]}? raise "
        "timeouts.connect for slow networks",
        endpoint=endpoint,
        operation="handshake",
    )


def is_not_grpc(code: grpc.StatusCode, details: str) -> bool:
    """Return whether a failure says that there may be no gRPC server at all."""
    # An HTTP/2 server of another trade answers with a status and a content type of its own.
    is_other_trade = "http2 header" in details or "content-type" in details
    return code is grpc.StatusCode.UNAVAILABLE or is_other_trade


def stopped_by_proxy(address: Address, details: str, *, kind: str, proxy: str) -> UnavailableError:
    """Return the error for an address that was not reached through a proxy."""
    text = details.strip() or "no details"
    return UnavailableError(
        f"{_ENDPOINT[kind]} was not reached through the proxy {proxy} ({text}); add "
        f"{address.host} to no_proxy if it can be reached without",
        endpoint=address.display,
        operation="handshake",
    )


def unreachable(
    address: Address, details: str, *, kind: str, tls: TLSConfig | None
) -> UnavailableError:
    """Return the error for an address without a gRPC server. Looks at what is there instead."""
    try:
        found = _probe(address)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"nothing listens there ({reason}); start {_ENDPOINT[kind]}, or check the address"
    else:
        if tls is not None and "handshake failed" not in details.lower():
            # With TLS 1.3 the client's side is done before the server looks at its certificate.
            message = "the TLS connection was closed by the server, which " + (
                "asks for a client certificate, as it seems; pass tls={'certificate_chain': ..., "
                "'private_key': ...} (--tls-cert, --tls-key)"
                if tls.certificate_chain is None
                else "does not accept this client certificate, as it seems; see its log"
            )
            message += f" ({details})"
        elif tls is not None:
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
                f"something listens there, but it is not a gRPC server, or one that asks for TLS "
                f"({details}); check the address, or pass tls="
            )
    return UnavailableError(message, endpoint=address.display, operation="handshake")


def _probe(address: Address) -> bytes:
    """Return how something that listens at ``address`` answers an HTTP request."""
    if address.kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        connection = socket.create_connection((address.host, address.port), _PROBE_SECONDS)
    with connection:
        connection.settimeout(_PROBE_SECONDS)
        if address.kind == "unix":
            connection.connect(address.path)
        try:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(16)
        except OSError:
            return b""  # It listens, which is all that must be known; it only says nothing.
