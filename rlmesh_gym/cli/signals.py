"""Ctrl-C and SIGTERM: how a command ends in order."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.runtime.calls import Cancellation

__all__ = ["interrupt_cancels", "terminate_as_interrupt"]

_STOP = b"\0"  # No signal has this number.


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that containers stop cleanly too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals can be set in the main thread only.
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def interrupt_cancels(cancellation: Cancellation) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM cancel the block, and the second one interrupt it at once.

    A signal that arrives just before the main thread begins to wait for a lock would be noticed
    only when that wait is over. So a thread hears of signals through the interpreter's wakeup
    descriptor, which is written to at the moment of their arrival.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals can be set in the main thread only.
        return
    hear, tell = socket.socketpair()
    tell.setblocking(False)
    handled = 0

    def listen() -> None:
        while (arrived := hear.recv(1)) != _STOP:
            if arrived[0] in previous:
                cancellation.cancel("interrupted")

    def interrupt(number: int, frame: object) -> None:
        nonlocal handled
        handled += 1
        if handled > 1:
            signal.default_int_handler(number, frame)  # type: ignore[arg-type]

    previous = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        # Who started us with a signal ignored, as a shell does in the background, wants it so.
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    listener = threading.Thread(target=listen, name="rlmesh_gym-signals", daemon=True)
    listener.start()
    descriptor = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    try:
        for number in previous:
            signal.signal(number, interrupt)
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        tell.send(_STOP)
        listener.join()
        for number, handler in previous.items():
            signal.signal(number, handler)
        hear.close()
        tell.close()
