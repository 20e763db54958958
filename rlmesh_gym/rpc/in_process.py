"""The third way beside gRPC and the Unix-socket link: in process, with nothing serialised.

A session of this kind does the work when it is asked, on the caller's thread. What it answers are
plain objects with the fields of the wire's messages, and batches are handed over as they are.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from rlmesh_gym.codec import LeavesValue
from rlmesh_gym.rpc.config import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.errors import Error, RemoteError
    from rlmesh_gym.rpc.client.pending import Pending


AnyPending: TypeAlias = "Pending[Any] | InProcessPending[Any]"
"""An answer that is due, whatever way it comes."""

M = TypeVar("M")

LOCAL = "local"
"""Stands for the address of something in this process."""


@dataclass(slots=True, eq=False)
class InProcessPending(Generic[M]):
    """An answer that was there when the request returned; see :class:`~rlmesh_gym.rpc.Pending`.

    Attributes:
        elapsed_ns: Nanoseconds that the work took, all of them on the caller's thread.
        held: What a handler says that it holds, after a prediction.
    """

    operation: str
    value: M | None
    error: RemoteError | None
    elapsed_ns: int
    lanes: Sequence[int] = ()
    endpoint: str = LOCAL
    context: Any = None
    held: Any = None

    @property
    def response(self) -> InProcessPending[M] | None:
        """What has the timings of an answer's envelope; None after a failure."""
        return self if self.error is None else None

    @property
    def endpoint_total_ns(self) -> int:
        """All of it was spent at the endpoint."""
        return self.elapsed_ns

    @property
    def user_ns(self) -> int:
        """And nothing else than the user's code counts as work here."""
        return self.elapsed_ns

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self, timeout: float | None = None) -> M:
        """Return the answer, or raise what the work failed with."""
        del timeout
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def abandon(self, error: Error) -> bool:
        """Return False: it has been answered."""
        del error
        return False


class InProcessSession:
    """What sessions with environments and models of this process have in common.

    A call cannot be interrupted and knows no timeout; an interruption takes effect at the next one.

    Its ``endpoint`` is :data:`LOCAL`, its ``timeouts`` are not looked at.
    """

    is_streaming = True

    def __init__(self) -> None:
        self.endpoint = LOCAL
        self.capabilities: dict[str, str] = {}
        self.timeouts: Timeouts = Timeouts()
        self.is_closed: bool = False
        self._interruption: Error | None = None

    @staticmethod
    def pack(codec: SpaceCodec, leaves: Leaves, num_rows: int) -> LeavesValue:
        """Return a batch in the form in which this session's requests take it."""
        del codec, num_rows
        return LeavesValue(leaves)

    def interrupt(self, error: Error) -> None:
        """Fail all later requests with ``error``; safe from any thread."""
        self._interruption = error

    def resume(self) -> None:
        """Take requests again after :meth:`interrupt`."""
        self._interruption = None

    def hang_up(self) -> None:
        """Do nothing: there is no stream."""

    def close(self, reason: str = "", **farewell: Any) -> None:
        """Count as closed; what was served belongs to whoever made it."""
        del reason, farewell
        self.is_closed = True

    def _do(
        self,
        operation: str,
        work: Callable[[], M],
        explain: Callable[[Exception], RemoteError],
        lanes: Sequence[int] = (),
    ) -> InProcessPending[M]:
        """Do the work now; what it raises becomes a failed answer with that as its cause."""
        if self._interruption is not None:
            raise copy.copy(self._interruption)
        begun = time.perf_counter_ns()
        value: M | None = None
        failure: RemoteError | None = None
        try:
            value = work()
        except Exception as error:
            failure = explain(error)
            if failure is not error:
                failure.__cause__ = error
        elapsed = time.perf_counter_ns() - begun
        return InProcessPending(operation, value, failure, elapsed, lanes)
