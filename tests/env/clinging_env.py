"""An env that leaves something behind at its first reset; registers itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import gymnasium as gym

from tests.fake_envs import CountingEnv


class ClingingEnv(CountingEnv):
    """Leaves ``what`` behind: a ``"thread"`` or a ``"process"`` that goes on, or reads ``"input"``.

    ``"exit"`` leaves the constructor with ``SystemExit`` instead. ``"step"`` never returns from a
    step, after it has written to ``stepping``. ``close`` writes to ``closed``.
    """

    def __init__(self, what: str = "", closed: str = "", stepping: str = "") -> None:
        super().__init__()
        self.what = what
        self.closed = closed
        self.stepping = stepping
        if what == "exit":
            sys.exit("no licence")

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        if self.what == "thread" and self.episode == 0:
            threading.Thread(target=threading.Event().wait).start()
        elif self.what == "process" and self.episode == 0:
            info["pid"] = subprocess.Popen(["sleep", "10"]).pid
        elif self.what == "input":
            info["read"] = sys.stdin.read()
        return observation, info

    def step(self, action: Any) -> Any:
        if self.what == "step":
            with open(self.stepping, "w") as file:
                file.write("stepping")
            threading.Event().wait()
        return super().step(action)

    def close(self) -> None:
        super().close()
        if self.closed:
            with open(self.closed, "w") as file:
                file.write("closed")


if "Clinging-v0" not in gym.registry:
    gym.register("Clinging-v0", entry_point="tests.env.clinging_env:ClingingEnv")
