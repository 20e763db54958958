"""Environments of the benchmarks, registered as ``bench_envs:Bench/...`` ids."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


class ZeroCostImage(gym.Env[np.ndarray, np.int64]):
    """An Atari-sized frame that costs nothing to make; episodes of 1,000 steps."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self) -> None:
        self._frame = np.random.default_rng(0).integers(0, 256, (84, 84, 4), dtype=np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._steps = 0
        return self._frame, {}

    def step(self, action: np.int64):
        self._steps += 1
        return self._frame, 1.0, self._steps >= 1000, False, {}


class Slow(gym.Env[np.ndarray, np.int64]):
    """Sleeps for ``seconds`` in each step, as a simulator would; it holds no lock meanwhile."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.005) -> None:
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64):
        time.sleep(self._seconds)
        return np.zeros(4, np.float32), 1.0, False, False, {}


gym.register("Bench/Image-v0", entry_point=ZeroCostImage, order_enforce=False)
gym.register("Bench/Slow-v0", entry_point=Slow, order_enforce=False)
