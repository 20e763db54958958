"""Who sends the requests of a stream to a model server, and which sessions are theirs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlmesh_gym._proto.model.v1 import interaction_pb2


class Client:
    """Who sends the requests of one stream. It does not know the stream, which it outlives."""

    def __init__(self, connection: str = "") -> None:
        self.connection: str = connection  # Streams over the same one share a bound on routes.
        # Set when the stream has ended, by its client's wish or not.
        self.over: threading.Event = threading.Event()
        self._token = object()
        self.sessions: set[object] = {self._token}  # The owners of this client's routes.

    def owner(self, context: interaction_pb2.AdapterContext) -> object:
        """Name the session of a request: the client's name for it, or else this stream."""
        if not context.session_id:
            return self._token
        self.sessions.add(context.session_id)
        return context.session_id

    def note_session(self, context: interaction_pb2.AdapterContext, owner: object) -> None:
        """A session that goes on here after it lost its stream may close here too."""
        if owner == context.session_id:
            self.sessions.add(context.session_id)
