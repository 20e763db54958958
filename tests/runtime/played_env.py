"""An env whose last info tells all that was done in its episode; and how to play it by hand.

Kept apart from what needs the package, for the released package's process too.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["ENV_ID", "LONGEST", "PICTURE_BYTES", "PlayedEnv", "frame", "picture"]

ENV_ID = "RlmeshTest/Played-v0"
LONGEST = 9
PICTURE_BYTES = "RLMESH_TEST_PICTURE_BYTES"
"""Variable of the process's environment: so large a picture is part of each observation."""


def frame(observations: Any, number: int = 0) -> Any:
    """Return frame ``number`` of the plan for a batch; the same for a row wherever it stands."""
    pose, t = observations["pose"], np.asarray(observations["t"], np.float32)
    return (pose[:, :2] * np.float32(1 + number) + t[:, None] / np.float32(4)).astype(np.float32)


def picture(t: int, size: int) -> Any:
    """Return the picture of step ``t``."""
    return np.arange(t, t + size).astype(np.uint8)


class PlayedEnv(gym.Env[Any, Any]):
    """Episodes of 2 to 9 steps that end either way; all of it follows from the seed and actions.

    The info of the last step holds every action of the episode.

    Args:
        length: Episodes of this length in place of drawn ones.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length: int | None = None, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.length = length
        parts: dict[str, gym.Space[Any]] = {
            "t": gym.spaces.Discrete(LONGEST + 1),
            "pose": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
        }
        self.picture_bytes = int(os.environ.get(PICTURE_BYTES, "0"))
        if self.picture_bytes:
            parts["picture"] = gym.spaces.Box(0, 255, (self.picture_bytes,), np.uint8)
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.t = 0
        self.limit = 0
        self.gravity = -1.0
        self.actions = np.zeros((LONGEST, 2), np.float32)

    def _observe(self) -> Any:
        pose = self.np_random.integers(-64, 64, 3) / np.float32(64)
        observation = {"t": self.t, "pose": pose.astype(np.float32)}
        if self.picture_bytes:
            observation["picture"] = picture(self.t, self.picture_bytes)
        return observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.gravity = (options or {}).get("gravity", -1.0)
        self.limit = int(self.np_random.integers(2, LONGEST + 1))
        if self.length is not None:
            self.limit = self.length
        self.actions = np.zeros((LONGEST, 2), np.float32)
        return self._observe(), {"limit": self.limit}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions[self.t] = action
        self.t += 1
        ended = self.t >= self.limit
        by_time = ended and bool(self.np_random.integers(2))
        info: dict[str, Any] = {
            "t": self.t,
            "gravity": self.gravity,
            "mask": np.array([self.t % 2, 1], np.int8),
            "nested": {"half": self.t / 2, "word": f"w{self.t}"},
        }
        if self.t % 2:
            info["odd"] = np.full((2, 2), self.t, np.int64)
        if ended:
            info |= {"is_success": bool(self.np_random.integers(2)), "actions": self.actions}
        reward = float(np.sum(action)) + int(self.np_random.integers(9))
        return self._observe(), reward, ended and not by_time, by_time, info


if ENV_ID not in gym.registry:
    gym.register(ENV_ID, entry_point="tests.runtime.played_env:PlayedEnv")
