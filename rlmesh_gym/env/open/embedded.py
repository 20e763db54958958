"""A server in a child process, for people who have no endpoint yet.

The child gets its configuration as one JSON line on stdin and answers with one JSON line on stdout.
It ends when its stdin does, so it cannot outlive the parent, however that dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from typing import IO, TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError, DeadlineError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EmbeddedServer"]

STARTUP_SECONDS = 120.0
"""A cold interpreter that imports a simulator on a busy machine takes its time."""

_MAX_SOCKET_PATH = 100
"""Unix socket paths end at 108 bytes, on some systems at 104."""

_EXIT_SECONDS = 1.0
_LINGER_SECONDS = 0.02
_KEPT_LINES = 40


class EmbeddedServer:
    """One child process that serves some lanes of a Gymnasium id.

    Args:
        config: What the child is to serve, plain JSON data, without the address.

    Raises:
        ConfigurationError: ``config`` is no JSON.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            self._config = json.loads(json.dumps(dict(config)))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"env_id={config.get('env_id')!r}: the environment's keyword arguments must be "
                f"plain data (numbers, text, lists, dicts) to reach the child process: {error}"
            ) from error
        self._child: _Child | None = None

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"embedded {self._config.get('env_id')}"

    @property
    def is_alive(self) -> bool:
        """Whether the child runs."""
        return self._child is not None and self._child.process.poll() is None

    def has_ended(self, timeout: float = _EXIT_SECONDS) -> bool:
        """Whether there is no child any more; one that is about to end gets ``timeout`` seconds."""
        if self._child is None:
            return True
        try:
            self._child.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int | None:
        """The child's process id, None without a child."""
        return None if self._child is None else self._child.process.pid

    def launch(self) -> None:
        """Start the child and do not wait for it; nothing happens if it runs already.

        Raises:
            UnavailableError: The system starts no process.
        """
        if self.is_alive:
            return
        self.stop(0.0)
        try:
            self._child = _Child(self._config)
        except OSError as error:
            raise UnavailableError(
                f"no child process can be started: {error}", endpoint=self.label, operation="start"
            ) from error

    def address(self) -> str:
        """Return the child's address, once it serves.

        Raises:
            ConfigurationError: The child cannot serve this environment; its own message.
            UnavailableError: It died.
            DeadlineError: It does not come up.
        """
        self.launch()
        if self._child is None:
            raise UnavailableError("the embedded server is closed", endpoint=self.label)
        return self._child.address(self.label)

    @property
    def link(self) -> str | None:
        """Path of the socket for this process's sessions; None without one, or without a child."""
        return None if self._child is None else self._child.link

    def stop(self, timeout: float | None = _EXIT_SECONDS) -> None:
        """End the child, killing it after ``timeout`` seconds; may be called again.

        ``None`` lets it close its environments for as long as that takes.
        """
        child, self._child = self._child, None
        # At the interpreter's end the finalizer comes first, and old Gymnasium's __del__ after it.
        if child is not None and child.finalizer.detach() is not None:
            _end(child.process, child.directory, child.threads, child.parent, timeout)


