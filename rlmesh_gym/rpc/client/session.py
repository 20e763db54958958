"""What a client's sessions with both kinds of endpoint have in common."""

from __future__ import annotations

import copy
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym.rpc.client.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc.client.pending import Pending
    from rlmesh_gym.rpc.client.stream import JoinStream
    from rlmesh_gym.rpc.config import Timeouts
    from rlmesh_gym.rpc.large_answers import RawValue


class Session:
    """A connection, owned from now on, whose endpoint has shaken hands.

    ``capabilities`` and ``peer`` are what that says of itself; ``component`` and
    ``client_capabilities`` what this end does.
    """

    component: ClassVar[str]
    client_capabilities: ClassVar[tuple[str, ...]]

    def __init__(self, connection: Connection, response: Any) -> None:
        self.endpoint: str = connection.endpoint
        self.timeouts: Timeouts = connection.timeouts
        self.capabilities: dict[str, str] = dict(response.base.capabilities)
        self.peer: Any = response.base.peer_info
        self._connection = connection
        self._interruption: Error | None = None
        self._finalizer = weakref.finalize(self, Connection.abandon, connection)

    @classmethod
    def _over(cls, connection: Connection) -> Self:
        """Shake hands; on a failure nothing stays open."""
        try:
            return cls(connection, connection.handshake(cls.component, cls.client_capabilities))
        except BaseException:
            connection.abandon()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<{type(self).__name__} at {self.endpoint}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._connection.is_closed

    @property
    def is_streaming(self) -> bool:
        """Whether the Join stream is open; if not, the next request may reach another server."""
        stream = self._connection.stream
        return stream is not None and stream.is_open

    def can(self, capability: str) -> bool:
        """Return whether the endpoint says that it has a capability."""
        return self.capabilities.get(capability) == "true"

    @staticmethod
    def pack(codec: SpaceCodec, leaves: Leaves, num_rows: int) -> SpaceValue | RawValue:
        """Return a batch in the form in which this session's requests take it."""
        return codec.encode(leaves, num_rows)

    def interrupt(self, error: Error) -> None:
        """Fail what is in flight, and all later requests, with ``error``; safe from any thread."""
        # Noted first and looked at last by whoever sends, so that no request slips through.
        self._interruption = error
        stream = self._connection.stream
        if stream is not None:
            stream.give_up_all(error)

    def resume(self) -> None:
        """Take requests again after :meth:`interrupt`."""
        self._interruption = None

    def ping(self) -> float:
        """Return the seconds that one more handshake takes."""
        begun = time.perf_counter()
        self._connection.handshake(self.component, self.client_capabilities)
        return time.perf_counter() - begun

    def request_shutdown(self, reason: str = "") -> tuple[bool, str]:
        """Ask the server to stop; return whether it will, and what it says."""
        return self._connection.shutdown(reason)

    def close(self, reason: str = "") -> None:
        """End the session, within ``timeouts.close``; never raises, and may be called again."""
        raise NotImplementedError

    def _send(
        self,
        request: Any,
        kind: str,
        timeout: float | None,
        *,
        lanes: Sequence[int] = (),
        context: Any = None,
    ) -> Pending[Any]:
        connection = self._connection
        connection.check(kind)
        if self._interruption is not None:
            raise copy.copy(self._interruption)
        stream = connection.stream
        if stream is None or not stream.is_open:
            with connection.lock:
                stream = connection.stream  # Another thread may have opened one meanwhile.
                if stream is None or not stream.is_open:
                    stream = self._open_stream(kind, lanes)
        pending = stream.send(request, kind, lanes=lanes, context=context, timeout=timeout)
        if self._interruption is not None:
            pending.abandon(self._interruption)
        return pending

    def _open_stream(self, kind: str, lanes: Sequence[int]) -> JoinStream:
        """Open the stream for a request, or say why it cannot be sent; the connection is locked."""
        raise NotImplementedError
