"""Environments that learning libraries take: flat Dict observations, images, binary actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["BinaryActionEnv", "DictObservationEnv"]


class DictObservationEnv(gym.Env[Any, Any]):
    """A Dict of a vector, a number and an image, drawn from the env's own seeded generator.

    Episodes last ``length`` steps plus 0 to 2 and end by truncation, termination or both. The info
    of a step has ``t``, of a reset ``options`` (the level that was asked for, 0 without).
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.length = length
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "number": spaces.Discrete(4),
                "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            }
        )
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.t = 0
        self.limit = length

    def _draw(self) -> Any:
        return {
            "vector": self.np_random.uniform(-1, 1, 3).astype(np.float32),
            "number": np.int64(self.np_random.integers(4)),
            "image": self.np_random.integers(0, 256, (36, 36, 3), dtype=np.uint8),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.limit = self.length + int(self.np_random.integers(3))
        return self._draw(), {"level": (options or {}).get("level", 0)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= self.limit
        kind = int(self.np_random.integers(3)) if over else -1
        reward = float(self.np_random.normal()) + float(np.sum(action))
        return self._draw(), reward, kind in (0, 2), kind in (1, 2), {"t": self.t}

    def render(self) -> Any:
        return np.full((8, 10, 3), self.t, dtype=np.uint8)


class BinaryActionEnv(DictObservationEnv):
    """Takes MultiBinary actions and refuses others, as a careful env does."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.MultiBinary(3)

    def _draw(self) -> Any:
        return super()._draw()["vector"]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            message = f"{action!r} is no member of {self.action_space}"
            raise ValueError(message)
        return super().step(action)
