"""One client's Join stream on a model server: requests in, answers out, in whatever order they end.

A thread of its own reads, so that a request for one environment overtakes a slow one for another.
"""

from __future__ import annotations

import logging
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.errors import Error
from rlmesh_gym.rpc import Refused
from rlmesh_gym.server.model.adapters import Release, Reset, Resolve, release
from rlmesh_gym.server.model.client import Client
from rlmesh_gym.server.model.faults import closed, encode_fault
from rlmesh_gym.server.model.predict import GroupedPredict, Predict
from rlmesh_gym.server.model.service import ModelCall, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlmesh_gym.server.model.service import ModelService


_logger = logging.getLogger(__name__)

MAX_IN_WORK = 32
"""Requests of one stream that are read but not answered; further ones wait in the transport."""

_PATIENCE = 0.0005
"""Seconds that the reader leaves the interpreter to the only request in work. Short ones are
answered by then, and do not share the interpreter with the look for the next."""

_KINDS: dict[str | None, type[ModelCall]] = {
    kind.operation: kind for kind in (Resolve, Predict, GroupedPredict, Reset, Release)
}


class ModelStream:
    """The life of one Join call. Its requests end at half-close, and raise when it is lost."""

    def __init__(
        self,
        service: ModelService,
        requests: Iterator[interaction_pb2.JoinRequest],
        connection: str = "",
    ) -> None:
        self.service = service
        self.client: Client = Client(connection)
        self._requests = requests
        self._outbox: SimpleQueue[interaction_pb2.JoinResponse | Error | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._in_work = 0
        self._draining = False
        self._quiet = threading.Lock()  # Held while something is in work.

    def responses(self) -> Iterator[interaction_pb2.JoinResponse]:
        """Serve until the client closes or is lost; gives the answers as they become ready."""
        if not self.service.add_stream(self.drain):
            raise Refused("UNAVAILABLE", "the model server is stopping")
        try:
            threading.Thread(target=self._read, name="rlmesh_gym-model-reader", daemon=True).start()
            while (response := self._outbox.get()) is not None:
                if isinstance(response, Error):
                    raise response
                yield response
                del response  # It holds the request's arrays while the client thinks.
                self._sent()
        finally:
            self.lose()
            self.service.remove_stream(self.drain)

    def lose(self) -> None:
        """The stream is over: queued predictions are dropped, and nothing more is sent."""
        with self._changed:
            self.client.over.set()
            self._changed.notify_all()
        self._outbox.put(None)

    def drain(self) -> None:
        """Refuse further requests, and end after the last answer."""
        with self._changed:
            self._draining = True
            if self._in_work == 0:
                self._outbox.put(None)

    def _read(self) -> None:
        while True:
            try:
                request = next(self._requests, None)
            except Error as error:  # The client's bytes make no request: its call ends with that.
                self._outbox.put(error)
                return
            except Exception as error:  # gRPC's own kinds; all mean a lost call.
                _logger.debug("a model stream was lost: %s", error)
                self.lose()
                return
            if request is None:
                break
            received_ns = time.perf_counter_ns()
            if not self._admit():
                return
            if self._draining:
                refusal = encode_fault(closed(), "join")
                self._outbox.put(
                    interaction_pb2.JoinResponse(request_id=request.request_id, error=refusal)
                )
            elif request.WhichOneof("kind") == "close":
                self._close(request, received_ns)
                break
            else:
                self._dispatch(request, received_ns)
        # After half-close what is in work is still answered.
        self._wait(lambda: self._in_work == 0)
        self._outbox.put(None)

    def _dispatch(self, request: interaction_pb2.JoinRequest, received_ns: int) -> None:
        kind = _KINDS.get(request.WhichOneof("kind"), Unknown)
        self._quiet.acquire(blocking=False)
        self.service.dispatch(
            kind(self.service, self.client, request, received_ns, self._outbox.put)
        )
        if self._in_work == 1:
            self._quiet.acquire(timeout=_PATIENCE)

    def _close(self, request: interaction_pb2.JoinRequest, received_ns: int) -> None:
        """Wait for what is in work, release this client's adapters, answer."""
        if not self._wait(lambda: self._in_work <= 1):  # The close itself is in work too.
            return
        released: SimpleQueue[interaction_pb2.JoinResponse] = SimpleQueue()
        routes = self.service.routes.owned_by(self.client.sessions)
        reason = request.close.reason or "its client closes the session"
        for route in routes:
            release(self.service, self.client, route, reason, released.put)
        response = interaction_pb2.JoinResponse(request_id=request.request_id)
        response.close.SetInParent()
        for _ in routes:
            answer = released.get()
            if answer.HasField("error"):
                # The adapters are gone all the same, and the client is leaving.
                _logger.warning("while closing a session: %s", answer.error.message)
        response.endpoint_total_ns = time.perf_counter_ns() - received_ns
        self._outbox.put(response)

    def _admit(self) -> bool:
        """Wait for room; False when the stream is over."""
        if self._in_work >= MAX_IN_WORK:  # Only this thread adds to it.
            self._wait(lambda: self._in_work < MAX_IN_WORK)
        with self._changed:
            self._in_work += 1
        return not self.client.over.is_set()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.client.over.is_set() or condition())
            return not self.client.over.is_set()

    def _sent(self) -> None:
        with self._changed:
            self._in_work -= 1
            self._changed.notify_all()
            if self._in_work == 0:
                if self._quiet.locked():
                    self._quiet.release()
                if self._draining:
                    self._outbox.put(None)
