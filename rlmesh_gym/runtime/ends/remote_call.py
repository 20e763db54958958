"""A request to a remote end on its way, with the endpoint's own timings once it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlmesh_gym.errors import CodecError, DeadlineError, ProtocolError
from rlmesh_gym.runtime.telemetry import timing_of_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc import Pending
    from rlmesh_gym.runtime.telemetry import CallTiming

__all__ = ["RemoteCall"]

T = TypeVar("T")

# Which of the run's limits a deadline comes from, by the name that the session knows.
_LIMIT_NAMES = {
    "reset": "env_reset_timeout",
    "step": "env_step_timeout",
    "predict": "model_predict_timeout",
    "resolve_adapter": "model_resolve_timeout",
}


class RemoteCall(Generic[T]):
    """A request on its way, and what to make of its answer.

    Args:
        pending: The session's handle.
        read: Turns the message into the result; runs in ``result``.
    """

    __slots__ = ("_pending", "_read")

    def __init__(self, pending: Pending[Any], read: Callable[[Any], T]) -> None:
        self._pending = pending
        self._read = read

    def result(self, timeout: float | None) -> T:
        """Wait for the answer and read it."""
        pending = self._pending
        try:
            message = pending.result(timeout)
        except DeadlineError as error:
            limit = _LIMIT_NAMES.get(pending.operation)
            if limit is None or timeout is None:
                raise
            raise DeadlineError(
                f"{pending.operation}: no answer within {timeout:.3g} s; the endpoint may still be "
                f"at work, raise limits.{limit} for slow ones",
                endpoint=pending.endpoint,
                operation=pending.operation,
            ) from error
        try:
            return self._read(message)
        except CodecError as error:
            raise ProtocolError(
                f"{pending.operation}: the answer does not fit the endpoint's contract: {error}",
                endpoint=pending.endpoint,
                operation=pending.operation,
            ) from error

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._pending.done()

    def abandon(self, error: Error) -> bool:
        """Wake whoever waits, with ``error``."""
        return self._pending.abandon(error)

    @property
    def timing(self) -> CallTiming:
        """The endpoint's own timings beside what was measured here."""
        pending = self._pending
        return timing_of_answer(
            pending.response,
            pending.elapsed_ns,
            request_bytes=pending.request_bytes,
            response_bytes=pending.response_bytes,
        )
