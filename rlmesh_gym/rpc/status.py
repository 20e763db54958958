"""The one place where a gRPC status becomes an error of this package."""

from __future__ import annotations

import grpc

from rlmesh_gym.errors import (
    AuthenticationError,
    DeadlineError,
    ProtocolError,
    RemoteError,
    SessionRefusedError,
    UnavailableError,
)

__all__ = ["error_from_status", "premature_end"]

_PEER_LIMIT_MIB = 256

_LOST = "{operation}: the endpoint cannot be reached or was lost ({text})"
_CANCELLED = "{operation}: the call was cancelled, perhaps the endpoint stops ({text})"
_LATE = "{operation}: no answer in time ({text})"
_REFUSED = (
    "the {kind} endpoint takes no further session: {text}; close the other client, or serve with "
    "a larger max_sessions (--max-sessions)"
)
_UNAUTHENTICATED = (
    "{operation}: the endpoint refused the token ({text}); pass token=, or set RLMESH_GYM_TOKEN, "
    "to what the server was started with"
)
_OTHER_SERVICE = "{operation}: this is no rlmesh {kind} endpoint ({text})"
_TOO_LARGE = (
    "{operation}: a message is larger than the endpoint takes or sends ({text}); the released "
    f"package's limit is {_PEER_LIMIT_MIB} MiB; use fewer lanes per endpoint"
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
    """Return the error for a call that ended with ``code``.

    Args:
        code: Anything but OK.
        details: The status message, which names the cause as gRPC or the peer saw it.
        endpoint: The address, for the message.
        operation: What was being done.
        kind: ``"env"`` or ``"model"``, the kind of endpoint that was expected.
    """
    text = (details or "").strip() or "no details"
    if any(mark in text.lower() for mark in _THROWN_AWAY):
        code = grpc.StatusCode.UNAVAILABLE
    error, template = _TABLE.get(code, (ProtocolError, _UNEXPECTED))
    message = template.format(operation=operation, text=text, kind=kind, name=code.name)
    return error(message, endpoint=endpoint, operation=operation)


def premature_end(*, endpoint: str, operation: str, request_bytes: int) -> RemoteError:
    """Return the error for a stream that ended in good order while an answer was due."""
    size = request_bytes / 2**20
    if size >= _PEER_LIMIT_MIB:
        return ProtocolError(
            f"{operation}: the endpoint ended the session without an answer; the request has "
            f"{size:.0f} MiB and endpoints of the released package take {_PEER_LIMIT_MIB} MiB",
            endpoint=endpoint,
            operation=operation,
        )
    return UnavailableError(
        f"{operation}: the endpoint ended the session before it answered; it does so after an "
        "error that it cannot recover from, when it stops, or when it cannot read a request; "
        "see its log",
        endpoint=endpoint,
        operation=operation,
    )
