"""Clients that are silent: how a server notices those that are gone, and those that ask nothing."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlmesh_gym.rpc.client.connection import ChannelOptions
    from rlmesh_gym.rpc.host.callbacks import JoinPeer


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long a server bears silence, in seconds; None for ever.

    Attributes:
        client: From a client's last sign of life until it counts as gone: the answers of its
            machine to pings, which come also while it waits or computes. A session must also bring
            its first request within this time.
        session: From a session's last answer to its next request, and for an answer to be read.
    """

    client: float | None = 30.0
    session: float | None = None

    @property
    def ping_options(self) -> ChannelOptions:
        """Make gRPC ask a silent client for a sign of life, in time."""
        if self.client is None:
            return []
        third = max(1, int(1000 * self.client / 3))
        return [
            ("grpc.keepalive_time_ms", 2 * third),
            ("grpc.keepalive_timeout_ms", third),
            ("grpc.http2.ping_timeout_ms", third),  # What newer releases of gRPC go by.
            ("grpc.http2.max_pings_without_data", 0),
        ]


class _Call:
    """One Join call; each number is written by one thread only."""

    __slots__ = ("answered", "asked", "is_offering", "peer", "since")

    def __init__(self, peer: JoinPeer) -> None:
        self.peer = peer
        self.asked = 0
        self.answered = 0
        self.is_offering = False  # An answer is there, but the transport has not taken it yet.
        self.since = time.monotonic()


class SilenceWatch:
    """Ends the Join calls whose clients ask for nothing any more."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to watch, if there is anything to watch for."""
        bounds = [bound for bound in (self._patience.client, self._patience.session) if bound]
        if bounds:
            pause = min(bounds) / 4
            threading.Thread(
                target=self._run, args=(pause,), name="rlmesh_gym-silence", daemon=True
            ).start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopping.set()

    def answers(
        self,
        join: Callable[[Iterator[Any], JoinPeer], Iterable[Any]],
        requests: Iterator[Any],
        peer: JoinPeer,
    ) -> Iterator[Any]:
        """Serve a call with ``join``, which answers every request once, and watch it."""
        call = _Call(peer)

        def counted() -> Iterator[Any]:
            for request in requests:
                call.asked += 1
                yield request

        with self._lock:
            self._calls.add(call)
        try:
            for answer in join(counted(), peer):
                call.since = time.monotonic()
                call.is_offering = True
                yield answer
                del answer  # Not kept alive while the client thinks.
                call.is_offering = False
                call.since = time.monotonic()
                call.answered += 1
        finally:
            with self._lock:
                self._calls.discard(call)

    def _run(self, pause: float) -> None:
        while not self._stopping.wait(pause):
            with self._lock:
                calls = list(self._calls)
            for call in calls:
                self._look(call)

    def _look(self, call: _Call) -> None:
        if call.is_offering:
            missing = "it reads no answer"
        elif call.answered < call.asked:
            return  # It waits for us.
        else:
            missing = "no request" if call.asked else "no first request"
        limit = self._patience.session if call.asked else self._patience.client
        if limit is not None and time.monotonic() - call.since > limit:
            _logger.warning(
                "the session of %s is ended: %s for %g s", call.peer.name, missing, limit
            )
            call.peer.drop()
