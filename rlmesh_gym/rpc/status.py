"""The one place where a gRPC status becomes an error of this package."""

from __future__ import annotations

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
    from collections.abc import Callable

__all__ = ["error_from_status", "premature_end"]

_PEER_LIMIT_MIB = 256


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
    text = (details or "").strip() or f"no details, status {code.name}"
    lowered = text.lower()
    if "goaway" in lowered or "too_many" in lowered or "enhance_your_calm" in lowered:
        # The status code depends on gRPC's release; the connection is gone whatever it says.
        code = grpc.StatusCode.UNAVAILABLE
    make = _TABLE.get(code, _unexpected)
    error = make(text, operation, kind)
    if make is _unexpected:
        error.args = (f"{operation}: the endpoint ended the call with {code.name}: {text}",)
    error.endpoint, error.operation = endpoint, operation
    if endpoint:
        error.args = (f"{endpoint}: {error.args[0]}",)
    return error


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


def _unavailable(text: str, operation: str, _kind: str) -> RemoteError:
    return UnavailableError(f"{operation}: the endpoint cannot be reached or was lost ({text})")


def _cancelled(text: str, operation: str, _kind: str) -> RemoteError:
    return UnavailableError(f"{operation}: the call was cancelled, the endpoint may stop ({text})")


def _deadline(text: str, operation: str, _kind: str) -> RemoteError:
    return DeadlineError(f"{operation}: no answer in time ({text})")


def _refused(text: str, _operation: str, kind: str) -> RemoteError:
    return SessionRefusedError(
        f"the {kind} endpoint takes no further session: {text}; close the other client, or serve "
        "with more sessions"
    )


def _authentication(text: str, operation: str, _kind: str) -> RemoteError:
    return AuthenticationError(
        f"{operation}: the endpoint refused the token ({text}); pass token=…, or set "
        "RLMESH_GYM_TOKEN, to what the server was started with"
    )


def _unimplemented(text: str, operation: str, kind: str) -> RemoteError:
    return ProtocolError(f"{operation}: this is no rlmesh {kind} endpoint ({text})")


def _too_large(text: str, operation: str, _kind: str) -> RemoteError:
    return ProtocolError(
        f"{operation}: a message is larger than the endpoint takes or sends ({text}); the released "
        f"package's limit is {_PEER_LIMIT_MIB} MiB; use fewer lanes per endpoint"
    )


def _unexpected(text: str, operation: str, _kind: str) -> RemoteError:
    return ProtocolError(f"{operation}: {text}")


_TABLE: dict[grpc.StatusCode, Callable[[str, str, str], RemoteError]] = {
    grpc.StatusCode.UNAVAILABLE: _unavailable,
    grpc.StatusCode.CANCELLED: _cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: _deadline,
    grpc.StatusCode.FAILED_PRECONDITION: _refused,
    grpc.StatusCode.UNAUTHENTICATED: _authentication,
    grpc.StatusCode.PERMISSION_DENIED: _authentication,
    grpc.StatusCode.UNIMPLEMENTED: _unimplemented,
    grpc.StatusCode.OUT_OF_RANGE: _too_large,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _too_large,
}
