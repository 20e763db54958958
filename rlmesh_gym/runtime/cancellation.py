"""Ending a run from outside: what sets it, and how whoever waits for an end is woken."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rlmesh_gym.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from rlmesh_gym.errors import Error

__all__ = ["Cancellation", "CancellationWatch", "CancelledRunError", "EventLike", "Interruptible"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

# How soon the thread that watches a plain event sees that the run is over. A set event wakes it at
# once; this is not the latency of cancelling.
_WATCH_SECONDS = 0.05


class CancelledRunError(StateError):
    """Raised inside a run to leave it; a cancelled run returns its report instead."""


class EventLike(Protocol):
    """What a run can be cancelled with: a ``threading.Event`` or anything like it."""

    def is_set(self) -> bool:
        """Whether to cancel."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or ``timeout`` seconds are over; return whether it is set."""
        ...


class Interruptible(Protocol):
    """A session whose requests can be made to fail; see ``rpc.EnvSession``."""

    def interrupt(self, error: Error) -> None:
        """Fail what is in flight, and what is asked later."""

    def resume(self) -> None:
        """Take requests again."""


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


class CancellationWatch:
    """Interrupts the sessions of a run when its cancellation is set.

    Args:
        cancellation: What to watch; None for a run that cannot be cancelled.
    """

    def __init__(self, cancellation: EventLike | None) -> None:
        self._cancellation = cancellation
        self._is_cancelled = False
        self._sessions: list[Interruptible] = []
        self._aside: _Aside[Any] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

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
        for session in self._sessions:
            session.resume()  # Letting go takes a word or two.

    def add(self, session: Interruptible) -> None:
        """Interrupt this session too."""
        self._sessions.append(session)
        if self._is_cancelled:
            session.interrupt(_cancelled())

    def check(self) -> None:
        """Raise if the run should end.

        Raises:
            CancelledRunError: The cancellation is set.
        """
        if self._is_cancelled or (self._cancellation is not None and self._cancellation.is_set()):
            raise _cancelled()

    def run(self, function: Callable[[], T], discard: Callable[[T], object]) -> T:
        """Run what may take long and is no session's request, such as connecting.

        Args:
            function: What to do.
            discard: Called with what the function returned too late, as nobody waits any more.

        Raises:
            CancelledRunError: The cancellation was set before it was done.
        """
        self.check()
        if self._cancellation is None:
            return function()
        self._aside = aside = _Aside(function, discard)
        if self._is_cancelled:
            aside.leave()
        return aside.result()

    def _wake(self) -> None:
        self._is_cancelled = True
        if self._aside is not None:
            self._aside.leave()
        for session in tuple(self._sessions):
            session.interrupt(_cancelled())

    def _watch(self) -> None:
        event = self._cancellation
        while event is not None and not self._over.is_set():
            if event.wait(_WATCH_SECONDS):
                self._wake()
                return


class _Aside(Generic[T]):
    """A function on a thread of its own, which may be left to itself."""

    def __init__(self, function: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._function = function
        self._discard = discard
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._is_left = False
        self._values: list[T] = []
        self._error: BaseException | None = None

    def result(self) -> T:
        threading.Thread(target=self._run, name="rlmesh_gym-connect", daemon=True).start()
        try:
            self._answered.wait()
        finally:
            self.leave()  # Does nothing unless an interrupt has broken the wait off.
        if self._error is not None:
            raise self._error
        return self._values[0]

    def leave(self) -> None:
        with self._lock:
            if not self._answered.is_set():
                self._is_left = True
                self._error = _cancelled()
                self._answered.set()

    def _run(self) -> None:
        failure: BaseException | None = None
        values: list[T] = []
        try:
            values.append(self._function())
        except BaseException as error:
            failure = error
        with self._lock:
            if not self._is_left:
                self._values, self._error = values, failure
                self._answered.set()
                return
        if failure is None:
            try:
                self._discard(values[0])
            except Exception:
                _logger.exception("undoing what came too late failed")


def _cancelled() -> CancelledRunError:
    return CancelledRunError("the run was cancelled")
