"""The same call on several lanes: one after the other where it is quick, else at the same time.

Knows numbers and callables, not environments.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rlmesh_gym.threads import GrowingExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LaneCalls", "LaneResults"]

T = TypeVar("T")

PARALLEL_SECONDS = 0.0005
"""Mean time of a lane's call from which on threads save more than handing over to them costs."""

_WEIGHT = 0.2
"""Of the newest calls in the running mean."""


@dataclass(slots=True)
class LaneResults(Generic[T]):
    """What the calls gave.

    Attributes:
        values: One per lane, in the order asked.
        user_ns: Nanoseconds that all took together, as a clock on the wall has it.
        skew_ns: Slowest lane's time less the fastest's; None for one lane.
    """

    values: list[T]
    user_ns: int
    skew_ns: int | None


class LaneCalls:
    """Runs calls on lanes, and remembers how long they take.

    Args:
        overlap: Lanes may be at work at the same time.
    """

    def __init__(self, *, overlap: bool) -> None:
        self._executor = GrowingExecutor("rlmesh_gym-lanes") if overlap else None
        self._mean_ns: dict[str, float] = {}

    def run(self, verb: str, lanes: Sequence[int], call: Callable[[int, int], T]) -> LaneResults[T]:
        """Make ``call(row, lane)`` for every lane, also after one has failed.

        Args:
            verb: Name of what is done; each has its own mean.
            lanes: Distinct lanes.
            call: Gets the position in ``lanes`` and the lane.

        Raises:
            BaseException: The first lane's failure, once all lanes are done.
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
        values = self._values(verb, len(lanes), timed)
        user_ns = time.perf_counter_ns() - begun
        if failures:
            raise failures[min(failures)]
        mean = sum(durations) / len(durations)
        self._mean_ns[verb] = mean + (1 - _WEIGHT) * (self._mean_ns.get(verb, mean) - mean)
        skew = max(durations) - min(durations) if len(durations) > 1 else None
        return LaneResults(values, user_ns, skew)

    def close(self) -> None:
        """Let the threads end."""
        if self._executor is not None:
            self._executor.shutdown()

    def _values(self, verb: str, rows: int, timed: Callable[[int], T | None]) -> list[T]:
        is_slow = self._mean_ns.get(verb, 0.0) > PARALLEL_SECONDS * 1e9
        if self._executor is None or rows == 1 or not is_slow:
            return [timed(row) for row in range(rows)]  # type: ignore[misc]
        # This thread would only wait, so it takes a lane itself.
        others = [self._executor.submit(timed, row) for row in range(1, rows)]
        return [timed(0), *(other.result() for other in others)]  # type: ignore[list-item]
