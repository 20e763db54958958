"""The Join stream as a pipe: several requests in flight, answers matched by ``request_id``.

It knows nothing of environments or models; what differs between the two stands in a
:class:`~rlmesh_gym.rpc.services.Service`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, EncodeError

from rlmesh_gym.errors import (
    ClosedError,
    CodecError,
    Error,
    ProtocolError,
    UnavailableError,
    why_unreadable,
)
from rlmesh_gym.rpc.client.link import LinkCall
from rlmesh_gym.rpc.client.pending import Pending
from rlmesh_gym.rpc.status import error_from_status, premature_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.rpc.services import Service


MAX_OUTSTANDING = 64
"""Whole-vector requests in flight on one stream; the released server drops connections that queue
some two hundred."""


class JoinStream:
    """One open Join call. Sending is safe from any thread.

    gRPC's own thread takes an answer from the wire, parses it and releases the waiting caller; the
    reader thread here only asks gRPC for the next message. So an answer costs no more thread
    switches than with a bare call.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        service: Service,
        *,
        endpoint: str,
        metadata: tuple[tuple[str, str], ...],
        link: tuple[str, str | None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.error: Error | None = None  # What ended it.
        self.is_open: bool = True
        self._service = service
        self._ids = itertools.count(1)
        self._pendings: dict[str, Pending[Any]] = {}
        self._given_up: set[str] = set()
        self._overdue: set[str] = set()
        self._barriers: deque[Pending[Any]] = deque()
        self._lock = threading.Lock()
        self._last_error: Any = None
        self._is_closing = False
        self._failure: Callable[[str, int], Error] = self._closed
        self._ended = threading.Event()
        self._outbox: SimpleQueue[bytes | None] | LinkCall
        self._call: Any
        if link is not None:
            self._call = self._outbox = LinkCall(*link, self._receive)
        else:
            call: Any = channel.stream_stream(
                f"/{service.name}/Join",
                request_serializer=None,
                response_deserializer=self._receive,
            )
            outbox: SimpleQueue[bytes | None] = SimpleQueue()
            self._outbox = outbox
            self._call = call(iter(outbox.get, None), metadata=metadata)
        threading.Thread(
            target=self._read, name=f"rlmesh_gym-reader-{endpoint}", daemon=True
        ).start()

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return len(self._pendings) + len(self._given_up)

    @property
    def is_overdue(self) -> bool:
        """Whether somebody waited in vain for an answer that has still not come."""
        return bool(self._overdue or self._given_up)

    def send(
        self,
        request: Any,
        kind: str,
        *,
        lanes: Sequence[int] = (),
        context: Any = None,
        timeout: float | None = None,
    ) -> Pending[Any]:
        """Send ``request`` and return what will hold its answer.

        Its ``request_id`` is set here; ``kind`` names its, and so the answer's, arm. Where the
        stream has ended, the pending fails with what ended it. Waits up to ``timeout`` seconds
        while :data:`MAX_OUTSTANDING` requests are unanswered.

        Raises:
            DeadlineError: Too many requests are unanswered.
            CodecError: The request is too large to be encoded.
        """
        request.request_id = request_id = str(next(self._ids))
        try:
            data = request.SerializeToString()
        except (EncodeError, ValueError) as error:
            raise CodecError(f"{kind}: the request cannot be encoded: {error}") from error
        pending: Pending[Any] = Pending(
            self,
            self._service,
            kind,
            endpoint=self.endpoint,
            request_id=request_id,
            request_bytes=len(data),
            lanes=lanes,
            context=context,
        )
        while (ahead := self._put(data, request_id, pending)) is not None:
            ahead.wait(timeout)
        return pending

    def give_up(self, pending: Pending[Any], error: Error) -> bool:
        """Fail a request of this stream with ``error``; return False if it was answered before."""
        # Noted first: an answer that comes in between takes the pending, and the note is withdrawn.
        self._given_up.add(pending.request_id)
        if self._pendings.pop(pending.request_id, None) is None:
            self._given_up.discard(pending.request_id)
            return False
        pending.fail(error)
        return True

    def give_up_all(self, error: Error) -> None:
        """Fail every request in flight with ``error``."""
        for pending in list(self._pendings.values()):
            self.give_up(pending, error)

    def note_overdue(self, pending: Pending[Any]) -> None:
        """Note that a wait for an answer of this stream has ended without it."""
        self._overdue.add(pending.request_id)
        if pending.done():
            self._overdue.discard(pending.request_id)

    def half_close(self) -> None:
        """Send nothing more; what is in flight is still answered."""
        with self._lock:
            self.is_open = False
            self._is_closing = True
            self._outbox.put(None)

    def wait_ended(self, timeout: float | None) -> bool:
        """Wait until the peer has ended the stream; return whether it has."""
        return self._ended.wait(timeout)

    def cancel(self) -> None:
        """Drop the call at once. Takes no lock, so that a finalizer may call it anywhere."""
        self.is_open = False
        self._is_closing = True
        self._outbox.put(None)
        self._call.cancel()

    def _put(self, data: bytes, request_id: str, pending: Pending[Any]) -> Pending[Any] | None:
        """Send, unless too much is unanswered: then return the answer to wait for first."""
        with self._lock:
            if not self.is_open:
                # As if it had been sent just before the end, so that callers handle one way only.
                pending.fail(self._failure(pending.operation, pending.request_bytes))
                return None
            if not pending.lanes:
                barriers = self._barriers
                while barriers and barriers[0].done():
                    barriers.popleft()
                if len(barriers) >= MAX_OUTSTANDING:
                    return barriers[0]
                barriers.append(pending)
            self._pendings[request_id] = pending
            self._outbox.put(data)
        return None

    def _receive(self, data: bytes) -> bool:
        # Runs on gRPC's thread as the "deserializer" of an answer. An exception here would only be
        # logged by gRPC, so everything is turned into the failure of a request.
        try:
            response = self._service.parse(data)
        except (DecodeError, MemoryError) as error:
            text = f"an answer cannot be read ({why_unreadable(error)})"
            self._end(
                lambda operation, _: ProtocolError(
                    f"{operation}: {text}", endpoint=self.endpoint, operation=operation
                )
            )
            self._call.cancel()
            return False
        pending = self._pendings.pop(response.request_id, None)
        if response.HasField("error"):
            self._last_error = response.error
        if pending is not None:
            pending.complete(response, len(data))
            self._overdue.discard(response.request_id)
        else:  # Nobody asked for it, or nobody waits any more.
            self._given_up.discard(response.request_id)
        return True

    def _read(self) -> None:
        code: grpc.StatusCode = grpc.StatusCode.OK
        with contextlib.suppress(ValueError):  # So gRPC says that the channel was closed meanwhile.
            with contextlib.suppress(grpc.RpcError):  # Its status is read as that of a clean end.
                for _ in self._call:
                    pass
            code = self._call.code()
        if code is grpc.StatusCode.OK:
            self._end(self._premature_end)
            return
        details = self._call.details()
        to = {"endpoint": self.endpoint, "kind": self._service.kind}
        self._end(lambda operation, _: error_from_status(code, details, operation=operation, **to))

    def _end(self, make_error: Callable[[str, int], Error]) -> None:
        """End it; ``make_error`` explains that to a request of so many bytes, given its kind."""
        with self._lock:
            if self._ended.is_set():
                return
            self.is_open = False
            pendings = []
            # One by one: an answer, or somebody who gives up, may take one of them meanwhile.
            while self._pendings:
                with contextlib.suppress(KeyError):
                    pendings.append(self._pendings.popitem()[1])
            if not self._is_closing:
                self._failure = make_error
            self.error = self._failure("session", 0)
            self._outbox.put(None)  # gRPC's sender thread waits there, also after the end.
            self._ended.set()
        for pending in pendings:
            pending.fail(self._failure(pending.operation, pending.request_bytes))

    def _closed(self, operation: str, _: int) -> Error:
        return ClosedError(f"{self.endpoint}: {operation}: the session was closed")

    def _premature_end(self, operation: str, request_bytes: int) -> Error:
        where = {"endpoint": self.endpoint, "operation": operation}
        if self._last_error is None:
            return premature_end(**where, request_bytes=request_bytes)
        reason = f"the endpoint ended the session after its error: {self._last_error.message}"
        return UnavailableError(f"{operation}: {reason}", **where)
