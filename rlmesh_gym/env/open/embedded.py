"""A server in a child process, for people who have no endpoint yet.

The child gets its configuration as one JSON line on stdin and answers with one JSON line on stdout.
It ends when its stdin does, so it cannot outlive the parent, however that dies.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import os
import pickle
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gymnasium.vector.utils import CloudpickleWrapper

from rlmesh_gym.env.open.sources import Source
from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    RemoteError,
    SessionRefusedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlmesh_gym.env.open.sources import ConnectionOptions
    from rlmesh_gym.rpc import EnvSession


_WORD_SECONDS = 10.0
"""After which a slow start is said, and said again."""
_PING_SECONDS = 2.0

_MAX_SOCKET_PATH = 100
"""Unix socket paths end at 108 bytes, on some systems at 104."""

_START = Path(__file__).parents[2] / "server" / "env" / "embedded_start.py"
_EXIT_SECONDS = 1.0
_LONGEST_CLOSE = 86_400.0
_LINGER_SECONDS = 0.02
_KEPT_LINES = 40


_logger = logging.getLogger(__name__)


class EmbeddedServer(Source):
    """A child process that serves some lanes of a Gymnasium id.

    ``config`` is what the child is to serve, without the address: plain JSON data but for
    ``env_kwargs``, which arrive as they are and have to be pickled for that.
    """

    def __init__(self, config: Mapping[str, Any], options: ConnectionOptions) -> None:
        env_id = config["env_id"]
        arguments: Any = dict(config.get("env_kwargs") or {})
        # Pickled, as AsyncVectorEnv does with what makes its environments: the child is ours.
        try:
            packed = pickle.dumps(CloudpickleWrapper(arguments))
        except Exception as error:
            raise ConfigurationError(
                f"env_id={env_id!r}: the environment's keyword arguments cannot be pickled for the "
                f"child process: {type(error).__name__}: {error}"
            ) from error
        self._config = {**config, "env_kwargs": None, "pickled": base64.b64encode(packed).decode()}
        self.label: str = f"embedded {env_id}"
        self._options = options
        self._child: _Child | None = None
        self._has_served = False
        self._is_hung = False

    def prepare(self) -> None:
        """Start the child and do not wait for it; nothing happens if it runs already."""
        is_alive = self._child is not None and self._child.process.poll() is None
        if is_alive and not self._is_hung:
            return
        self.close(0.0)
        self._is_hung = False
        try:
            self._child = _Child(self._config, self._options, self)
        except OSError as error:
            raise UnavailableError(
                f"no child process can be started: {error}", endpoint=self.label, operation="start"
            ) from error

    def open(self) -> EnvSession:
        """Connect to the child; one that is dead, or answers no more, is started anew."""
        try:
            return self._connect()
        except SessionRefusedError:
            raise
        except (UnavailableError, DeadlineError) as error:
            if not self._has_served or error.operation == "start":
                raise
            self._is_hung = True
        return self._connect()

    def is_hung(self) -> bool:
        """Whether the child answers nobody, as when it was stopped; asks it, for a moment."""
        child = self._child
        if child is None or not self._has_served:
            return False
        brief = replace(self._options.timeouts, connect=_PING_SECONDS, close=_PING_SECONDS)
        try:
            replace(self._options, timeouts=brief).connect(child.address(self.label)).close()
        except SessionRefusedError:
            return False
        except RemoteError:
            self._is_hung = True
        return self._is_hung

    def _connect(self) -> EnvSession:
        self.prepare()
        if self._child is None:
            raise UnavailableError("the embedded server is closed", endpoint=self.label)
        address = self._child.address(self.label)
        session = self._options.connect(address, link=self._child.link)
        self._has_served = True
        return session

    def close(self, timeout: float | None) -> None:
        """End the child; may be called again.

        It gets ``timeout`` seconds to close its environments, ``None`` for as long as that takes,
        and is killed then, which is said.
        """
        child, self._child = self._child, None
        # At the interpreter's end the finalizer comes first, and old Gymnasium's __del__ after it.
        if child is not None and child.finalizer.detach() is not None and not child.end(timeout):
            _logger.warning(
                "%s: its environments were not closed within %g s, and the process was killed; "
                "raise timeouts.close for slow ones",
                self.label,
                timeout,
            )


class _Child:
    """The running process and what belongs to it; all of it ends with its owner."""

    process: subprocess.Popen[bytes]

    def __init__(
        self, config: Mapping[str, Any], options: ConnectionOptions, owner: EmbeddedServer
    ) -> None:
        if not sys.executable:
            raise ConfigurationError("env_id: this interpreter cannot start a child process")
        self._parent = os.getpid()
        self._address: str | None = None
        limit = options.timeouts.close
        self._close_seconds = _LONGEST_CLOSE if limit is None else limit
        self._start_seconds = options.timeouts.start
        self._num_envs = config.get("num_envs") or 1
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._readers: dict[threading.Thread, IO[bytes] | None] = {}
        self._directory = tempfile.mkdtemp(prefix="rlmesh_gym-")  # mode 0700
        path = os.path.join(self._directory, "env.sock")
        use_socket = os.name == "posix" and len(os.fsencode(path)) <= _MAX_SOCKET_PATH
        address = f"unix://{path}" if use_socket else "127.0.0.1:0"
        self.link = os.path.join(self._directory, "link") if use_socket else None
        own = {
            "address": address,
            "link": self.link,
            "token": options.token or "",
            "close_timeout": self._close_seconds,
            "progress": True,
        }
        try:
            self._start({**config, **own}, owner)
        except BaseException:  # Of an interrupt too: nobody else knows of the process yet.
            self.end(0.0)
            raise

    def _start(self, config: Mapping[str, Any], owner: EmbeddedServer) -> None:
        # The child finds what the parent finds, such as a package beside the script.
        places = list(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        grace = self._close_seconds + _EXIT_SECONDS
        arguments = [str(_START), str(os.getpid()), json.dumps(places), str(grace)]
        self.process = process = subprocess.Popen(  # noqa: S603 - this interpreter, our file
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for the parent; the child ends with its stdin.
            start_new_session=os.name == "posix",
        )
        work = (_answers, process.stdout, self._answers), (_echo, process.stderr, self._lines)
        self._readers = {
            threading.Thread(target=read, args=(pipe, place), daemon=True): pipe
            for read, pipe, place in work
        }
        for reader in self._readers:
            reader.start()
        self.finalizer = weakref.finalize(owner, self._abandon)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # Its death shows when it is asked.
                process.stdin.write(json.dumps(config).encode() + b"\n")
                process.stdin.flush()

    def has_ended(self) -> bool:
        """Whether it has; one that is about to end gets a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        return self.process.returncode is not None

    def address(self, label: str) -> str:
        """Return the address, once it serves."""
        if self._address is not None:
            return self._address
        answer: Any = {"made": 0}
        begun = last = time.monotonic()
        while isinstance(answer, dict) and "made" in answer:
            made = answer["made"]
            line = self._next_line(label, begun, last, made)
            last = time.monotonic()
            try:
                answer = json.loads(line) if line else {}
            except ValueError:
                answer = {"error": f"it wrote {line[:200]!r} where its address was expected"}
        if not isinstance(answer, dict) or "address" not in answer:
            raise self._failure(label, answer if isinstance(answer, dict) else {})
        self._address = str(answer["address"])
        return self._address

    def _next_line(self, label: str, begun: float, last: float, made: int) -> bytes:
        """Wait for what the child says next, with a word every now and then."""
        limit = self._start_seconds
        while True:
            left = math.inf if limit is None else last + limit - time.monotonic()
            try:
                return self._answers.get(timeout=max(0.0, min(left, _WORD_SECONDS)))
            except queue.Empty:
                lanes = f"{made} of {self._num_envs} lanes made"
                if limit is not None and left <= _WORD_SECONDS:
                    raise DeadlineError(
                        f"the child process did not come up within {limit:g} s ({lanes}); raise "
                        "timeouts.start for slow ones",
                        endpoint=label,
                        operation="start",
                    ) from None
                passed = time.monotonic() - begun
                _logger.warning("%s is still starting after %.0f s (%s)", label, passed, lanes)

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
        self.has_ended()
        self._join()
        tail = "".join(self._lines).strip() or "it wrote nothing"
        return UnavailableError(
            f"the child process ended (exit status {self.process.returncode}) before it served: "
            f"{tail}",
            endpoint=label,
            operation="start",
        )

    def _abandon(self) -> None:
        if os.getpid() == self._parent:
            # The session has just been dropped; a child that notices ends it without a complaint
            # that gRPC would log here.
            time.sleep(_LINGER_SECONDS)
            self.end(self._close_seconds)

    def end(self, timeout: float | None) -> bool:
        """End the process and clean up; return False if it had to be killed.

        That is after ``timeout`` seconds, and a little more for what comes after its environments;
        0 kills at once.
        """
        if os.getpid() != self._parent:
            return True  # A forked copy of the object; the process is not ours.
        ended = True
        process = self.__dict__.get("process")
        if process is not None:
            with contextlib.suppress(OSError, ValueError):  # Gone, or closed before.
                # The end of stdin would not show while a fork of this process has a copy.
                process.stdin.write(b"\n")
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(timeout + _EXIT_SECONDS if timeout else timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                ended = timeout == 0
            self._join()
        shutil.rmtree(self._directory, ignore_errors=True)
        return ended

    def _join(self) -> None:
        deadline = time.monotonic() + _EXIT_SECONDS
        for thread, pipe in self._readers.items():
            # Each closes its pipe. A grandchild may hold one open; then its thread reads on.
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
            elif pipe is not None:
                pipe.close()


def _answers(pipe: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
    # What comes after the answer is read too, since a full pipe would block the child.
    with pipe:
        line = pipe.readline()
        answers.put(line)
        while line:
            line = pipe.readline()
            answers.put(line)


def _echo(pipe: IO[bytes], lines: deque[str]) -> None:
    """Pass the child's stderr on, also to notebooks, where the file descriptor leads nowhere."""
    with pipe:
        for line in iter(pipe.readline, b""):
            text = line.decode(errors="replace")
            lines.append(text)
            with contextlib.suppress(AttributeError, OSError, ValueError):  # No stderr, or closed.
                sys.stderr.write(text)
