"""Endpoints in processes of their own that are killed, stopped, cut off and made to fail."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tests.chaos import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Self

Kind: TypeAlias = Literal["kill", "stop", "cut", "error"]
_WEIGHTS: dict[Kind, float] = {"kill": 1, "stop": 2, "cut": 4, "error": 4}
_STOP_SECONDS = 0.3
_START_SECONDS = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.chaos.counted", "rlmesh_gym.server"])


class Wire:
    """What stands between clients and a server's socket, and can be cut."""

    def __init__(self, path: str, target: str) -> None:
        self.address = f"unix://{path}"
        self._target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections there are."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut, and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._target)
            except OSError:
                near.close()
                far.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}
        source.close()


class Endpoint:
    """One process that serves, started anew whenever it was killed."""

    def __init__(self, folder: Path, name: str, serve: Callable[..., None], *rest: Any) -> None:
        self._serve = serve
        self._rest = rest
        self._path = f"{folder}/{name}"
        self._process: Any = None
        self.up()
        self.wire = Wire(f"{self._path}.wire", self._path)
        self.address = self.wire.address
        # All kinds from the beginning: it is read while another thread counts.
        self.faults: Counter[Kind] = Counter(dict.fromkeys(_WEIGHTS, 0))

    def up(self) -> None:
        """Start the process, and wait until it listens."""
        ready = _CONTEXT.Event()
        arguments = (f"unix://{self._path}", ready, *self._rest)
        self._process = _CONTEXT.Process(target=self._serve, args=arguments, daemon=True)
        self._process.start()
        if not ready.wait(_START_SECONDS):
            raise TimeoutError(f"{self._path} does not start")

    def harm(self, kind: Kind, stopping: threading.Event) -> None:
        """Do something to it; what is lost is back a moment later."""
        self.faults[kind] += 1  # Before it is done: nobody sees it before it is counted.
        if kind == "kill":
            self._process.kill()
            self._process.join()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self.up()
        elif kind == "stop":
            os.kill(self._process.pid, signal.SIGSTOP)
            stopping.wait(_STOP_SECONDS)
            os.kill(self._process.pid, signal.SIGCONT)
        elif kind == "cut":
            self.wire.cut()
        else:
            os.kill(self._process.pid, signal.SIGUSR1)

    def down(self) -> None:
        """End it for good."""
        self.wire.close()
        self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def losses(self) -> int:
        """How often a client may have lost its session by now."""
        return sum(count for kind, count in self.faults.items() if kind != "stop")


class Fleet:
    """Endpoints, and somebody who harms one of them now and then, the same way for a seed."""

    def __init__(
        self, endpoints: Sequence[Endpoint], seed: int, pause: float, kinds: Sequence[Kind] = ()
    ) -> None:
        self.endpoints = endpoints
        self._random = random.Random(seed)
        self._pause = pause
        self._kinds = list(kinds or _WEIGHTS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [endpoint.address for endpoint in self.endpoints]

    @property
    def faults(self) -> Counter[Kind]:
        """What was done so far."""
        done: Counter[Kind] = Counter()
        for endpoint in self.endpoints:
            done += endpoint.faults
        return done

    def begin(self) -> None:
        """Begin to do harm."""
        self._thread.start()

    def rest(self) -> None:
        """Do no more harm; all endpoints are there or on their way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        for endpoint in self.endpoints:
            endpoint.down()

    def _work(self) -> None:
        weights = [_WEIGHTS[kind] for kind in self._kinds]
        while not self._stopping.wait(self._random.expovariate(1 / self._pause)):
            endpoint = self._random.choice(self.endpoints)
            (kind,) = self._random.choices(self._kinds, weights)
            endpoint.harm(kind, self._stopping)


def env_fleet(
    folder: Path, num_endpoints: int, seed: int, pause: float, native: str | None = None
) -> Fleet:
    """Every other one serves a vector of the ``native`` mode, if given, and the rest lanes."""
    return Fleet(
        [
            Endpoint(folder, f"env{number}", counted.serve_envs, native if number % 2 else None)
            for number in range(num_endpoints)
        ],
        seed,
        pause,
    )


def model_fleet(folder: Path, seed: int, pause: float) -> Fleet:
    """One model, which is killed and cut off."""
    return Fleet([Endpoint(folder, "model", counted.serve_model)], seed, pause, ["kill", "cut"])
