"""What a server does with the calls that reach it, free of gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym.errors import Error
from rlmesh_gym.rpc.handshake import CLIENT_CAPABILITIES_KEY
from rlmesh_gym.rpc.services import ENV, MODEL, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import grpc


class Refused(Error):  # noqa: N818 - it is an answer, seldom an error of this process
    """Raised by a callback to end its call with a gRPC status, by its name."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ServiceCallbacks:
    """What a server of either kind does; the messages are those of its service.

    All may run on several threads at once. ``join`` serves one session: it takes the client's
    requests and yields answers, as messages or as their bytes. The requests end when the client
    sends no more or is gone; where it is gone while an answer is on its way, the iterator of
    answers is closed instead, so what must be done belongs into a ``finally``. When the answers
    end, so does the stream, with status OK.
    """

    handshake: Callable[[Any], Any]
    join: Callable[[Iterator[Any], JoinPeer], Iterable[Any]]
    shutdown: Callable[[Any], Any]

    wire: ClassVar[Service]


class EnvServiceCallbacks(ServiceCallbacks):
    """What an env server does."""

    wire = ENV


class ModelServiceCallbacks(ServiceCallbacks):
    """What a model server does."""

    wire = MODEL


class JoinPeer:
    """The client of one Join call, as a callback sees it; ``capabilities`` are what it uses."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.name: str = context.peer()  # Its address as gRPC has it, for logs.
        named = dict(context.invocation_metadata()).get(CLIENT_CAPABILITIES_KEY, "")
        self.capabilities: frozenset[str] = frozenset(str(named).split(","))
        self._context = context

    def is_active(self) -> bool:
        """Return whether the client is still there; true for a moment after it has gone."""
        return bool(self._context.is_active())

    def drop(self) -> None:
        """End the call; its requests end, and its client hears that it was cancelled."""
        self._context.cancel()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the call ends, however it ends; at once if it has ended.

        It runs on one of gRPC's threads and must be quick.
        """
        if not self._context.add_callback(callback):
            callback()
