"""Waiting for an end of the run, and being woken from it by a cancellation."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rlmesh_gym.errors import DeadlineError, StateError
from rlmesh_gym.runtime.telemetry import CallTiming

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from rlmesh_gym.errors import Error

__all__ = [
    "Call",
    "Cancellation",
    "CancelledRunError",
    "CompletedCall",
    "EventLike",
    "ThreadCall",
    "Waiter",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# How soon the thread that watches a plain event sees that the run is over. A set event wakes it at
# once; this is not the latency of cancelling.
_WATCH_SECONDS = 0.05


class CancelledRunError(StateError):
    """Raised inside a run to leave it; a cancelled run returns its report instead."""


class Call(Protocol[T_co]):
    """A call that was sent and may still be at work."""

    @property
    def timing(self) -> CallTiming:
        """What the call took; meaningful once ``result`` has returned or raised."""
        ...

    def result(self, timeout: float | None) -> T_co:
        """Wait for the answer.

        Raises:
            DeadlineError: Not within ``timeout`` seconds.
            RemoteError: The other end failed.
        """
        ...

    def done(self) -> bool:
        """Whether ``result`` returns, or raises, without waiting."""
        ...

    def abandon(self, error: Error) -> bool:
        """Make whoever waits in ``result`` raise ``error`` now; return False if already answered.

        Called from other threads.
        """
        ...


class CompletedCall(Generic[T]):
    """A call of something in this process: it is over when it is made.

    Args:
        value: Its result.
        elapsed_ns: What it took.
    """

    __slots__ = ("_value", "timing")

    def __init__(self, value: T, elapsed_ns: int) -> None:
        self._value = value
        self.timing = CallTiming(elapsed_ns, user_ns=elapsed_ns)

    def result(self, timeout: float | None) -> T:
        """Return the value."""
        del timeout
        return self._value

    def done(self) -> bool:
        """Return True."""
        return True

    def abandon(self, error: Error) -> bool:
        """Return False: it has been answered."""
        del error
        return False


class ThreadCall(Generic[T]):
    """A function that may take long, on a thread of its own, so that a cancellation need not wait.

    Args:
        function: What to do; begun by ``result``.
        discard: Called on that thread after ``function`` succeeded too late.
    """

    def __init__(self, function: Callable[[], T], discard: Callable[[], None]) -> None:
        self.timing = CallTiming(0)
        self._function = function
        self._discard = discard
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._is_left = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout: float | None) -> T:
        """Begin, wait, and return what the function returns, or raise what it raises."""
        threading.Thread(target=self._run, name="rlmesh_gym-call", daemon=True).start()
        try:
            self._answered.wait(timeout)
        finally:
            # Left by an interrupt, or by the timeout.
            self.abandon(DeadlineError(f"not done within {timeout} s"))
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def done(self) -> bool:
        """Whether the function has returned, or is not waited for any more."""
        return self._answered.is_set()

    def abandon(self, error: Error) -> bool:
        """Leave the function to itself."""
        with self._lock:
            if self._answered.is_set():
                return False
            self._is_left = True
            self._error = error
            self._answered.set()
            return True

    def _run(self) -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = self._function()
        except BaseException as error:
            failure = error
        with self._lock:
            if not self._is_left:
                self._value, self._error = value, failure
                self._answered.set()
                return
        if failure is None:
            try:
                self._discard()
            except Exception:
                logger.exception("undoing a call that came too late failed")


class EventLike(Protocol):
    """What a run can be cancelled with: a ``threading.Event`` or anything like it."""

    def is_set(self) -> bool:
        """Whether to cancel."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or ``timeout`` seconds are over; return whether it is set."""
        ...


class Cancellation:
    """Cancels a run from any thread or signal handler, with a reason.

    A ``threading.Event`` serves as well; this needs no thread to watch it.

    Attributes:
        reason: Why, once cancelled.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel; only the first reason is kept."""
        if self.reason is None:
            self.reason = reason
        # Set before the callbacks run; subscribe() looks in the opposite order, so none is missed.
        self._event.set()
        for callback in tuple(self._callbacks):
            callback()

    def set(self) -> None:
        """Cancel without a particular reason."""
        self.cancel()

    def is_set(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for :meth:`cancel`; return whether it was called."""
        return self._event.wait(timeout)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on :meth:`cancel`, or at once if that is past; it may run twice."""
        self._callbacks.append(callback)
        if self._event.is_set():
            callback()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Take a callback back."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)


class Waiter:
    """Waits for calls, one at a time, until the cancellation is set.

    Args:
        cancellation: What to watch; None for a run that cannot be cancelled.
    """

    def __init__(self, cancellation: EventLike | None) -> None:
        self._cancellation = cancellation
        self._cancelled = False
        self._waiting: Call[Any] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def can_be_cancelled(self) -> bool:
        """Whether there is anything to watch."""
        return self._cancellation is not None

    @property
    def cancelled(self) -> bool:
        """Whether the run should end."""
        return self._cancelled or (self._cancellation is not None and self._cancellation.is_set())

    def __enter__(self) -> Self:
        if isinstance(self._cancellation, Cancellation):
            self._cancellation.subscribe(self._wake)
        elif self._cancellation is not None:
            self._thread = threading.Thread(
                target=self._watch, name="rlmesh_gym-cancellation", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if isinstance(self._cancellation, Cancellation):
            self._cancellation.unsubscribe(self._wake)
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise if the run should end.

        Raises:
            CancelledRunError: The cancellation is set.
        """
        if self.cancelled:
            raise CancelledRunError("the run was cancelled")

    def wait(self, call: Call[T], timeout: float | None) -> T:
        """Wait for one call.

        Args:
            call: What to wait for.
            timeout: Seconds; None for ever.

        Raises:
            CancelledRunError: The cancellation was set before the answer came.
            DeadlineError: The answer did not come in time.
            Error: What the call failed with.
        """
        # Announced first and checked second; _wake does it the other way round.
        self._waiting = call
        try:
            if self._cancelled or (self._cancellation is not None and self.cancelled):
                raise CancelledRunError("the run was cancelled")
            return call.result(timeout)
        finally:
            self._waiting = None

    def _wake(self) -> None:
        self._cancelled = True
        call = self._waiting
        if call is not None:
            call.abandon(CancelledRunError("the run was cancelled"))

    def _watch(self) -> None:
        event = self._cancellation
        while event is not None and not self._over.is_set():
            if event.wait(_WATCH_SECONDS):
                self._wake()
                return
