"""A Join stream over a bare Unix socket, for an embedded server and the process that started it.

The messages are those of gRPC's Join method. Only the way is shorter: no HTTP/2 and no threads of
gRPC's, which take four fifths of a small step. A *frame* is a kind, a length and a payload; the
client begins with the token, and the server ends with a status.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any

import grpc

from rlmesh_gym.codec.spaces.limits import max_message_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MESSAGE, STATUS, TOKEN = 0, 1, 2
_HEADER = struct.Struct("<BI")
_BUFFER_BYTES = 64 * 1024
_LOST = "the connection was lost"


class FrameSizeError(Exception):
    """A frame promises more than is taken; the text is that of gRPC's own error."""


def read_frame(stream: IO[bytes], limit: int) -> tuple[int, bytes] | None:
    """Read the next frame's kind and payload; None at the end, in order or not.

    Raises:
        FrameSizeError: The payload has more than ``limit`` bytes; it is not read.
    """
    try:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        kind, size = _HEADER.unpack(header)
        if size > limit:
            raise FrameSizeError(f"Received message larger than max ({size} vs. {limit})")
        payload = stream.read(size)
    except (OSError, ValueError, MemoryError):  # Reset, closed meanwhile, or not our protocol.
        return None
    return (kind, payload) if len(payload) == size else None


def send_frame(sock: socket.socket, kind: int, payload: bytes, *, flags: int = 0) -> int:
    """Send a frame; return how many of its bytes are left, which only ``flags`` can leave."""
    header = _HEADER.pack(kind, len(payload))
    total = len(header) + len(payload)
    sent = sock.sendmsg([header, payload], [], flags)
    if sent < total and not flags:
        _send_rest(sock, header, payload, sent)
        return 0
    return total - sent


def _send_rest(sock: socket.socket, header: bytes, payload: bytes, sent: int) -> None:
    if sent < len(header):
        sock.sendall(header[sent:])
        sent = len(header)
    sock.sendall(memoryview(payload)[sent - len(header) :])


class LinkCall:
    """The client's end of one Join stream, in the shape of a gRPC call and of its outbox.

    A socket that cannot be connected makes a call that ends at once with UNAVAILABLE. ``receive``
    is called with each answer, on the thread that iterates.
    """

    def __init__(self, path: str, token: str | None, receive: Callable[[bytes], object]) -> None:
        self._receive = receive
        self._limit = max_message_bytes()
        self._code = grpc.StatusCode.UNAVAILABLE
        self._details = _LOST
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[bytes, int] | None] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            send_frame(self._socket, TOKEN, (token or "").encode())
        except OSError as error:
            self._details = error.strerror or str(error)
        self._stream: Any = self._socket.makefile("rb", buffering=_BUFFER_BYTES)

    def put(self, data: bytes | None) -> None:
        """Send a request; None says that there will be no more. Never blocks.

        A request that does not fit the socket's buffer is left to a thread, and so are all later
        ones: the server is busy then, and a thread more costs nothing that shows.
        """
        with self._lock:
            if self._queue is not None:
                self._queue.put(None if data is None else (data, 0))
            elif data is None:
                self._shutdown(socket.SHUT_WR)
            else:
                try:
                    left = send_frame(self._socket, MESSAGE, data, flags=socket.MSG_DONTWAIT)
                except BlockingIOError:
                    left = _HEADER.size + len(data)
                except OSError:
                    return  # The reader sees it too, and says what has happened.
                if left:
                    self._queue = SimpleQueue()
                    self._queue.put((data, _HEADER.size + len(data) - left))
                    threading.Thread(target=self._send_queue, daemon=True).start()

    def cancel(self) -> None:
        """End the call at once."""
        self._shutdown(socket.SHUT_RDWR)

    def code(self) -> grpc.StatusCode:
        """Return the status, once the iteration is over."""
        return self._code

    def details(self) -> str:
        """Return the status's text."""
        return self._details

    def __iter__(self) -> Iterator[None]:
        """Take in answers until the server ends the call."""
        try:
            while (frame := read_frame(self._stream, self._limit)) is not None:
                kind, payload = frame
                if kind == STATUS:
                    name, _, self._details = payload.decode(errors="replace").partition(" ")
                    self._code = getattr(grpc.StatusCode, name, grpc.StatusCode.UNKNOWN)
                    return
                self._receive(payload)
                del frame, payload  # Not kept alive while the next one is awaited.
                yield
        except FrameSizeError as error:
            self._code, self._details = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        finally:
            self._shutdown(socket.SHUT_RDWR)
            self._stream.close()
            self._socket.close()

    def _send_queue(self) -> None:
        while self._queue is not None and (item := self._queue.get()) is not None:
            data, sent = item
            try:
                _send_rest(self._socket, _HEADER.pack(MESSAGE, len(data)), data, sent)
            except OSError:
                return
            del item, data
        self._shutdown(socket.SHUT_WR)

    def _shutdown(self, how: int) -> None:
        # Not close() alone: a forked child may hold a copy of the descriptor.
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)
