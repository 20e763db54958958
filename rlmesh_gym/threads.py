"""Threads of servers: as many as there is work, one for what is bound to one, and who comes next.

All are daemons, so that user code that hangs cannot keep the process alive. Nothing here knows
environments, models or messages.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from rlmesh_gym.errors import ClosedError
from rlmesh_gym.signals import hear_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    Task = Callable[[], None]


WhichThread: TypeAlias = Literal["any", "own", "main"]
"""Where code of an environment runs: wherever it is called, or always on that one thread."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_IDLE_SECONDS = 10.0


def _run_logged(task: Task) -> None:
    try:
        task()
    except BaseException:
        # Tasks answer for their own failures; one that does not must not end the thread.
        _logger.exception("a task of a server failed")


class GrowingExecutor(ThreadPoolExecutor):
    """An executor that makes a thread for whatever finds none idle; those end when long unused.

    No call waits for another one, whatever that waits for: a Join occupies a thread as long as its
    client stays. The threads are unknown to :mod:`concurrent.futures`, which would join them when
    the interpreter exits.
    """

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name)  # Its own threads never start.
        self._name = name
        self._guard = threading.Lock()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._free = 0  # Idle threads less queued tasks.
        self._alive = 0  # Threads that have not been let go.
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` on an idle thread, else on a new one.

        Raises:
            ClosedError: After :meth:`shutdown`; a RuntimeError, as the base class has it.
        """
        if self._is_shut:
            raise ClosedError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                _fulfil(future, lambda: fn(*args, **kwargs))

        self.run(call)
        return future

    def run(self, task: Task) -> None:
        """Run a task likewise, without a future; it deals with its own exceptions.

        Where the system gives no more threads, the next one that is free takes it, or this one.
        After :meth:`shutdown` it is still run.
        """
        with self._guard:
            if self._free > 0:
                self._queue(task)
                return
            self._alive += 1
        try:
            threading.Thread(target=self._work, args=(task,), name=self._name, daemon=True).start()
        except RuntimeError:
            with self._guard:
                self._alive -= 1
                if self._alive:
                    self._queue(task)
                    return
            _run_logged(task)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end. Busy ones are not waited for, whatever ``wait`` says."""
        del wait, cancel_futures
        with self._guard:
            self._is_shut = True
            while self._free > 0:
                self._alive -= 1
                self._queue(None)

    def _queue(self, task: Task | None) -> None:
        self._free -= 1
        self._tasks.put(task)

    def _work(self, task: Task | None) -> None:
        while task is not None:
            _run_logged(task)
            del task  # An idle thread must not keep the last request's arrays alive.
            with self._guard:
                if self._is_shut and self._free >= 0:
                    self._alive -= 1
                    return
                self._free += 1
            try:
                task = self._tasks.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._guard:
                    if self._free > 0:
                        self._free -= 1
                        self._alive -= 1
                        return
                task = self._tasks.get()  # It was promised to this thread just now.


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:  # It belongs to the caller, whatever it is.
        future.set_exception(error)
    else:
        future.set_result(result)


class TaskThread:
    """A thread that runs tasks and calls, first come first served.

    For what must stay on one thread: environments with an OpenGL context; models, since frameworks
    keep grad modes and OpenMP teams per thread.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False

    def post(self, task: Task) -> None:
        """Queue a task. It must deal with its own exceptions.

        Raises:
            ClosedError: After :meth:`close`.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"the thread {self._thread.name} has ended")
            self._tasks.put(task)

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` there and return, or raise, what it does; not after :meth:`close`."""
        if threading.current_thread() is self._thread:
            return call()
        future: Future[T] = Future()
        self.post(lambda: _fulfil(future, call))
        return future.result()

    def has_more(self) -> bool:
        """Whether something waits behind the task at work."""
        return not self._tasks.empty()

    def close(self, last: Task | None = None) -> None:
        """Let the thread end after what is due and a last task, without waiting; once counts."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if last is not None:
                    self._tasks.put(last)
                self._tasks.put(None)

    def join(self, timeout: float | None) -> bool:
        """Wait for the end; False when the time in seconds ran out, and on the thread itself."""
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()


class DedicatedThread(TaskThread):
    """One of its own, from the beginning to :meth:`close`."""

    def __init__(self, name: str) -> None:
        super().__init__(threading.Thread(target=self._work, name=name, daemon=True))
        self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run_logged(task)
            del task  # An idle thread must not keep the last request's arrays alive.


class LentThread(TaskThread):
    """The one that makes it, for as long as that lends itself: the main thread.

    Some things work there only: handlers of signals, some windows and event loops.
    """

    def __init__(self) -> None:
        super().__init__(threading.current_thread())
        self._is_over = False

    @property
    def is_here(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread

    def lend(self) -> None:
        """Run what is due on this thread, which must be the one, until :meth:`close`.

        A signal that Python handles, such as Ctrl-C, waits for the task at work to end.
        """
        arrived: list[int] = []

        def note(number: int) -> None:
            arrived.append(number)
            self._tasks.put(_nothing)  # To be looked at between two tasks.

        handlers: dict[int, Callable[[int, Any], Any]] = {
            int(number): before
            for number in (signal.SIGINT, signal.SIGTERM)
            if callable(before := signal.getsignal(number))
        }
        with hear_signals(dict.fromkeys(handlers, _not_now), note):
            while not self._is_over and (task := self._tasks.get()) is not None:
                _run_logged(task)
                del task
                if arrived:
                    break
            else:
                self._is_over = True
        if arrived:
            handlers[arrived[0]](arrived[0], None)


def _nothing() -> None:
    pass


def _not_now(number: int, frame: object) -> None:
    del number, frame


class Ordered(Protocol):
    """Something that needs its turn at distinct keys, such as lanes or env ids."""

    @property
    def keys(self) -> Iterable[Hashable]:
        """Where it needs its turn."""

    ahead: int
    """Number of keys at which something else is still ahead; written by :class:`Turns`."""


OrderedT = TypeVar("OrderedT", bound=Ordered)


class Turns(Generic[OrderedT]):
    """Gives items their turn at their keys in order of arrival.

    An item that names several keys has its turn when it is first at all of them. Since an item
    joins all its lines at once, two such items can never wait for each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[OrderedT]] = {}

    def enter(self, item: OrderedT) -> bool:
        """Join the lines; True when it is the item's turn already."""
        ahead = 0
        with self._lock:
            for key in item.keys:
                line = self._lines.setdefault(key, deque())
                ahead += bool(line)
                line.append(item)
            item.ahead = ahead
        return ahead == 0

    def leave(self, item: OrderedT) -> list[OrderedT]:
        """End the item's turn; returns the items whose turn it is now."""
        ready: list[OrderedT] = []
        with self._lock:
            for key in item.keys:
                line = self._lines[key]
                line.popleft()
                if not line:
                    del self._lines[key]  # Keys that are gone leave nothing behind.
                    continue
                line[0].ahead -= 1
                if line[0].ahead == 0:
                    ready.append(line[0])
        return ready


def run_together(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls side by side and wait for all of them; a lone one runs here."""
    if len(calls) == 1:
        calls[0]()
        return
    threads = [
        threading.Thread(target=call, name="rlmesh_gym-together", daemon=True) for call in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
