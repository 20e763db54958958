"""Calls on lanes: the same one on several, and different ones that are in flight together.

Knows numbers and callables, not environments.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from rlmesh_gym.threads import GrowingExecutor, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future


T = TypeVar("T")

PARALLEL_SECONDS = 0.0005
"""Mean time of a lane's call from which on threads save more than handing over to them costs."""

_WEIGHT = 0.2
"""Of the newest calls in the running mean."""


class LaneCalls:
    """Runs calls on lanes, at the same time where that saves time; ``overlap`` allows it."""

    def __init__(self, *, overlap: bool) -> None:
        self._executor = GrowingExecutor("rlmesh_gym-lanes") if overlap else None
        self._mean_ns: dict[str, float] = {}

    def run(
        self, verb: str, lanes: Sequence[int], call: Callable[[int, int], T]
    ) -> tuple[list[T], int, int | None]:
        """Make ``call(row, lane)`` for every lane; each verb has its own mean time.

        Returns what they gave, their time together in nanoseconds and the lanes' skew; raises the
        first lane's failure, once all lanes are done.
        """
        durations = [0] * len(lanes)
        failures: dict[int, BaseException] = {}

        def timed(row: int) -> T | None:
            begun = time.perf_counter_ns()
            try:
                return call(row, lanes[row])
            except BaseException as error:  # It waits until the other lanes are done.
                failures[row] = error
                return None
            finally:
                durations[row] = time.perf_counter_ns() - begun

        begun = time.perf_counter_ns()
        is_slow = self._mean_ns.get(verb, 0.0) > PARALLEL_SECONDS * 1e9
        others: list[Future[T | None]] = []
        if self._executor is not None and is_slow:
            # This thread would only wait, so it takes a lane itself.
            others = [self._executor.submit(timed, row) for row in range(1, len(lanes))]
        values = [timed(row) for row in range(len(lanes) - len(others))]
        values += [other.result() for other in others]
        user_ns = time.perf_counter_ns() - begun
        if failures:
            raise failures[min(failures)]
        mean = sum(durations) / len(durations)
        self._mean_ns[verb] = mean + (1 - _WEIGHT) * (self._mean_ns.get(verb, mean) - mean)
        skew = max(durations) - min(durations) if len(durations) > 1 else None
        return cast("list[T]", values), user_ns, skew

    def close(self) -> None:
        """Let the threads end."""
        if self._executor is not None:
            self._executor.shutdown()


@dataclass(slots=True, eq=False)
class _LaneTask:
    keys: tuple[int, ...]
    run: Callable[[], object]
    ahead: int = 0


class LaneScheduler:
    """Runs calls on lanes: at the same time on different ones, in order on each.

    ``submit`` blocks while ``max_pending`` calls wait or run.
    """

    def __init__(self, max_pending: int = 4096) -> None:
        self._max_pending = max_pending
        self._pending = 0
        self._changed = threading.Condition()
        self._turns: Turns[_LaneTask] = Turns()
        self._workers = GrowingExecutor("rlmesh_gym-lane")

    def submit(self, lanes: Iterable[int], run: Callable[[], object]) -> None:
        """Have ``run``, which must not raise, called once its lanes' earlier calls are done."""
        task = _LaneTask(tuple(lanes), run)
        with self._changed:
            self._changed.wait_for(lambda: self._pending < self._max_pending)
            self._pending += 1
        if self._turns.enter(task):
            self._workers.run(partial(self._work, task))

    def drain(self) -> None:
        """Wait until everything submitted is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def close(self) -> None:
        """Drain and end the threads."""
        self.drain()
        self._workers.shutdown()

    def _work(self, task: _LaneTask) -> None:
        task.run()
        for ready in self._turns.leave(task):
            self._workers.run(partial(self._work, ready))
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()
