"""Envs that use processes and signals of their own; registers them."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium as gym

from tests.fake_envs import CountingEnv


def double(number: int) -> int:
    return 2 * number


def sleep_for_ever() -> None:
    while True:
        time.sleep(10)


class HostedEnv(CountingEnv):
    """Does ``what`` in each reset: uses a ``"pool"``, or ends a ``"worker"`` by SIGTERM.

    ``"simulator"`` starts a program and ends it by SIGINT. ``"hold"`` keeps the interpreter's lock
    in a step for ever. ``"load"``, ``"nap"`` and ``"slow"`` take ``seconds`` to be made, for a step
    and to close, which writes to ``closed`` then.
    ``"alarm"`` needs the main thread throughout. ``kwargs`` comes back in the info of a reset.
    """

    def __init__(
        self, what: str = "", *, seconds: float = 0.0, closed: str = "", kwargs: Any = None
    ) -> None:
        super().__init__()
        self.what = what
        self.seconds = seconds
        self.closed = closed
        self.kwargs = kwargs
        if what == "alarm":  # Works on the main thread only, and a database on its own.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self.maker = threading.current_thread()
        self.database = sqlite3.connect(":memory:")
        if what == "load":
            time.sleep(seconds)

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        info["kwargs"] = repr(self.kwargs)
        if self.what == "pool":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                info["sum"] = sum(pool.map(double, range(4)))
        elif self.what == "worker":
            worker = multiprocessing.get_context("fork").Process(target=sleep_for_ever)
            worker.start()
            worker.terminate()
            worker.join(10)
            info["status"] = worker.exitcode
        elif self.what == "simulator":
            program = subprocess.Popen(
                [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert program.stdout is not None
            program.stdout.readline()
            program.send_signal(signal.SIGINT)
            info["status"] = program.wait(10)
            program.stdout.close()
        return observation, info

    def step(self, action: Any) -> Any:
        if self.what == "hold":
            print("holding", file=sys.stderr, flush=True)
            ctypes.PyDLL(None).pause()
        if self.what == "alarm":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self.database.execute("select 1")
        if self.what == "nap":
            time.sleep(self.seconds)
        return super().step(action)

    def close(self) -> None:
        super().close()
        if self.what == "alarm":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self.database.execute("select 1")
        if threading.current_thread() is self.maker:
            self.database.close()
        if self.what == "slow":
            time.sleep(self.seconds)
        if self.closed:
            with open(self.closed, "a") as file:
                file.write("closed\n")


if "Hosted-v0" not in gym.registry:
    gym.register("Hosted-v0", entry_point="tests.env.hosted_env:HostedEnv")
