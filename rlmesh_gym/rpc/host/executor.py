"""Threads for a server: as many as there are calls, all daemons."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    P = ParamSpec("P")

__all__ = ["GrowingExecutor"]

T = TypeVar("T")
_IDLE_SECONDS = 10.0
_Work = tuple["Future[Any]", "Callable[..., Any]", tuple[Any, ...], dict[str, Any]]


class GrowingExecutor(ThreadPoolExecutor):
    """An executor that never makes a call wait for a thread.

    A Join occupies a thread as long as the client stays, so that any fixed number of threads would
    one day leave a handshake unanswered. The threads are daemons and unknown to
    :mod:`concurrent.futures`, which would join them when the interpreter exits.
    """

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name)  # Its own threads never start.
        self._name = name
        self._guard = threading.Lock()
        self._tasks: SimpleQueue[_Work | None] = SimpleQueue()
        self._backlog: deque[_Work] = deque()
        self._free = 0
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` on an idle thread, else on a new one.

        Raises:
            RuntimeError: After :meth:`shutdown`, as the base class does.
        """
        future: Future[T] = Future()
        work: _Work = (future, fn, args, kwargs)
        with self._guard:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._free:
                self._free -= 1
                self._tasks.put(work)
                return future
        try:
            threading.Thread(
                target=self._run, args=(work,), name=f"{self._name}-call", daemon=True
            ).start()
        except RuntimeError:  # The system gives no more threads; the next one to be free takes it.
            self._put_back(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end. Busy ones are not waited for, whatever ``wait`` says."""
        del wait, cancel_futures
        with self._guard:
            self._is_shut = True
            for _ in range(self._free):
                self._tasks.put(None)
            self._free = 0

    def _put_back(self, work: _Work) -> None:
        with self._guard:
            if self._free:
                self._free -= 1
                self._tasks.put(work)
            else:
                self._backlog.append(work)

    def _run(self, work: _Work | None) -> None:
        while work is not None:
            future, function, args, kwargs = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)
            del future, function, args, kwargs
            work = self._next()

    def _next(self) -> _Work | None:
        with self._guard:
            if self._is_shut:
                return None
            if self._backlog:
                return self._backlog.popleft()
            self._free += 1
        try:
            return self._tasks.get(timeout=_IDLE_SECONDS)
        except Empty:
            with self._guard:
                if self._free:
                    self._free -= 1
                    return None
            return self._tasks.get()  # It was promised to this thread just now.
