"""An env whose metadata tell the released package's models what its parts mean.

``tests.peers``' model ``stacked`` works on it: a 6x6 image whose every pixel is the number of the
step (times 10, below 256), and a state. It needs only Gymnasium.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["TaggedEnv", "make_tagged_env"]

_TAGS: dict[str, Any] = {
    "observation": {
        "image": {
            "type": "image",
            "role": "image/primary",
            "layout": "hwc",
            "upside_down": False,
        },
        "state": {
            "type": "state",
            "role": "proprio/joint_pos",
            "encoding": None,
            "range": None,
        },
    },
    "action": {
        "components": [
            {
                "role": "action/joint_pos",
                "dim": 2,
                "encoding": None,
                "range": None,
                "binary": False,
            }
        ],
        "clip": None,
    },
}


class TaggedEnv(gym.Env[Any, Any]):
    """Counts its steps in an image; an episode lasts ``length`` steps."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium's form
        "render_modes": [],
        "rlmesh.adapters.v1.env_tags": _TAGS,
    }

    def __init__(self, length: int = 12) -> None:
        self.length = length
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (6, 6, 3), np.uint8),
                "state": spaces.Box(-1, 1, (2,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.t = 0

    def _observation(self) -> dict[str, Any]:
        return {
            "image": np.full((6, 6, 3), (10 * self.t) % 256, np.uint8),
            "state": np.array([self.t / 1000, 0.5], np.float32),
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode at step 0."""
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the action's sum."""
        self.t += 1
        return self._observation(), float(np.sum(action)), self.t >= self.length, False, {}


def make_tagged_env(length: int = 12) -> TaggedEnv:
    """Return the env; a factory for ``tests.peers``."""
    return TaggedEnv(length)
