"""Conversations with endpoints: each a generator that yields what it waits for.

A conversion writes one operation as straight code (send, ``yield`` the pending answer, send the
next), and :class:`Call` runs those of all endpoints side by side: everybody sends first, then all
are awaited. An operation that misses its deadline stays suspended where it is, and the next call
carries it to its end.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rlmesh_gym.env.reading.infos import InfoRows
from rlmesh_gym.errors import (
    CodecError,
    DeadlineError,
    EnvError,
    Error,
    ProtocolError,
    RemoteError,
)
from rlmesh_gym.rpc import AnyPending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint


Exchange = Generator[AnyPending, Any, InfoRows]
"""One endpoint's share of an operation."""


class Run:
    """One exchange under way.

    Args:
        endpoint: Whose it is.
        exchange: Not begun yet.
        indices: Lanes that a reset is about, as env_indices.

    Attributes:
        pending: What it waits for; None when it is over.
        infos: What it returned.
        error: What ended it instead.
        is_torn: A KeyboardInterrupt came while the exchange was at work, not while it waited, so
            nobody knows how much of it was done.
    """

    __slots__ = ("_exchange", "endpoint", "error", "indices", "infos", "is_torn", "pending")

    def __init__(self, endpoint: Endpoint, exchange: Exchange, indices: Sequence[int] = ()) -> None:
        self.endpoint: Endpoint = endpoint
        self.indices: Sequence[int] = indices
        self._exchange = exchange
        self.pending: AnyPending | None = None
        self.infos: InfoRows = None
        self.error: Error | None = None
        self.is_torn: bool = False

    def begin(self) -> None:
        """Send the first request; what goes wrong stands in ``error``."""
        self._resume(None, None)

    def proceed(self, timeout: float | None) -> None:
        """Wait for the answer and go on to the next request, or to the end.

        Raises:
            DeadlineError: No answer in time; the exchange stays where it is.
        """
        if self.pending is None:
            return
        pending = self.pending
        try:
            message = pending.result(timeout)
        except DeadlineError:
            raise
        except Error as error:
            self._resume(None, error)
            return
        if self.endpoint.watch is not None:
            self.endpoint.watch(pending)
        self._resume(message, None)

    def _resume(self, message: Any, failure: Error | None) -> None:
        self.is_torn = True
        self.pending = None
        try:
            if failure is None:
                self.pending = self._exchange.send(message)
            else:
                self.pending = self._exchange.throw(failure)
        except StopIteration as stop:
            self.infos = stop.value
        except CodecError as error:
            self.error = error if message is None else self._unreadable(error)
        except Error as error:
            self.error = error
        self.is_torn = False

    def _unreadable(self, error: CodecError) -> ProtocolError:
        wrapped = ProtocolError(
            f"the answer cannot be read: {error}", endpoint=self.endpoint.address
        )
        wrapped.__cause__ = error
        return wrapped


class Call:
    """One operation over the endpoints of a vector.

    Args:
        name: ``"reset"`` or ``"step"``.
        batch: What the exchanges fill.

    Attributes:
        runs: One per endpoint that takes part, in lane order.
    """

    __slots__ = ("batch", "name", "runs")

    def __init__(self, name: str, batch: Batch) -> None:
        self.name: str = name
        self.batch: Batch = batch
        self.runs: list[Run] = []

    @property
    def is_waiting(self) -> bool:
        """Whether some request has no answer yet."""
        return any(run.pending is not None for run in self.runs)

    def finish(self, timeout: float | None) -> None:
        """Carry all runs to their end.

        Args:
            timeout: Seconds for the whole; None waits for ever.

        Raises:
            DeadlineError: Some endpoint has not answered. The other runs are over, and ``finish``
                may be called again.
        """
        runs: Sequence[Run] = self.runs
        if len(runs) == 1:
            run = runs[0]
            deadline = None if timeout is None else time.monotonic() + timeout
            try:
                run.proceed(timeout)
                while run.pending is not None:
                    run.proceed(_left(deadline))
            except DeadlineError as error:
                raise self._late([run], timeout) from error
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        late: list[Run] = []
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

    def _late(self, late: Sequence[Run], timeout: float | None) -> DeadlineError:
        lanes = [lane for run in late for lane in run.endpoint.lanes]
        names = ", ".join(run.endpoint.address for run in late)
        limit = "in time" if timeout is None else f"within {timeout:g} s"
        return DeadlineError(
            f"{self.name}: no answer {limit} (lanes {lanes}); the request is not sent again, and "
            f"a late answer only counts for the lane table. Raise timeouts.{self.name} for slow "
            "environments",
            endpoint=names,
            operation=self.name,
        )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def is_final(error: Error) -> bool:
    """Whether the endpoint needs a whole reset after this error."""
    if isinstance(error, EnvError):
        return not error.is_recoverable
    return isinstance(error, RemoteError)
