"""Ending a run from outside: what sets it, and how whoever waits for an end is woken."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rlmesh_gym.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from rlmesh_gym.env.open.sources import AnyEnvSession, Source
    from rlmesh_gym.policy.any_session import AnyModelSession


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

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or ``timeout`` seconds are over; return whether it is set."""


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
    """Interrupts the sessions of a run when its cancellation is set; None never is."""

    def __init__(self, cancellation: EventLike | None) -> None:
        self._cancellation = cancellation
        self._is_cancelled = False
        self._sessions: list[AnyEnvSession | AnyModelSession] = []
        self._aside: Future[Any] | None = None
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

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if isinstance(self._cancellation, Cancellation):
            self._cancellation.unsubscribe(self._wake)
        if self._thread is not None:
            self._thread.join()
        for session in self._sessions:
            session.resume()  # Letting go takes a word or two.

    def add(self, session: AnyEnvSession | AnyModelSession) -> None:
        """Interrupt this session too."""
        self._sessions.append(session)
        if self._is_cancelled:
            session.interrupt(_cancelled())

    def open(self, source: Source) -> AnyEnvSession:
        """Open a lost session again, and interrupt that too."""
        session = self.run(source.open, lambda late: late.close())
        self.add(session)
        return session

    def sleep(self, seconds: float) -> None:
        """Wait for the next try to do so; raises ``CancelledRunError`` when the run should end."""
        self.check()
        if self._cancellation is None:
            time.sleep(seconds)
        else:
            self._cancellation.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise ``CancelledRunError`` if the run should end."""
        if self._is_cancelled or (self._cancellation is not None and self._cancellation.is_set()):
            raise _cancelled()

    def run(self, function: Callable[[], T], discard: Callable[[T], object]) -> T:
        """Run what may take long and is no session's request, such as connecting.

        Raises ``CancelledRunError`` where the cancellation is set before it is done; what the
        function returns after that is given to ``discard``.
        """
        self.check()
        if self._cancellation is None:
            return function()
        self._aside = aside = Future[T]()
        if self._is_cancelled:
            aside.cancel()
        threading.Thread(
            target=_settle, args=(aside, function, discard), name="rlmesh_gym-connect", daemon=True
        ).start()
        try:
            return aside.result()
        except CancelledError:
            raise _cancelled() from None
        finally:
            aside.cancel()  # Does nothing unless an interrupt has broken the wait off.

    def _wake(self) -> None:
        self._is_cancelled = True
        if self._aside is not None:
            self._aside.cancel()
        for session in tuple(self._sessions):
            session.interrupt(_cancelled())

    def _watch(self) -> None:
        event = self._cancellation
        while event is not None and not self._over.is_set():
            if event.wait(_WATCH_SECONDS):
                self._wake()
                return


def _settle(aside: Future[T], function: Callable[[], T], discard: Callable[[T], object]) -> None:
    """Run the function for whoever waits for ``aside``."""
    try:
        value = function()
    except BaseException as error:
        if aside.set_running_or_notify_cancel():
            aside.set_exception(error)
        return
    if aside.set_running_or_notify_cancel():
        aside.set_result(value)
        return
    try:
        discard(value)
    except Exception:
        _logger.exception("undoing what came too late failed")


def _cancelled() -> CancelledRunError:
    return CancelledRunError("the run was cancelled")
