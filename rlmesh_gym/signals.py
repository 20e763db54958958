"""Handlers of signals that are this process's own: forks of it do not inherit them.

A handler that stops a server would run in every worker that an environment forks, and the wakeup
descriptor would tell the parent of signals that only the worker got.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Handler = Callable[[int, Any], Any]


# What was set here and what was set before, in that order; and whether the wakeup is ours.
_set: list[tuple[int, Handler, Any]] = []
_wakeups: list[int] = []
_masks = threading.local()


@contextmanager
def handle_signals(handlers: Mapping[int, Handler], *, wakeup: int | None = None) -> Iterator[None]:
    """Handle these signals within the block, in this process only.

    Args:
        handlers: By number.
        wakeup: Descriptor that the interpreter writes their numbers to as they arrive.

    Nothing happens outside the main thread, where signals cannot be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A second signal may be raised in the middle of what follows, by who handles them outside.
    with ExitStack() as afterwards:
        if wakeup is not None:
            before = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            afterwards.callback(signal.set_wakeup_fd, before)
            _wakeups.append(wakeup)
            afterwards.callback(_wakeups.remove, wakeup)
        for number, handler in handlers.items():
            previous = signal.signal(number, handler)
            entry = number, handler, previous
            afterwards.callback(signal.signal, number, previous)
            _set.append(entry)
            afterwards.callback(_set.remove, entry)
        yield


@contextmanager
def hear_signals(handlers: Mapping[int, Handler], tell: Callable[[int], object]) -> Iterator[None]:
    """Handle these signals within the block, and ``tell`` of each at once, on another thread.

    A signal that arrives just before the main thread begins to wait for a lock would be noticed
    only when that wait is over. So a thread hears of signals through the interpreter's wakeup
    descriptor, which is written to at the moment of their arrival.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hear, speak = socket.socketpair()
    speak.setblocking(False)

    def listen() -> None:
        with hear:
            while arrived := hear.recv(1):  # Nothing, once the other end is closed.
                if arrived[0] in handlers:
                    tell(arrived[0])

    listener = threading.Thread(target=listen, name="rlmesh_gym-signals", daemon=True)

    def stop_listening() -> None:
        speak.close()
        listener.join()

    # A second signal may be raised in the middle of what follows, by who handles them outside.
    with ExitStack() as afterwards:
        listener.start()
        afterwards.callback(stop_listening)
        afterwards.enter_context(handle_signals(handlers, wakeup=speak.fileno()))
        yield


def _hold_back() -> None:
    # A signal for the fork must not meet our handler there.
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {number for number, _, _ in _set})


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _forget_in_fork() -> None:
    for number, handler, previous in reversed(_set):
        if signal.getsignal(number) is handler:
            signal.signal(number, previous)
    if _wakeups:
        signal.set_wakeup_fd(-1)
    _set.clear()
    _wakeups.clear()
    _let_through()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_back, after_in_parent=_let_through, after_in_child=_forget_in_fork
    )
