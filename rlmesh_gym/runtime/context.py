"""What all parts of one run share, and how the time of its calls is booked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import DeadlineError
from rlmesh_gym.rpc import InProcessPending
from rlmesh_gym.runtime.report.bottleneck import work_of
from rlmesh_gym.runtime.report.metrics import MODEL_PREDICT

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.rpc import AnyPending
    from rlmesh_gym.runtime.ends.plan import EpisodePlan
    from rlmesh_gym.runtime.hooks.events import RuntimeEvent
    from rlmesh_gym.runtime.hooks.table import HookTable
    from rlmesh_gym.runtime.report.bottleneck import TimeShares
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec
    from rlmesh_gym.runtime.telemetry import Telemetry


class CallClock:
    """Books the time of the calls that go out together, and that of each of them."""

    def __init__(self, telemetry: Telemetry, shares: TimeShares) -> None:
        self._telemetry = telemetry
        self._shares = shares
        self._operation = ""
        self._began = 0.0
        self._sent = 0.0
        self._answers: list[Any] = []
        self._local_ns = 0

    def timed(self, operation: str) -> CallClock:
        """Note that calls of this operation go out now, and enter until all are over."""
        self._operation = operation
        self._answers = []
        self._local_ns = 0
        self._began = self._sent = time.perf_counter()
        self._telemetry.begin(operation, self._began)
        return self

    def __enter__(self) -> None:
        """Do nothing more than :meth:`timed` has done."""

    def sent(self) -> None:
        """Note that all calls have gone out; an endpoint that was lost may have held them up."""
        self._sent = time.perf_counter()

    def left(self, timeout: float | None) -> float | None:
        """Return what is left of ``timeout`` seconds since the calls went out."""
        if timeout is None:
            return None
        return max(0.0, timeout - (time.perf_counter() - self._sent))

    def note(self, pending: AnyPending) -> None:
        """Take in one answer."""
        if isinstance(pending, InProcessPending):
            # Calls into this process are made one after the other.
            self._local_ns += pending.elapsed_ns
        else:
            self._answers.append(pending.response)
        self._telemetry.record(self._operation, pending)

    def __exit__(self, *exc_info: object) -> None:
        """Note that nothing is being waited for any more."""
        self._telemetry.end()
        if self._answers:
            waited = time.perf_counter() - self._began
            work = work_of(waited, self._answers, self._local_ns)
        elif self._local_ns:
            # What is converted for an end in this process is the loop's own work.
            waited = work = self._local_ns / 1e9
        else:
            return
        if self._operation is MODEL_PREDICT:
            self._shares.add_policy(waited, work)
        else:
            self._shares.add_env(waited, work)


@dataclass(frozen=True)
class RunContext:
    """What all parts of one run share.

    Attributes:
        spec: The run, validated.
        identity: Session id, run id and env id, the first three fields of every event.
        note_held: Takes the episodes, and the bytes, that the model says it holds.
    """

    spec: RuntimeSessionSpec
    plan: EpisodePlan
    hooks: HookTable
    clock: CallClock
    identity: tuple[str, str, str]
    note_held: Callable[[int, int | None], None]

    def emit(self, kind: type[RuntimeEvent], **fields: Any) -> None:
        """Make an event of this run and call its listeners; ask ``hooks.listens`` before."""
        self.hooks.emit(kind.name, kind(*self.identity, **fields))


def late(
    error: DeadlineError, limit: str, place: str, timeout: float | None = None
) -> DeadlineError:
    """Return the run's own error for a call that was late, with what the call was for.

    ``limit`` is the run's limit that was met, empty where it was the policy's own, and ``timeout``
    its seconds, where the run waits by it.
    """
    what = str(error).removeprefix(f"{error.endpoint}: ")
    if limit:
        waited = "in time" if timeout is None else f"within {timeout:g} s"
        what = (
            f"{error.operation}: no answer {waited}; the endpoint may still be at work, raise "
            f"limits.{limit} for slow ones"
        )
    return DeadlineError(f"{what} ({place})", endpoint=error.endpoint, operation=error.operation)
