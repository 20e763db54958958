"""Ctrl-C and SIGTERM: how a command ends in order."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.runtime.calls import Cancellation

__all__ = ["interrupt_cancels", "terminate_as_interrupt"]


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
    """Let the first Ctrl-C (or SIGTERM) end the run in order, and the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals can be set in the main thread only.
        return
    previous = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        # Who started us with a signal ignored, as a shell does in the background, wants it so.
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def cancel(number: int, frame: Any) -> None:
        if cancellation.is_set():
            signal.default_int_handler(number, frame)
        cancellation.cancel("interrupted")

    try:
        for number in previous:
            signal.signal(number, cancel)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
