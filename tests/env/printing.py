"""An env that prints more than a pipe holds; registers itself."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tests.fake_envs import CountingEnv


class PrintingEnv(CountingEnv):
    """Prints 16 kB per step."""

    def step(self, action: Any) -> Any:
        print("x" * 16_000)
        return super().step(action)


if "Printing-v0" not in gym.registry:
    gym.register("Printing-v0", entry_point="tests.env.printing:PrintingEnv")
