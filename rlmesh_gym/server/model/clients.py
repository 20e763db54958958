"""A client of a model server as its requests see it: its sessions, and whether it is there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.server.model.routes import Route

__all__ = ["Client"]


class Client:
    """Who sends the requests of one stream. It does not know the stream, which it outlives.

    Attributes:
        over: Set when the stream has ended, by its client's wish or not.
    """

    def __init__(self) -> None:
        self.over: threading.Event = threading.Event()
        self._token = object()
        self._sessions: set[object] = {self._token}

    @property
    def sessions(self) -> Collection[object]:
        """The owners of this client's routes."""
        return self._sessions

    def owner(self, context: interaction_pb2.AdapterContext) -> object:
        """Name the session of a request: the client's name for it, or else this stream."""
        if not context.session_id:
            return self._token
        self._sessions.add(context.session_id)
        return context.session_id

    def note_session(self, context: interaction_pb2.AdapterContext, route: Route) -> None:
        """A session that goes on here after it lost its stream may close here too."""
        if route.owner == context.session_id:
            self._sessions.add(context.session_id)
