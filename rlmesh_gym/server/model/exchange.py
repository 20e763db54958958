"""One request's way through a model server: wait its turn, work, answer.

Steps that call the handler run on the model thread; all others run on the stream's reader or on a
worker. Whatever goes wrong on the way becomes an in-band answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.errors import ClosedError
from rlmesh_gym.server.model.faults import closed, encode_fault, invalid, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.server.model.clients import Client
    from rlmesh_gym.server.model.service import ModelService

__all__ = ["Exchange", "Unknown", "check_context"]


def check_context(context: interaction_pb2.AdapterContext, operation: str) -> str:
    """Return the env id of a request.

    Raises:
        ModelError: INVALID_REQUEST, not recoverable: there is none.
    """
    if not context.env_id:
        message = f"{operation}: context.env_id is empty; it names the environment"
        raise invalid(message, recoverable=False)
    return context.env_id


class Exchange:
    """One request and its answer.

    ``start`` is called once, when it is this request's turn at all its environments; the turn ends
    with the answer.

    Args:
        service: The server that it belongs to.
        client: Who sent it, or whose end caused it.
        request: The request.
        received_ns: When it came, by ``time.perf_counter_ns``.
        deliver: Takes the answer.

    Attributes:
        keys: The environments whose order the request takes part in.
        ahead: Kept by :class:`~rlmesh_gym.threads.Turns`.
        brief: ``start`` is short and never runs user code, so that the reader may run it itself.
        skippable: Pointless once its stream is gone.
    """

    operation: ClassVar[str]
    brief = False
    skippable: ClassVar[bool] = False

    def __init__(
        self,
        service: ModelService,
        client: Client,
        request: interaction_pb2.JoinRequest,
        received_ns: int,
        deliver: Callable[[interaction_pb2.JoinResponse], None],
    ) -> None:
        self.service = service
        self.client = client
        self.envelope = request
        self.deliver = deliver
        self.keys: tuple[str, ...] = ()
        self.ahead = 0
        self.response: interaction_pb2.JoinResponse = interaction_pb2.JoinResponse(
            request_id=request.request_id
        )
        self._received_ns = received_ns
        self._queue_ns = 0

    def start(self) -> None:
        """Begin; never raises."""
        self._queue_ns = time.perf_counter_ns() - self._received_ns
        if self.skippable and self.client.over.is_set():
            self.finish()  # Nobody is there to read it; the model's time goes to the others.
        else:
            self.guard(self.work)

    def guard(self, step: Callable[[], None]) -> None:
        """Run one step of the way; a failure ends the way with an error answer."""
        try:
            step()
        except BaseException as error:  # Answered in-band, whatever it is: SystemExit too.
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self.response.error.CopyFrom(encode_fault(error, self.operation))
        self.finish()

    def finish(self) -> None:
        """Answer, and end the turn."""
        self.response.endpoint_total_ns = time.perf_counter_ns() - self._received_ns
        self.response.queue_ns = self._queue_ns
        self.service.answered(self)

    def on_model(self, step: Callable[[], None]) -> None:
        """Go on with a step on the model thread."""
        try:
            self.service.model_thread.post(lambda: self.guard(step))
        except ClosedError as error:
            raise closed() from error

    def on_worker(self, step: Callable[[], None]) -> None:
        """Go on with a step on a worker."""
        self.service.workers.run(lambda: self.guard(step))

    def work(self) -> None:
        """First step of the kind."""
        raise NotImplementedError


class Unknown(Exchange):
    """A request without a kind, or with one from a later edition."""

    operation = "request"
    brief = True

    def work(self) -> None:
        """Refuse."""
        raise unsupported("the request is empty, or of a kind that this server does not know")
