"""What all streams of a model server share, and one request's way through it.

A request waits its turn, works and answers. Steps that call the handler run on the model thread;
all others run on the stream's reader or on a worker. Whatever goes wrong on the way becomes an
in-band answer.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.errors import ClosedError
from rlmesh_gym.server.model.faults import closed, encode_fault, invalid, unsupported
from rlmesh_gym.server.model.routes import RouteTable
from rlmesh_gym.threads import DedicatedThread, GrowingExecutor, Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.model import ModelHandler, ModelRouteSetup
    from rlmesh_gym.server.model.client import Client


_logger = logging.getLogger(__name__)

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


class ModelService:
    """The state of one model server, without its gRPC host."""

    def __init__(self, handler: ModelHandler, *, max_adapters: int) -> None:
        self.handler = handler
        self.setup: ModelRouteSetup | None = handler.route_setup()
        self.routes: RouteTable = RouteTable(max_adapters)
        self.order: Turns[ModelCall] = Turns()
        self.model_thread: DedicatedThread = DedicatedThread("rlmesh_gym-model")
        self.workers: GrowingExecutor = GrowingExecutor("rlmesh_gym-model-worker")
        self.last_activity: float = time.monotonic()
        self._lock = threading.Lock()
        self.in_flight: int = 0  # Requests that have come and are not answered yet.
        self._drains: set[Callable[[], None]] = set()
        self._stopping = False

    def dispatch(self, call: ModelCall) -> None:
        """Take a request in; it starts when its turn comes."""
        with self._lock:
            self.in_flight += 1
        if self.order.enter(call):
            if call.brief:
                call.start()
            else:
                self.workers.run(call.start)

    def answered(self, call: ModelCall) -> None:
        """Hand an answer over and let the next requests have their turn."""
        with self._lock:
            call.response.in_flight = min(self.in_flight, _UINT32_MAX)
            self.in_flight -= 1
        self.last_activity = time.monotonic()
        call.deliver(call.response)
        for ready in self.order.leave(call):
            self.workers.run(ready.start)

    def read_model(self, response: interaction_pb2.JoinResponse) -> None:
        """Put what the handler tells about itself on a response. Model thread only."""
        try:
            adapter_ns = self.handler.take_adapter_ns()
            held = self.handler.held_state()
            if adapter_ns is not None:
                response.adapter_ns = min(max(int(adapter_ns), 0), _UINT64_MAX)
            if held is not None:
                response.held_episodes = min(max(int(held.episodes), 0), _UINT32_MAX)
                if held.bytes is not None:
                    response.held_state_bytes = min(max(int(held.bytes), 0), _UINT64_MAX)
        except BaseException:
            # Telemetry must not fail a prediction that went well.
            _logger.exception("held_state or take_adapter_ns failed")

    def add_stream(self, drain: Callable[[], None]) -> bool:
        """Count a stream in, by its way to be drained; False when the server is stopping."""
        with self._lock:
            if self._stopping:
                return False
            self._drains.add(drain)
        self.last_activity = time.monotonic()
        return True

    def remove_stream(self, drain: Callable[[], None]) -> None:
        """Count a stream out."""
        with self._lock:
            self._drains.discard(drain)

    def drain(self) -> None:
        """Take no further requests; each stream ends after its last answer."""
        with self._lock:
            self._stopping = True
            drains = list(self._drains)
        for drain in drains:
            drain()

    def close(self, last: Callable[[], None], timeout: float) -> bool:
        """End the threads, once all streams are gone; False when the last call took longer.

        ``last`` closes the handler, after its last call.
        """
        self.model_thread.close(last)
        done = self.model_thread.join(timeout)
        self.workers.shutdown()
        return done


def check_context(context: interaction_pb2.AdapterContext, operation: str) -> str:
    """Return the env id of a request, which must have one."""
    if not context.env_id:
        raise invalid(
            f"{operation}: context.env_id is empty; it names the environment", recoverable=False
        )
    return context.env_id


class ModelCall:
    """One request of ``client``, or one that its end caused, and the answer.

    ``start`` is called once, when it is this request's turn at all its environments; the turn ends
    with the answer. ``keys`` are the environments whose order it takes part in.
    """

    operation: ClassVar[str]  # As the wire names the kind of request.
    brief = False  # ``start`` is short and runs no user code, so that the reader may run it itself.
    skippable: ClassVar[bool] = False  # Pointless once its stream is gone.

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
        self.request: Any = getattr(request, self.operation, None)
        self.deliver = deliver
        context = getattr(self.request, "context", None)
        self.keys: tuple[str, ...] = () if context is None else (context.env_id,)
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


class Unknown(ModelCall):
    """A request without a kind, or with one from a later edition."""

    operation = "request"
    brief = True

    def work(self) -> None:
        """Refuse."""
        raise unsupported("not supported: an empty request, or one of an unknown kind")
