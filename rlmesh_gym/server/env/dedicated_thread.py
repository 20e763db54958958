"""One thread for everything that an environment does, for those that are bound to a thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from rlmesh_gym.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DedicatedThread"]

T = TypeVar("T")


class DedicatedThread:
    """A daemon thread that runs calls one after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="rlmesh_gym-env", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` there and return, or raise, what it does.

        Raises:
            ClosedError: After :meth:`close`.
        """
        if threading.current_thread() is self._thread:
            return call()
        if self._is_closed:
            raise ClosedError("the environment's thread has ended")
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future.result()

    def close(self) -> None:
        """Let the thread end after the calls that are due."""
        self._is_closed = True
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                result = call()
            except BaseException as error:  # It belongs to the caller, whatever it is.
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, call, future
