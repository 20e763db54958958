"""An answer that is due."""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rlmesh_gym.errors import DeadlineError, Error, ForkedError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.rpc.services import Service


M = TypeVar("M")


class _Stream(Protocol):
    def give_up(self, pending: Pending[Any], error: Error) -> bool: ...

    def note_overdue(self, pending: Pending[Any]) -> None: ...


_SLICE = 1.0
"""Seconds of one wait: a signal that arrives just before it is noticed when it is over."""


@dataclass(slots=True, eq=False, repr=False)
class Pending(Generic[M]):
    """An answer that is due. Made by a session; safe to wait on from any thread."""

    _stream: _Stream
    _service: Service
    operation: str
    endpoint: str
    request_id: str
    request_bytes: int
    lanes: Sequence[int]  # Empty for the whole vector.
    context: Any  # What else the session noted about the request.
    response: Any = None  # The answer's envelope, with its timings, once it is done.
    response_bytes: int = 0
    _error: Error | None = None
    _pid: int = field(default_factory=os.getpid)
    # A bare lock is the cheapest thing to wait on, and a signal can break the wait.
    _gate: threading.Lock = field(default_factory=threading.Lock)
    _sent_ns: int = field(default_factory=time.perf_counter_ns)
    _done_ns: int = 0

    def __post_init__(self) -> None:
        self._gate.acquire()

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds from sending to the answer, or until now."""
        return (self._done_ns or time.perf_counter_ns()) - self._sent_ns

    def done(self) -> bool:
        """Return whether :meth:`result` returns, or raises, without waiting."""
        return self._done_ns != 0

    def result(self, timeout: float | None = None) -> M:
        """Wait so many seconds (None: for ever) for the answer; return the message of its kind.

        Raises:
            DeadlineError: Not in time. The answer may still come: call again, or drop this object.
            EnvError: The environment, or its server, answered with an error.
            ModelError: The model, or its server, did.
            UnavailableError: The connection was lost or the session ended.
            ProtocolError: The answer is of another kind than the request.
            ClosedError: The session was closed meanwhile.
            ForkedError: Called in a forked child.
        """
        if not self._done_ns:
            self.wait(timeout)
        if self._error is not None:
            raise copy.copy(self._error)
        response = self.response
        kind = response.WhichOneof("kind")
        if kind == self.operation:
            return getattr(response, kind)  # type: ignore[no-any-return]
        if kind == "error":
            raise self._service.error(response.error, self)
        raise ProtocolError(
            f"{self.operation}: expected an answer of kind {self.operation!r}, got {kind!r}; "
            "the endpoint breaks the protocol",
            endpoint=self.endpoint,
            operation=self.operation,
        )

    def abandon(self, error: Error) -> bool:
        """Give up on the answer: whoever waits, or calls :meth:`result` later, gets ``error``.

        Safe from any thread. The request stays at work on the other end; its late answer is
        dropped. Returns False where the answer was already there; nothing changes then.
        """
        return self._stream.give_up(self, error)

    def wait(self, timeout: float | None) -> None:
        """Wait for the answer, or for the failure, without looking at it."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{self.operation}: the answer belongs to the parent process; connect anew here"
            )
        limit = math.inf if timeout is None else max(timeout, 0.0)
        try:
            is_done = self._gate.acquire(timeout=min(limit, _SLICE))
            if not is_done and limit > _SLICE:
                is_done = self._wait_on(time.monotonic() + limit - _SLICE)
        except BaseException:  # A signal's.
            self._stream.note_overdue(self)
            raise
        if is_done:
            self._gate.release()
            return
        self._stream.note_overdue(self)
        raise DeadlineError(
            f"{self.operation}: no answer within {timeout:g} s; the endpoint may still be at work, "
            f"raise timeouts.{_TIMEOUT_FIELDS.get(self.operation, self.operation)} for slow ones",
            endpoint=self.endpoint,
            operation=self.operation,
        )

    def _wait_on(self, deadline: float) -> bool:
        is_done = False
        while not is_done and (left := deadline - time.monotonic()) > 0:
            is_done = self._gate.acquire(timeout=min(left, _SLICE))
        return is_done

    def complete(self, response: Any, size: int) -> None:
        """Take the answer in; for the stream, which calls it or :meth:`fail` once."""
        self.response = response
        self.response_bytes = size
        self._done_ns = time.perf_counter_ns()
        self._gate.release()

    def fail(self, error: Error) -> None:
        """Let :meth:`result` raise copies of ``error``; for the stream."""
        self._error = error
        self._done_ns = time.perf_counter_ns()
        self._gate.release()


_TIMEOUT_FIELDS = {
    "configure": "connect",
    "resolve_adapter": "resolve",
    "grouped_predict": "predict",
    "reset_adapter": "predict",
    "release_adapter": "close",
}
