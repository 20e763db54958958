"""Conversations with endpoints: each a generator that yields what it waits for.

A conversion writes one operation as straight code (send, ``yield`` the pending answer, send the
next), and :class:`VectorCall` runs those of all endpoints side by side: everybody sends first, then
all are awaited. An operation that misses its deadline stays suspended where it is, and the next
call carries it to its end.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rlmesh_gym.env.reading.infos import InfoRows
from rlmesh_gym.errors import (
    UNREADABLE,
    CodecError,
    DeadlineError,
    EnvError,
    Error,
    ProtocolError,
    RemoteError,
    why_unreadable,
)
from rlmesh_gym.lanes import any_true
from rlmesh_gym.rpc import AnyPending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.last_observation import Mark


Exchange = Generator[AnyPending, Any, InfoRows]
"""One endpoint's share of an operation."""


class ActiveExchange:
    """One exchange under way.

    A reset's ``indices`` are the env_indices that it is about, with their ``seeds``.

    When it is over, it has returned ``infos`` (``is_done``) or was ended by ``error``.
    ``before`` is what the user was shown of the endpoint's lanes, where others take part too,
    ``steps_before`` counts the endpoint's steps until then, and ``over_before`` are the lanes whose
    episodes had ended. ``is_torn`` means that a KeyboardInterrupt came while it was at work, not
    while it waited, so nobody knows how much of it was done.
    """

    __slots__ = (
        "_exchange",
        "before",
        "endpoint",
        "error",
        "indices",
        "infos",
        "is_done",
        "is_torn",
        "options",
        "over_before",
        "pending",
        "seeds",
        "steps_before",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        *,
        indices: Sequence[int] = (),
        before: Mark | None = None,
        seeds: Sequence[int | None] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.endpoint: Endpoint = endpoint
        self.indices: Sequence[int] = indices
        self.seeds: Sequence[int | None] = seeds
        self.options: Mapping[str, Any] | None = options
        self.before: Mark | None = before
        self.steps_before: int = endpoint.num_steps
        self.over_before: Sequence[int] = ()
        if any_true(endpoint.ended):
            self.over_before = endpoint.ended.nonzero()[0].tolist()
        self._exchange = exchange
        self.pending: AnyPending | None = None
        self.infos: InfoRows = None
        self.error: Error | None = None
        self.is_done: bool = False
        self.is_torn: bool = False

    def proceed(self, timeout: float | None) -> None:
        """Wait for the answer and go on; after a DeadlineError the exchange stays where it is."""
        pending = self.pending
        if pending is None:
            return
        try:
            message = pending.result(timeout)
        except DeadlineError:
            raise
        except Error as error:
            self.go_on(failure=error)
            return
        if self.endpoint.watch is not None:
            self.endpoint.watch(pending)
        self.go_on(message)

    def go_on(self, message: Any = None, failure: Error | None = None) -> None:
        """Send the first request, or take in an answer; what goes wrong stands in ``error``."""
        self.is_torn = True
        self.pending = None
        try:
            if failure is None:
                self.pending = self._exchange.send(message)
            else:
                self.pending = self._exchange.throw(failure)
        except StopIteration as stop:
            self.infos = stop.value
            self.is_done = True
        except UNREADABLE as error:
            if message is None and isinstance(error, CodecError):
                self.error = error
            else:
                self.error = self._unreadable(error)
        except Error as error:
            self.error = error
        self.is_torn = False

    def _unreadable(self, error: Exception) -> ProtocolError:
        message = f"the answer cannot be read: {why_unreadable(error)}"
        wrapped = ProtocolError(message, endpoint=self.endpoint.address)
        wrapped.__cause__ = error
        return wrapped


class VectorCall:
    """A ``"reset"`` or ``"step"``: one run per endpoint that takes part, in lane order."""

    __slots__ = ("batch", "name", "runs")

    def __init__(self, name: str, batch: Batch) -> None:
        self.name: str = name
        self.batch: Batch = batch
        self.runs: list[ActiveExchange] = []

    @property
    def done(self) -> list[ActiveExchange]:
        """The runs that have come to their end."""
        return [run for run in self.runs if run.is_done]

    def finish(self, timeout: float | None) -> None:
        """Carry all runs to their end, within ``timeout`` seconds for the whole.

        After a DeadlineError the runs that were answered are over, and it may be called again.
        """
        runs = self.runs
        deadline = None if timeout is None else time.monotonic() + timeout
        if len(runs) == 1:
            run = runs[0]
            try:
                run.proceed(timeout)
                while run.pending is not None:
                    run.proceed(_left(deadline))
            except DeadlineError as error:
                raise self._late([run], timeout) from error
            return
        late: list[ActiveExchange] = []
        cause: DeadlineError | None = None
        waiting = [run for run in runs if run.pending is not None]
        while waiting:
            for run in waiting:
                try:
                    run.proceed(_left(deadline))
                except DeadlineError as error:  # noqa: PERF203 - the others are awaited too
                    late.append(run)
                    cause = error
            waiting = [run for run in waiting if run.pending is not None and run not in late]
        if late:
            raise self._late(late, timeout) from cause

    def _late(self, late: Sequence[ActiveExchange], timeout: float | None) -> DeadlineError:
        lanes = [lane for run in late for lane in run.endpoint.lanes]
        names = ", ".join(run.endpoint.address for run in late)
        limit = "in time" if timeout is None else f"within {timeout:g} s"
        then = ""
        others = [lane for run in self.done for lane in run.endpoint.lanes]
        if self.name == "step" and others:
            then = f". Lanes {others} {MOVED_ON}"
        return DeadlineError(
            f"{self.name}: no answer {limit} (lanes {lanes}); the request is not sent again, and "
            f"a late answer only counts for the lane table{then}. Raise timeouts.{self.name} for "
            "slow environments",
            endpoint=names,
            operation=self.name,
        )


MOVED_ON = "moved on; the next step() hands out what came for them"
"""What is said of lanes whose step came to its end while that of others did not."""


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def is_final(error: Error) -> bool:
    """Whether the endpoint needs a whole reset after this error."""
    if isinstance(error, EnvError):
        return not error.is_recoverable
    return isinstance(error, RemoteError)
