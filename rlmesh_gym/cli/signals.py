"""Ctrl-C and SIGTERM: how a command ends in order."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlmesh_gym.cli.output import show
from rlmesh_gym.signals import handle_signals, hear_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlmesh_gym.server import EnvServer, ModelServer


_SUCCESSION = 0.5  # Seconds.


def wait_or_interrupt(wait: Callable[[], object]) -> bool:
    """Call ``wait`` in a thread, until it returns or a signal comes; return whether one came.

    The calling thread waits for an event that is set, so a signal ends it in any case. Raised in
    the middle of a wait, two signals in a row can break it, or be noticed only when it is over.
    """
    over = threading.Event()
    reasons: list[str] = []

    def interrupt(reason: str) -> None:
        reasons.append(reason)
        over.set()

    def watch() -> None:
        wait()
        over.set()

    threading.Thread(target=watch, name="rlmesh_gym-wait", daemon=True).start()
    with interrupt_cancels(interrupt, second_interrupts=False):
        over.wait()
    return bool(reasons)


def serve_until_interrupted(server: EnvServer | ModelServer, what: str) -> None:
    """Serve, say where, and stop at a client's wish, Ctrl-C or SIGTERM."""
    with terminate_as_interrupt():
        try:
            show(f"serving {what} at {server.start()} (Ctrl-C ends it)", flush=True)
            if server.uses_main_thread:
                server.wait()
            elif wait_or_interrupt(server.wait):
                show("stopping", flush=True)
        except KeyboardInterrupt:
            show("stopping", flush=True)
        finally:
            server.stop()


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that containers stop cleanly too.

    Signals in quick succession, as when a shell and a supervisor send one each, count as one: a
    second exception would hit the code that handles the first.
    """
    last = -_SUCCESSION

    def interrupt(number: int, frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _SUCCESSION:
            signal.default_int_handler(number, frame)  # type: ignore[arg-type]

    numbers = (*_not_ignored(signal.SIGINT), signal.SIGTERM)
    with handle_signals(dict.fromkeys(numbers, interrupt)):
        yield


@contextmanager
def interrupt_cancels(
    cancel: Callable[[str], object], *, second_interrupts: bool = True
) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM cancel the block, and the second one interrupt it at once.

    With ``second_interrupts=False`` nothing is raised: for a block that the first one ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals can be set in the main thread only.
        return
    handled = 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal handled
        handled += 1
        if handled > 1 and second_interrupts:
            signal.default_int_handler(number, frame)  # type: ignore[arg-type]

    numbers = _not_ignored(signal.SIGINT, signal.SIGTERM)
    with hear_signals(dict.fromkeys(numbers, interrupt), lambda _: cancel("interrupted")):
        yield


def _not_ignored(*numbers: int) -> list[int]:
    # Who started us with a signal ignored, as a shell does in the background, wants it so.
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
