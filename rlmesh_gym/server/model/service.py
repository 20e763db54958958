"""What all streams of a model server share: the handler, its routes, and who may run when."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from rlmesh_gym.server.model.routes import RouteTable
from rlmesh_gym.threads import DedicatedThread, GrowingExecutor, Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.model import ModelHandler, ModelRouteSetup

__all__ = ["ModelService"]

_logger = logging.getLogger(__name__)

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


class Request(Protocol):
    """A request on its way; see :class:`~rlmesh_gym.server.model.exchange.Exchange`."""

    keys: tuple[str, ...]
    ahead: int
    brief: bool
    response: interaction_pb2.JoinResponse
    deliver: Callable[[interaction_pb2.JoinResponse], None]

    def start(self) -> None:
        """Begin; never raises."""
        ...


class Drainable(Protocol):
    """A stream of requests."""

    def drain(self) -> None:
        """Refuse further requests, and end after the last answer."""
        ...


class ModelService:
    """The state of one model server, without its gRPC host.

    Args:
        handler: The model.
        max_adapters: Bound on the environments resolved at the same time.
    """

    def __init__(self, handler: ModelHandler, *, max_adapters: int) -> None:
        self.handler = handler
        self.setup: ModelRouteSetup | None = handler.route_setup()
        self.routes: RouteTable = RouteTable(max_adapters)
        self.order: Turns[Request] = Turns()
        self.model_thread: DedicatedThread = DedicatedThread("rlmesh_gym-model")
        self.workers: GrowingExecutor = GrowingExecutor("rlmesh_gym-model-worker")
        self.last_activity: float = time.monotonic()
        self._lock = threading.Lock()
        self._in_flight = 0
        self._streams: set[Drainable] = set()
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """Number of requests that have come and are not answered yet."""
        return self._in_flight

    def dispatch(self, exchange: Request) -> None:
        """Take a request in; it starts when its turn comes."""
        with self._lock:
            self._in_flight += 1
        if self.order.enter(exchange):
            if exchange.brief:
                exchange.start()
            else:
                self.workers.run(exchange.start)

    def answered(self, exchange: Request) -> None:
        """Hand an answer over and let the next requests have their turn."""
        with self._lock:
            exchange.response.in_flight = min(self._in_flight, _UINT32_MAX)
            self._in_flight -= 1
        self.last_activity = time.monotonic()
        exchange.deliver(exchange.response)
        for ready in self.order.leave(exchange):
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

    def add_stream(self, stream: Drainable) -> bool:
        """Count a stream in; False when the server is stopping."""
        with self._lock:
            if self._stopping:
                return False
            self._streams.add(stream)
        self.last_activity = time.monotonic()
        return True

    def remove_stream(self, stream: Drainable) -> None:
        """Count a stream out."""
        with self._lock:
            self._streams.discard(stream)

    def drain(self) -> None:
        """Take no further requests; each stream ends after its last answer."""
        with self._lock:
            self._stopping = True
            streams = list(self._streams)
        for stream in streams:
            stream.drain()

    def close(self, last: Callable[[], None], timeout: float) -> bool:
        """End the threads, once all streams are gone.

        Args:
            last: Closes the handler, after its last call.
            timeout: Seconds to wait for that.

        Returns:
            False when it took longer.
        """
        self.model_thread.close(last)
        done = self.model_thread.join(timeout)
        self.workers.shutdown()
        return done
