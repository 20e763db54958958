"""The child process of an embedded endpoint: ``python -m rlmesh_gym.server.env.embedded``.

That of an ``env_id=`` begins with ``embedded_start``.

It reads one line of JSON from its standard input and answers with one line on its standard output:
``{"address": ...}`` once it serves, or ``{"error": ...}`` with an exception's text, after which it
ends. It serves until its standard input ends or says anything more, until the parent is gone, or
until a client stops it.

Keys of the configuration: ``env_id`` (a Gymnasium id, with ``module:`` before it where a module
registers it), ``num_envs`` (1), ``autoreset_mode`` (``"NextStep"``, ``"SameStep"``, ``"Disabled"``;
null for bare lanes, stepped and reset one by one), ``render_mode``, ``env_kwargs``, or ``pickled``
for what JSON would change (the same in base64), ``address`` (null for a free port of 127.0.0.1),
``link`` (path of a Unix socket for the parent's own sessions), ``token``, ``validation``,
``close_timeout``, ``overlap``, ``dedicated_thread`` and ``thread`` as those of ``EnvServer``; with
``progress`` the answer comes after a line ``{"made": ...}`` for each lane.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import pickle
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import as_autoreset_mode
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server.env.lane_vector import make_envs
from rlmesh_gym.server.env.server import EnvServer
from rlmesh_gym.signals import handle_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlmesh_gym.server.env.lane_vector import Made


_KEYS = {
    "address",
    "autoreset_mode",
    "close_timeout",
    "dedicated_thread",
    "env_id",
    "env_kwargs",
    "link",
    "num_envs",
    "overlap",
    "pickled",
    "progress",
    "render_mode",
    "thread",
    "token",
    "validation",
}
_CLOSE_SECONDS = 2.0
_PARENT_SECONDS = 0.5
_EXIT_SECONDS = 0.5


def build(config: Mapping[str, Any], tell: Callable[[int], None] | None = None) -> Made:
    """Make the vector that ``config`` asks for, or bare lanes where it names no autoreset mode.

    ``tell`` is called with the number of lanes made so far.
    """
    unknown = sorted(set(config) - _KEYS)
    if unknown:
        raise ConfigurationError(f"unknown keys {unknown}; there are {sorted(_KEYS)}")
    if "env_id" not in config:
        raise ConfigurationError("env_id is missing")
    options = {"render_mode": config["render_mode"]} if config.get("render_mode") else {}
    return make_envs(
        config["env_id"],
        num_envs=config.get("num_envs") or 1,
        autoreset_mode=as_autoreset_mode(config.get("autoreset_mode")),
        env_kwargs=_arguments(config),
        # The server checks every value itself, so Gymnasium's checker would only cost time.
        disable_env_checker=True,
        tell=tell,
        **options,
    )


def _arguments(config: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = config.get("env_kwargs") or {}
    if config.get("pickled"):
        # From the parent's own hand, over a pipe.
        arguments = pickle.loads(base64.b64decode(config["pickled"])).fn  # noqa: S301
    return arguments


def run(config: Mapping[str, Any], tell: Callable[[int], None] | None = None) -> EnvServer:
    """Serve what ``config`` asks for; the caller stops the server."""
    # On the environments' own thread if they have one, so that they are built there too.
    server = EnvServer(
        lambda: build(config, tell),
        config.get("address"),
        token=config.get("token"),
        env_id=str(config.get("env_id", "")).rpartition(":")[2] or None,
        validation=config.get("validation"),
        close_timeout=config.get("close_timeout", _CLOSE_SECONDS),
        overlap=bool(config.get("overlap")),
        dedicated_thread=bool(config.get("dedicated_thread")),
        thread=config.get("thread"),
    )
    server.start()
    if config.get("link"):
        server.open_link(config["link"])
    return server


def main(watcher: int | None = None) -> int:
    """Do what the module's description says; return the exit status.

    ``watcher`` is the process that kills this one when it outlives the parent.
    """
    handlers: dict[int, Callable[[int, Any], Any]] = {
        # The parent decides what Ctrl-C means. To ignore it would go on to simulators that are
        # started here, and that are ended by it; a handler does not.
        signal.SIGINT: lambda *_: None,
        signal.SIGTERM: lambda number, _: sys.exit(128 + number),
    }
    with handle_signals(handlers):
        try:
            return _serve()
        finally:
            _leave_in_time()  # First: SIGTERM may break off what follows.
            if watcher is not None:
                with suppress(OSError):
                    os.kill(watcher, signal.SIGKILL)
                    os.waitpid(watcher, 0)


def _serve() -> int:
    parent = os.getppid()
    orders, answers = _claim_stdin(), _Answers()
    # Unbuffered: a thread that sits in a buffered reader would hold its lock at exit.
    with open(orders, "rb", buffering=0, closefd=False) as config_lines:
        line = config_lines.readline()
    if not line:
        return 0
    try:
        config = json.loads(line)
        tell = answers.tell_made if config.get("progress") else None
        server = run(config, tell)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # The parent reports it.
        answers.end({"error": f"{type(error).__name__}: {error}"})
        return 1
    try:
        # What is loaded now stays; looking through it for garbage would only delay some steps.
        gc.freeze()
        answers.end({"address": server.address})
        end = threading.Thread(target=_stop_in_time, args=(server, orders, parent), daemon=True)
        end.start()
        server.wait()
    finally:
        server.stop()
        if config.get("link"):
            # The parent removes its directory, unless it was killed; by now it is empty.
            with suppress(OSError):
                os.rmdir(os.path.dirname(config["link"]))
    return 0


def _claim_stdin() -> int:
    """Keep standard input for the parent's word; environments that read it find it empty."""
    orders = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders


class _Answers:
    """Standard output, kept for the parent; what environments print goes to standard error."""

    def __init__(self) -> None:
        self._descriptor: int | None = os.dup(1)
        os.dup2(2, 1)

    def tell_made(self, made: int) -> None:
        """Say how many lanes are made; nothing once the answer was given."""
        self._write({"made": made})

    def end(self, message: Mapping[str, str]) -> None:
        """Give the answer."""
        self._write(message)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _write(self, message: Mapping[str, object]) -> None:
        if self._descriptor is not None:
            # Where the parent is gone, the end of standard input says so too.
            with suppress(BrokenPipeError):
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")


def _stop_in_time(server: EnvServer, orders: int, parent: int) -> None:
    if os.name == "posix":
        # The input does not end with the parent while a fork of that one holds it open.
        while os.getppid() == parent:
            if select.select([orders], [], [], _PARENT_SECONDS)[0]:
                break
    else:
        os.read(orders, 1)
    server.stop()


def _leave_in_time() -> None:
    """End the process soon, whatever threads the environments have left behind."""
    timer = threading.Timer(_EXIT_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
