"""Calls on lanes: at the same time on different ones, in order on each. Knows only numbers."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LaneScheduler"]


class _Task:
    __slots__ = ("ahead", "lanes", "run")

    def __init__(self, lanes: tuple[int, ...], run: Callable[[], None]) -> None:
        self.lanes = lanes
        self.run = run
        self.ahead = 0  # Lanes on which another task comes first.


class LaneScheduler:
    """Runs calls on daemon threads, at most one per lane at a time.

    Args:
        num_envs: Number of lanes, and of threads at most.
        max_pending: Calls that may wait or run; ``submit`` blocks beyond.
    """

    def __init__(self, num_envs: int, max_pending: int = 4096) -> None:
        self._queues: list[deque[_Task]] = [deque() for _ in range(num_envs)]
        self._max_pending = max_pending
        self._pending = 0
        self._workers = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: SimpleQueue[_Task | None] = SimpleQueue()

    def submit(self, lanes: Iterable[int], run: Callable[[], None]) -> None:
        """Have ``run`` called once everything submitted before on its lanes is done.

        Args:
            lanes: Distinct lanes, at least one.
            run: Must not raise.
        """
        task = _Task(tuple(lanes), run)
        with self._lock:
            while self._pending >= self._max_pending:
                self._changed.wait()
            self._pending += 1
            for lane in task.lanes:
                queue = self._queues[lane]
                task.ahead += bool(queue)
                queue.append(task)
            if not task.ahead:
                self._start(task)

    def drain(self) -> None:
        """Wait until everything submitted is done."""
        if self._pending:
            with self._lock:
                while self._pending:
                    self._changed.wait()

    def close(self) -> None:
        """Drain and end the threads."""
        self.drain()
        with self._lock:
            for _ in range(self._workers):
                self._ready.put(None)

    def _start(self, task: _Task) -> None:
        if self._idle:
            self._idle -= 1
        elif self._workers < len(self._queues):
            self._workers += 1
            threading.Thread(target=self._work, name="rlmesh_gym-lane", daemon=True).start()
        self._ready.put(task)

    def _work(self) -> None:
        while True:
            task = self._ready.get()
            if task is None:
                return
            task.run()
            with self._lock:
                self._idle += 1
                self._pending -= 1
                for lane in task.lanes:
                    queue = self._queues[lane]
                    queue.popleft()
                    if queue:
                        following = queue[0]
                        following.ahead -= 1
                        if not following.ahead:
                            self._start(following)
                self._changed.notify_all()
