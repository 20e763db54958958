"""The Join stream as a pipe: several requests in flight, answers matched by ``request_id``.

It knows nothing of environments or models; what differs between the two stands in a
:class:`JoinMethod`.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, EncodeError

from rlmesh_gym.errors import (
    ClosedError,
    CodecError,
    DeadlineError,
    Error,
    ForkedError,
    ProtocolError,
    UnavailableError,
)
from rlmesh_gym.rpc.status import error_from_status, premature_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.rpc.channel import Metadata

__all__ = ["MAX_OUTSTANDING", "JoinMethod", "JoinStream", "Pending"]

M = TypeVar("M")

MAX_OUTSTANDING = 64
"""Whole-vector requests in flight on one stream; the released server drops connections that queue
some two hundred."""


@dataclass(frozen=True, slots=True)
class JoinMethod:
    """What a service's Join method is made of.

    Attributes:
        path: The method's full name, as gRPC calls it.
        kind: ``"env"`` or ``"model"``.
        response_type: Message class of the answers.
        error: Turns an in-band error into one of this package's.
    """

    path: str
    kind: str
    response_type: Any
    error: Callable[[Any, Pending[Any]], Error]


class Pending(Generic[M]):
    """An answer that is due. Made by a session; safe to wait on from any thread.

    Attributes:
        endpoint: The address, for messages.
        operation: What was asked, such as ``"step"``.
        lanes: ``env_indices`` of the request, empty for the whole vector.
        context: What else the session noted about the request.
        response: The answer's envelope, with its timings; ``None`` until :meth:`done`.
        request_id: Names the request on its stream.
        request_bytes: Size of the encoded request.
        response_bytes: Size of the encoded answer; 0 until :meth:`done`.
    """

    __slots__ = (
        "_done_ns",
        "_error",
        "_gate",
        "_kind",
        "_method",
        "_pid",
        "_sent_ns",
        "_stream",
        "context",
        "endpoint",
        "lanes",
        "operation",
        "request_bytes",
        "request_id",
        "response",
        "response_bytes",
    )

    def __init__(
        self,
        stream: JoinStream,
        method: JoinMethod,
        kind: str,
        *,
        request_id: str,
        endpoint: str,
        operation: str,
        request_bytes: int = 0,
        lanes: Sequence[int] = (),
        context: Any = None,
    ) -> None:
        self.endpoint = endpoint
        self.operation = operation
        self.lanes = lanes
        self.context = context
        self.response: Any = None
        self.request_bytes = request_bytes
        self.response_bytes = 0
        self.request_id = request_id
        self._stream = stream
        self._method = method
        self._kind = kind
        self._error: Error | None = None
        self._pid = os.getpid()
        # A bare lock is the cheapest thing to wait on, and a signal can break the wait.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._sent_ns = time.perf_counter_ns()
        self._done_ns = 0

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds from sending to the answer, or until now."""
        return (self._done_ns or time.perf_counter_ns()) - self._sent_ns

    def done(self) -> bool:
        """Return whether :meth:`result` returns, or raises, without waiting."""
        return self._done_ns != 0

    def result(self, timeout: float | None = None) -> M:
        """Wait for the answer and return the message of its kind.

        Args:
            timeout: Seconds; ``None`` waits for ever.

        Raises:
            DeadlineError: Not in time. The answer may still come: call again, or drop this object.
            EnvError: The environment, or its server, answered with an error.
            ModelError: The model, or its server, did.
            UnavailableError: The connection was lost or the session ended.
            ProtocolError: The answer is of another kind than the request.
            ClosedError: The session was closed meanwhile.
            ForkedError: Called in a forked child.
        """
        if not self._done_ns:
            self._wait(timeout)
        if self._error is not None:
            raise copy.copy(self._error)
        response = self.response
        kind = response.WhichOneof("kind")
        if kind == self._kind:
            return getattr(response, kind)  # type: ignore[no-any-return]
        if kind == "error":
            raise self._method.error(response.error, self)
        raise ProtocolError(
            f"{self.operation}: expected an answer of kind {self._kind!r}, got {kind!r}; "
            "the endpoint breaks the protocol",
            endpoint=self.endpoint,
            operation=self.operation,
        )

    def abandon(self, error: Error) -> bool:
        """Give up on the answer: whoever waits, or calls :meth:`result` later, gets ``error``.

        Safe from any thread. The request stays at work on the other end; its late answer is
        dropped.

        Returns:
            False where the answer was already there; nothing changes then.
        """
        return self._stream.give_up(self, error)

    def _wait(self, timeout: float | None) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{self.operation}: the answer belongs to the parent process; connect anew here"
            )
        limit = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if self._gate.acquire(timeout=limit):
            self._gate.release()
            return
        raise DeadlineError(
            f"{self.operation}: no answer within {timeout:g} s; the endpoint may still be at work, "
            f"raise timeouts.{_timeout_field(self.operation)} for slow ones",
            endpoint=self.endpoint,
            operation=self.operation,
        )

    def _complete(self, response: Any, size: int) -> None:
        self.response = response
        self.response_bytes = size
        self._done_ns = time.perf_counter_ns()
        self._gate.release()

    def _fail(self, error: Error) -> None:
        self._error = error
        self._done_ns = time.perf_counter_ns()
        self._gate.release()


