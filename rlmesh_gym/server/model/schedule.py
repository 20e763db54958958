"""When a model server does what: a line per environment, a thread for the model, and workers.

Nothing here waits on a clock. All threads are daemons, so that a model that hangs cannot keep the
process alive.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rlmesh_gym.server.model.faults import closed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EnvOrder", "ModelThread", "Ordered", "WorkerPool"]

_logger = logging.getLogger(__name__)


class Ordered(Protocol):
    """Something that needs its turn at one or more environments."""

    keys: tuple[str, ...]
    """The env ids, each once."""
    ahead: int
    """Number of keys at which something else is still ahead; written by :class:`EnvOrder`."""


T = TypeVar("T", bound=Ordered)


class EnvOrder(Generic[T]):
    """Gives each environment's requests their turn in order of arrival.

    A request that names several environments has its turn when it is first at all of them. Since a
    request joins all its lines at once, two such requests can never wait for each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[T]] = {}

    def enter(self, item: T) -> bool:
        """Join the lines; True when it is the item's turn already."""
        ahead = 0
        with self._lock:
            for key in item.keys:
                line = self._lines.setdefault(key, deque())
                ahead += bool(line)
                line.append(item)
            item.ahead = ahead
        return ahead == 0

    def leave(self, item: T) -> list[T]:
        """End the item's turn; returns the items whose turn it is now."""
        ready: list[T] = []
        with self._lock:
            for key in item.keys:
                line = self._lines[key]
                line.popleft()
                if not line:
                    del self._lines[key]  # Released environments leave nothing behind.
                    continue
                line[0].ahead -= 1
                if line[0].ahead == 0:
                    ready.append(line[0])
        return ready


class ModelThread:
    """The only thread that calls the handler, first come first served.

    One thread rather than a lock: frameworks keep grad modes and OpenMP teams per thread.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, task: Callable[[], None]) -> None:
        """Queue a task. It must deal with its own exceptions.

        Raises:
            ModelError: CLOSED: after :meth:`close`.
        """
        with self._lock:
            if self._is_closed:
                raise closed()
            self._tasks.put(task)

    def has_more(self) -> bool:
        """Whether something waits behind the task at work."""
        return not self._tasks.empty()

    def close(self, last: Callable[[], None]) -> None:
        """Queue a last task and end the thread after it, without waiting."""
        with self._lock:
            self._is_closed = True
            self._tasks.put(last)
            self._tasks.put(None)

    def join(self, timeout: float | None) -> bool:
        """Wait for the end; False when the time in seconds ran out."""
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run_logged(task)
            del task  # An idle thread must not keep the last request's arrays alive.


class WorkerPool:
    """Threads for whatever may overlap the model: adapters, late decoding, encoding.

    Args:
        name: Prefix of the threads' names.
        max_idle: Threads kept for later. There is no bound on those at work; the number of
            requests in work bounds them.
    """

    def __init__(self, name: str, max_idle: int = 16) -> None:
        self._name = name
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    def run(self, task: Callable[[], None]) -> None:
        """Run a task on a thread of its own, or on this one where there is none to be had.

        It must deal with its own exceptions.
        """
        with self._lock:
            inbox = self._idle.pop() if self._idle else None  # The last one is still warm.
        if inbox is None:
            inbox = SimpleQueue()
            thread = threading.Thread(
                target=self._work, args=(inbox,), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # The system gives no more threads.
                _run_logged(task)
                return
        inbox.put(task)

    def close(self) -> None:
        """Let idle threads go now and busy ones after their task."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _work(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        while (task := inbox.get()) is not None:
            _run_logged(task)
            del task  # An idle thread must not keep the last request's arrays alive.
            with self._lock:
                if self._closed or len(self._idle) >= self._max_idle:
                    return
                self._idle.append(inbox)


def _run_logged(task: Callable[[], None]) -> None:
    try:
        task()
    except BaseException:
        # Tasks answer for their own failures; one that does not must not end the thread.
        _logger.exception("a model server task failed")
