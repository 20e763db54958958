"""Who may use an environment now: one lease per session, given back when its last call has ended.

A client that vanishes in the middle of a step leaves its lease with the step: nobody else may touch
the environment before the step is over.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlmesh_gym.rpc import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.rpc import JoinPeer


_GRACE_SECONDS = 0.5
"""How long a newcomer waits for a slot. Often it is the same client, come back before the news of
its leaving; that news comes another way than its return and may be the slower one."""

_GONE_SECONDS = 2.0
"""How long it waits further where a session is known to be about to end."""


class Lease:
    """One session's right to its environment."""

    def __init__(self, slots: SessionSlots, peer: JoinPeer, *, hold: bool) -> None:
        self.peer = peer
        self.is_ended: bool = False
        self.is_held: bool = hold
        self.calls: int = 0
        self._slots = slots

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the lease while a call is at work."""
        with self._slots.changed:
            self.calls += 1
        try:
            yield
        finally:
            with self._slots.changed:
                self.calls -= 1
                self._slots.last_activity = time.monotonic()
                self._slots.settle(self)

    def end(self, *, release: bool = False) -> None:
        """End the session; may be called again. The slot is free once no call is at work.

        A held one is so only after ``release``.
        """
        with self._slots.changed:
            self.is_ended = True
            self.is_held = self.is_held and not release
            self._slots.settle(self)


class SessionSlots:
    """The sessions of one server, at most ``limit`` at a time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Re-entrant: gRPC may tell of a disconnect at once, on the thread that asks to be told.
        self.changed: threading.Condition = threading.Condition(threading.RLock())
        self._leases: list[Lease] = []
        self._is_closed = False
        self.last_activity: float = time.monotonic()

    def take(self, peer: JoinPeer, *, hold: bool = False) -> Lease:
        """Return a lease for ``peer``, or refuse; ``hold`` keeps it until it is released."""
        with self.changed:
            if not self.changed.wait_for(self._has_room, _GRACE_SECONDS):
                self.changed.wait_for(
                    lambda: self._has_room() or not self._will_have_room(), _GONE_SECONDS
                )
            if self._is_closed:
                raise Refused("UNAVAILABLE", "the server is stopping")
            if not self._has_room():
                raise Refused(
                    "FAILED_PRECONDITION",
                    "environment already has an active Join session"
                    if self.limit == 1
                    else f"all {self.limit} sessions of this environment server are active",
                )
            lease = Lease(self, peer, hold=hold)
            self._leases.append(lease)
        peer.on_disconnect(lease.end)
        return lease

    def close(self) -> None:
        """Give no more leases."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until no call is at work and every session has ended; return whether it is so."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._leases, timeout)

    def idle_seconds(self) -> float:
        """Return how long no call has been at work."""
        with self.changed:
            if any(lease.calls for lease in self._leases):
                return 0.0
            return time.monotonic() - self.last_activity

    def settle(self, lease: Lease) -> None:
        """Free the slot of ``lease`` if nothing needs it any more. The caller holds ``changed``."""
        is_over = lease.is_ended and not lease.calls and not lease.is_held
        if is_over and lease in self._leases:
            self._leases.remove(lease)
            self.changed.notify_all()

    def _has_room(self) -> bool:
        return self._is_closed or len(self._leases) < self.limit

    def _will_have_room(self) -> bool:
        return any(
            not lease.calls and (lease.is_ended or not lease.peer.is_active())
            for lease in self._leases
        )