def _timeout_field(operation: str) -> str:
    return {"resolve_adapter": "resolve", "grouped_predict": "predict"}.get(operation, operation)


class JoinStream:
    """One open Join call. Sending is safe from any thread.

    gRPC's own thread takes an answer from the wire, parses it and releases the waiting caller; the
    reader thread here only asks gRPC for the next message. So an answer costs no more thread
    switches than with a bare call.
    """

    def __init__(
        self, channel: grpc.Channel, method: JoinMethod, *, endpoint: str, metadata: Metadata
    ) -> None:
        self.endpoint = endpoint
        self.error: Error | None = None
        self._method = method
        self._ids = itertools.count(1)
        self._pendings: dict[str, Pending[Any]] = {}
        self._given_up: set[str] = set()
        self._barriers: deque[Pending[Any]] = deque()
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._last_error: Any = None
        self._is_open = True
        self._is_closing = False
        self._ended = threading.Event()
        call: Any = channel.stream_stream(
            method.path, request_serializer=None, response_deserializer=self._receive
        )
        self._call: Any = call(iter(self._outbox.get, None), metadata=metadata)
        threading.Thread(
            target=self._read, name=f"rlmesh_gym-reader-{endpoint}", daemon=True
        ).start()

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._is_open

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return len(self._pendings) + len(self._given_up)

    def send(
        self,
        request: Any,
        kind: str,
        *,
        operation: str | None = None,
        lanes: Sequence[int] = (),
        context: Any = None,
        timeout: float | None = None,
    ) -> Pending[Any]:
        """Send ``request`` and return what will hold its answer.

        Args:
            request: A JoinRequest; its ``request_id`` is set here.
            kind: Name of the request's, and so the answer's, arm.
            operation: For messages; ``kind`` by default.
            lanes: ``env_indices`` of the request.
            context: Kept on the pending.
            timeout: Seconds to wait while :data:`MAX_OUTSTANDING` requests are unanswered.

        Raises:
            DeadlineError: Too many requests are unanswered.
            Error: What ended the stream, where it has ended.
        """
        request.request_id = request_id = str(next(self._ids))
        try:
            data = request.SerializeToString()
        except (EncodeError, ValueError) as error:
            raise CodecError(
                f"{operation or kind}: the request cannot be encoded: {error}"
            ) from error
        pending: Pending[Any] = Pending(
            self,
            self._method,
            kind,
            request_id=request_id,
            endpoint=self.endpoint,
            operation=operation or kind,
            request_bytes=len(data),
            lanes=lanes,
            context=context,
        )
        while not self._put(data, request_id, pending):
            self._barriers[0]._wait(timeout)  # noqa: SLF001 - one concern, two classes
        return pending

    def give_up(self, pending: Pending[Any], error: Error) -> bool:
        """Fail a request of this stream with ``error``; return False if it was answered before."""
        # Noted first: an answer that comes in between takes the pending, and the note is withdrawn.
        self._given_up.add(pending.request_id)
        if self._pendings.pop(pending.request_id, None) is None:
            self._given_up.discard(pending.request_id)
            return False
        pending._fail(error)  # noqa: SLF001
        return True

    def half_close(self) -> None:
        """Send nothing more; what is in flight is still answered."""
        with self._lock:
            self._is_open = False
            self._is_closing = True
            self._outbox.put(None)

    def wait_ended(self, timeout: float | None) -> bool:
        """Wait until the peer has ended the stream; return whether it has."""
        return self._ended.wait(timeout)

    def cancel(self) -> None:
        """Drop the call at once. Takes no lock, so that a finalizer may call it anywhere."""
        self._is_open = False
        self._is_closing = True
        self._outbox.put(None)
        self._call.cancel()

    def _put(self, data: bytes, request_id: str, pending: Pending[Any]) -> bool:
        with self._lock:
            if not self._is_open:
                raise copy.copy(self.error) if self.error else self._closed(pending)
            if not pending.lanes:
                barriers = self._barriers
                while barriers and barriers[0].done():
                    barriers.popleft()
                if len(barriers) >= MAX_OUTSTANDING:
                    return False
                barriers.append(pending)
            self._pendings[request_id] = pending
            self._outbox.put(data)
        return True

    def _receive(self, data: bytes) -> bool:
        # Runs on gRPC's thread as the "deserializer" of an answer. An exception here would only be
        # logged by gRPC, so everything is turned into the failure of a request.
        try:
            response = self._method.response_type.FromString(data)
        except DecodeError as error:
            text = f"an answer cannot be read ({error}); the endpoint breaks the protocol"
            self._end(lambda pending: self._protocol_error(pending, text))
            self._call.cancel()
            return False
        pending = self._pendings.pop(response.request_id, None)
        if response.HasField("error"):
            self._last_error = response.error
        if pending is not None:
            pending._complete(response, len(data))  # noqa: SLF001
        else:  # Nobody asked for it, or nobody waits any more.
            self._given_up.discard(response.request_id)
        return True

    def _read(self) -> None:
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass  # The status is read below, where a clean end has one too.
        except ValueError:  # gRPC's way to say that the channel was closed meanwhile.
            self._end(self._premature_end)
            return
        code: grpc.StatusCode = self._call.code()
        if code is grpc.StatusCode.OK:
            self._end(self._premature_end)
            return
        details = self._call.details()
        self._end(
            lambda pending: error_from_status(
                code,
                details,
                endpoint=self.endpoint,
                operation=pending.operation if pending else "session",
                kind=self._method.kind,
            )
        )

    def _end(self, make_error: Callable[[Pending[Any] | None], Error]) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._is_open = False
            pendings = list(self._pendings.values())
            self._pendings.clear()
            self.error = self._closed(None) if self._is_closing else make_error(None)
            self._outbox.put(None)  # gRPC's sender thread waits there, also after the end.
            self._ended.set()
        for pending in pendings:
            pending._fail(  # noqa: SLF001
                self._closed(pending) if self._is_closing else make_error(pending)
            )

    def _closed(self, pending: Pending[Any] | None) -> ClosedError:
        operation = pending.operation if pending else "session"
        return ClosedError(f"{self.endpoint}: {operation}: the session was closed")

    def _protocol_error(self, pending: Pending[Any] | None, text: str) -> ProtocolError:
        operation = pending.operation if pending else "session"
        return ProtocolError(f"{operation}: {text}", endpoint=self.endpoint, operation=operation)

    def _premature_end(self, pending: Pending[Any] | None) -> Error:
        if pending is None and self._last_error is not None:
            return UnavailableError(
                f"the endpoint ended the session after its error: {self._last_error.message}",
                endpoint=self.endpoint,
                operation="session",
            )
        return premature_end(
            endpoint=self.endpoint,
            operation=pending.operation if pending else "session",
            request_bytes=pending.request_bytes if pending else 0,
        )