class _Child:
    """The running process and what belongs to it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not sys.executable:
            raise ConfigurationError("env_id: this interpreter cannot start a child process")
        self.parent = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="rlmesh_gym-")  # mode 0700
        self.process: subprocess.Popen[bytes]
        self.threads: tuple[threading.Thread, ...] = ()
        try:
            self._start(config)
        except BaseException:  # Of an interrupt too: nobody else knows of the process yet.
            self._give_up()
            raise

    def _start(self, config: Mapping[str, Any]) -> None:
        path = os.path.join(self.directory, "env.sock")
        use_socket = os.name == "posix" and len(os.fsencode(path)) <= _MAX_SOCKET_PATH
        address = f"unix://{path}" if use_socket else "127.0.0.1:0"
        self.link = os.path.join(self.directory, "link") if use_socket else None
        environment = dict(os.environ)
        # The child finds what the parent finds, such as a package beside the script.
        places = [entry or os.getcwd() for entry in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlmesh_gym.server.env.embedded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            # Ctrl-C is for the parent; the child ends with its stdin.
            start_new_session=os.name == "posix",
        )
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._address: str | None = None
        self.threads = (
            threading.Thread(
                target=_answers, args=(self.process.stdout, self._answers), daemon=True
            ),
            threading.Thread(target=_echo, args=(self.process.stderr, self.lines), daemon=True),
        )
        for thread in self.threads:
            thread.start()
        self.finalizer = weakref.finalize(
            self, _abandon, self.process, self.directory, self.threads, self.parent
        )
        stdin = self.process.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # Its death shows when it is asked.
                stdin.write(
                    json.dumps({**config, "address": address, "link": self.link}).encode() + b"\n"
                )
                stdin.flush()

    def _give_up(self) -> None:
        process = self.__dict__.get("process")
        if process is not None:
            process.kill()
            process.wait()
            for thread in self.threads:
                if thread.ident is not None:
                    thread.join(_EXIT_SECONDS)
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):  # What was never flushed.
                    pipe.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address(self, label: str) -> str:
        if self._address is not None:
            return self._address
        try:
            line = self._answers.get(timeout=STARTUP_SECONDS)
        except queue.Empty:
            raise DeadlineError(
                f"the child process did not come up within {STARTUP_SECONDS:g} s",
                endpoint=label,
                operation="start",
            ) from None
        try:
            answer = json.loads(line) if line else {}
        except ValueError:
            answer = {"error": f"it wrote {line[:200]!r} where its address was expected"}
        if not isinstance(answer, dict) or "address" not in answer:
            raise self._failure(label, answer if isinstance(answer, dict) else {})
        self._address = str(answer["address"])
        return self._address

    def _failure(self, label: str, answer: dict[str, Any]) -> Exception:
        error = answer.get("error")
        if error is not None:
            hint = ""
            if "NotFound" in str(error):
                hint = (
                    " The child process only knows what importing a module registers; name the "
                    "module as in 'module:Name-v0'"
                )
            return ConfigurationError(f"{label}: the child process cannot serve it: {error}{hint}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        self.threads[1].join(_EXIT_SECONDS)
        tail = "".join(self.lines).strip() or "it wrote nothing"
        return UnavailableError(
            f"the child process ended (exit status {self.process.returncode}) before it served: "
            f"{tail}",
            endpoint=label,
            operation="start",
        )


def _answers(pipe: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
    # What comes after the first line is read too, since a full pipe would block the child.
    with pipe:
        answers.put(pipe.readline())
        while pipe.readline():
            pass


def _echo(pipe: IO[bytes], lines: deque[str]) -> None:
    """Pass the child's stderr on, also to notebooks, where the file descriptor leads nowhere."""
    with pipe:
        for line in iter(pipe.readline, b""):
            text = line.decode(errors="replace")
            lines.append(text)
            with contextlib.suppress(AttributeError, OSError, ValueError):  # No stderr, or closed.
                sys.stderr.write(text)


def _abandon(
    process: subprocess.Popen[bytes],
    directory: str,
    threads: tuple[threading.Thread, ...],
    parent: int,
) -> None:
    if os.getpid() == parent:
        # The session has just been dropped; a child that notices ends it without a complaint
        # that gRPC would log here.
        time.sleep(_LINGER_SECONDS)
        _end(process, directory, threads, parent, _EXIT_SECONDS)


def _end(
    process: subprocess.Popen[bytes],
    directory: str,
    threads: tuple[threading.Thread, ...],
    parent: int,
    timeout: float | None,
) -> None:
    if os.getpid() != parent:
        return  # A forked copy of the object; the process is not ours.
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.write(b"\n")  # It does not end while a fork of this process has a copy.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    deadline = time.monotonic() + _EXIT_SECONDS
    for thread in threads:
        # Each closes its pipe. A grandchild may hold one open; then its thread reads on.
        thread.join(max(0.0, deadline - time.monotonic()))
    shutil.rmtree(directory, ignore_errors=True)
