"""Fixtures for all tests, and the check that a module of tests leaves nothing running."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTLE_SECONDS = 5.0
_TCP_LISTEN = "0A"
# gRPC's threads for calls and channels, by the names of their functions.
_GRPC_THREADS = ("channel_spin", "_consume_request_iterator")
# multiprocessing keeps these two for the whole process.
_PERMANENT_CHILDREN = ("resource_tracker", "forkserver")


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A directory whose path is short enough for Unix sockets, which ``tmp_path`` may not be."""
    with tempfile.TemporaryDirectory(prefix="rg-") as directory:
        yield Path(directory)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C works in processes that the test starts, also where a shell's ``&`` has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not see the developer's own endpoint or token."""
    monkeypatch.delenv("RLMESH_GYM_ADDRESS", raising=False)
    monkeypatch.delenv("RLMESH_GYM_TOKEN", raising=False)
    # Which commands set for their whole process.
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "")
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT")


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Fail a module that leaves threads, child processes or listening sockets behind.

    A server that a fixture starts must be stopped by a fixture of module scope or less.
    """
    before = _running()
    yield
    deadline = time.monotonic() + _SETTLE_SECONDS
    while left := _running() - before:
        if time.monotonic() > deadline:
            pytest.fail("left running: " + "; ".join(sorted(left)))
        gc.collect()
        time.sleep(0.02)


def _running() -> set[str]:
    return _threads() | _children() | _listening_sockets()


def _threads() -> set[str]:
    return {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread.name.startswith("rlmesh_gym")
        or any(function in thread.name for function in _GRPC_THREADS)
    }


def _children() -> set[str]:
    found = set()
    for file in Path("/proc/self/task").glob("*/children"):
        for pid in _read(file).split():
            command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
            if command and not any(name in command for name in _PERMANENT_CHILDREN):
                found.add(f"process {pid} ({command})")
    return found


def _listening_sockets() -> set[str]:
    own = {_inode(link) for link in Path("/proc/self/fd").glob("*")} - {None}
    found = set()
    for name in ("tcp", "tcp6"):
        for line in _read(Path(f"/proc/self/net/{name}")).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTEN and fields[9] in own:
                found.add(f"listening {name} socket {fields[1]}")
    for line in _read(Path("/proc/self/net/unix")).splitlines()[1:]:
        fields = line.split(maxsplit=7)
        listens = fields[3] != "00000000"  # __SO_ACCEPTCON
        if listens and fields[6] in own:
            found.add(f"listening Unix socket {fields[7] if len(fields) > 7 else fields[6]}")
    return found


def _inode(link: Path) -> str | None:
    try:
        target = os.readlink(link)
    except OSError:  # Closed meanwhile, or the directory's own descriptor.
        return None
    return target[len("socket:[") : -1] if target.startswith("socket:[") else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # Gone meanwhile, or a system without /proc.
        return ""
