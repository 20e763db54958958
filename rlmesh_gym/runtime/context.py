"""What all parts of one run share, and how they wait for calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rlmesh_gym.errors import DeadlineError
from rlmesh_gym.runtime.calls import CompletedCall
from rlmesh_gym.runtime.deadlines import add_place
from rlmesh_gym.runtime.telemetry import MODEL_PREDICT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.runtime.calls import Call, Waiter
    from rlmesh_gym.runtime.deadlines import CallPlace
    from rlmesh_gym.runtime.ends.lane_book import LaneBook
    from rlmesh_gym.runtime.hooks.table import HookTable
    from rlmesh_gym.runtime.report.bottleneck import TimeShares
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec
    from rlmesh_gym.runtime.telemetry import CallTiming, Telemetry

__all__ = ["RunContext", "TimedCalls"]

T = TypeVar("T")


class TimedCalls:
    """Waits for calls and books the time that they took.

    Args:
        waiter: Waits, and is woken by a cancellation.
        telemetry: Where each call's timing goes.
        shares: Where the run's time goes.
    """

    def __init__(self, waiter: Waiter, telemetry: Telemetry, shares: TimeShares) -> None:
        self._waiter = waiter
        self._telemetry = telemetry
        self._shares = shares

    def check(self) -> None:
        """Raise :class:`CancelledRunError` if the run was cancelled."""
        self._waiter.check()

    def untimed(self, call: Call[T], timeout: float | None) -> T:
        """Wait for a call that is no part of the loop's work, such as an eviction."""
        return self._waiter.wait(call, timeout)

    def together(
        self,
        calls: Sequence[Call[T]],
        operation: str,
        began: float,
        timeout: float | None,
        place_of: Callable[[int], CallPlace],
    ) -> list[T]:
        """Wait for calls that were sent one after the other and are in flight together.

        Args:
            calls: At least one.
            operation: What they are, for the telemetry.
            began: ``time.perf_counter()`` from before the first was made.
            timeout: Seconds that they have in all; None for ever.
            place_of: Says what a call, by its number, is for; asked when it is late.

        Returns:
            Their results.

        Raises:
            CancelledRunError: The run was cancelled.
            DeadlineError: One was not answered in time.
            Error: What one failed with.
        """
        results: list[T] = []
        timings: list[CallTiming] = []
        self._telemetry.begin(operation)
        try:
            for number, call in enumerate(calls):
                left = timeout
                if timeout is not None:
                    left = max(0.0, timeout - (time.perf_counter() - began))
                try:
                    results.append(self._waiter.wait(call, left))
                except DeadlineError as error:
                    add_place(error, place_of(number))
                    raise
                timing = call.timing
                timings.append(timing)
                self._telemetry.record(operation, timing)
        finally:
            self._telemetry.end()
        waited = time.perf_counter() - began
        if isinstance(calls[0], CompletedCall):
            # What is converted for an end in this process is the loop's own work.
            waited = sum(timing.rpc_ns for timing in timings) / 1e9
        if operation is MODEL_PREDICT:
            self._shares.add_policy(waited, timings)
        else:
            self._shares.add_env(waited, timings)
        return results


@dataclass(frozen=True)
class RunContext:
    """What all parts of one run share.

    Attributes:
        spec: The run, validated.
        book: The book of lanes.
        hooks: Who listens.
        calls: Waits for the ends.
        identity: Session id, run id and env id, the first three fields of every event.
    """

    spec: RuntimeSessionSpec
    book: LaneBook
    hooks: HookTable
    calls: TimedCalls
    identity: tuple[str, str, str]

    def ids(self, lanes: Sequence[int]) -> tuple[str, ...]:
        """Return the ids of the lanes' episodes."""
        episode_ids = self.book.table.episode_ids
        return tuple([episode_ids[lane] for lane in lanes])

    def emit(self, name: str, kind: Any, **fields: Any) -> None:
        """Make an event of this run and call its listeners; ask ``hooks.listens`` before."""
        self.hooks.emit(name, kind(*self.identity, **fields))
