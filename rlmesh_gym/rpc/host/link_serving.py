"""The server's end of the links of :mod:`rlmesh_gym.rpc.client.link`."""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import select
import socket
import threading
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from rlmesh_gym.codec.spaces.limits import max_message_bytes
from rlmesh_gym.errors import Error
from rlmesh_gym.rpc.client.link import (
    MESSAGE,
    STATUS,
    TOKEN,
    FrameSizeError,
    read_frame,
    send_frame,
)
from rlmesh_gym.rpc.handshake import ARRAYS
from rlmesh_gym.rpc.host.callbacks import JoinPeer
from rlmesh_gym.rpc.host.listening import private_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Join = Callable[[Iterator[bytes], JoinPeer], Generator[bytes, None, None]]


_logger = logging.getLogger(__name__)
_BUFFER_BYTES = 64 * 1024
_POLL_SECONDS = 0.01
_RETRY_SECONDS = 0.1
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
_TOKEN_BYTES = 64 * 1024
_GONE = ("POLLHUP", "POLLERR", "POLLRDHUP")  # Not all systems have all, nor a poll at all.


class LinkPeer(JoinPeer):
    """The client of one call over a link."""

    name = "unix:"
    capabilities: frozenset[str] = frozenset({ARRAYS})  # Both ends of a link are one release.

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] | None = []

    def is_active(self) -> bool:
        """Return whether the client is still there; also true of what has just gone unnoticed."""
        if self._callbacks is None:
            return False
        poll = select.poll()
        try:
            poll.register(self._socket, sum(getattr(select, name, 0) for name in _GONE))
            return not poll.poll(0)
        except (OSError, ValueError):  # Closed meanwhile.
            return False

    def drop(self) -> None:
        """End the call at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the call ends; at once if it has ended."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback()

    def end(self) -> None:
        """The call is over."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
        for callback in callbacks:
            callback()


class LinkHost:
    """Accepts links at one socket path, each served by a daemon thread of its own.

    Listens at ``path``, which is made here (or an OSError says why not) and removed by
    :meth:`stop`; serves each call with ``join``, whose errors with a ``status`` refuse. Who
    does not say the token within ``patience`` seconds (None: for ever) is sent away.
    """

    def __init__(
        self, path: str, join: Join, token: bytes | None, patience: float | None = None
    ) -> None:
        self._patience = patience
        self._path = path
        self._join = join
        self._token = b"" if token is None else token
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_stopped = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with private_socket(path):
                self._listener.bind(path)
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._accept, name="rlmesh_gym-links", daemon=True).start()

    def stop(self, grace: float) -> None:
        """Listen no more, give running calls ``grace`` seconds, then cut them off."""
        with self._lock:
            self._is_stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # This ends accept().
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        deadline = time.monotonic() + grace
        while self._sockets and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._is_stopped or error.errno not in _PASSING:
                    return
                # Too many open files, say: whoever knocks goes on waiting until there are fewer.
                _logger.warning("a link could not be taken in yet: %s", error)
                time.sleep(_RETRY_SECONDS)
                continue
            with self._lock:
                if self._is_stopped:
                    sock.close()
                    return
                self._sockets.add(sock)
            threading.Thread(
                target=self._serve, args=(sock,), name="rlmesh_gym-link", daemon=True
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        peer = LinkPeer(sock)
        stream: Any = sock.makefile("rb", buffering=_BUFFER_BYTES)
        try:
            status = self._converse(sock, stream, peer)
            with contextlib.suppress(OSError):
                send_frame(sock, STATUS, status.encode())
        finally:
            peer.end()
            with self._lock:
                self._sockets.discard(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            stream.close()
            sock.close()

    def _converse(self, sock: socket.socket, stream: IO[bytes], peer: LinkPeer) -> str:
        """Serve a call; return its status and the status's text."""
        sock.settimeout(self._patience)
        try:
            hello = read_frame(stream, _TOKEN_BYTES)
        except FrameSizeError:
            hello = None
        finally:
            sock.settimeout(None)
        if hello is None or hello[0] != TOKEN or not hmac.compare_digest(hello[1], self._token):
            return "UNAUTHENTICATED invalid env token"
        read = partial(read_frame, stream, max_message_bytes())
        requests = (payload for _, payload in iter(read, None))
        try:
            with contextlib.closing(self._join(requests, peer)) as answers:
                for answer in answers:
                    send_frame(sock, MESSAGE, answer)
                    del answer  # Not kept alive while the client thinks.
        except FrameSizeError as error:
            return f"RESOURCE_EXHAUSTED {error}"
        except OSError as error:
            _logger.debug("a link was lost: %s", error)
        except Error as error:
            return f"{getattr(error, 'status', 'INTERNAL')} {error}"
        except Exception as error:
            _logger.exception("a call over a link failed")
            return f"INTERNAL {type(error).__name__}: {error}"
        return "OK "
