"""An env with any spaces whose episodes follow from the last seed and all actions since.

Nothing else goes in: two of them that got the same seeds and actions agree for ever, wherever they
run and whoever used them before. Kept apart from the fakes for the released package's process too.
"""

from __future__ import annotations

import struct
from typing import Any

import gymnasium as gym
import numpy as np

from tests.catalogue import SPACE_IDS, SPACES

__all__ = ["CATALOGUE", "SeededEnv", "digest"]

CATALOGUE: dict[str, gym.Space[Any]] = dict(zip(SPACE_IDS, SPACES, strict=True))
# Large values travel by another way than small ones.
CATALOGUE["large"] = gym.spaces.Dict(
    {
        "camera": gym.spaces.Box(0, 255, (48, 64, 3), np.uint8),
        "depth": gym.spaces.Box(0.0, 1.0, (40, 40), np.float32),
        "task": gym.spaces.Text(20),
    }
)

_MASK = (1 << 64) - 1
_POOL = 16
_LONGEST = 9


def digest(value: Any) -> float:
    """Return one number for an action, whether it came as numpy gives it or as plain Python."""
    if isinstance(value, dict):
        return sum((i + 2) * digest(value[key]) for i, key in enumerate(sorted(value)))
    if isinstance(value, tuple):
        return sum((i + 2) * digest(part) for i, part in enumerate(value))
    if isinstance(value, str):
        return float(sum((i + 1) * ord(letter) for i, letter in enumerate(value)))
    flat = np.asarray(value).reshape(-1)
    return float(flat.astype(np.float64) @ np.arange(1, len(flat) + 1, dtype=np.float64))


def _sample(space: gym.Space[Any], generator: np.random.Generator) -> Any:
    """Draw as ``space.sample()`` does, the same in every process.

    Old versions of Gymnasium draw the letters of a Text from a set, whose order is each process's
    own.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: _sample(child, generator) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_sample(child, generator) for child in space.spaces)
    if isinstance(space, gym.spaces.Text):
        length = int(generator.integers(space.min_length, space.max_length + 1))
        return "".join(generator.choice(sorted(space.character_set), length).tolist())
    return space.sample()


class SeededEnv(gym.Env[Any, Any]):
    """Episodes of 1 to 9 steps whose ends, observations, rewards and infos depend on the actions.

    Args:
        space: Observation space, by its name in the catalogue.
        action: Action space, likewise.
        render_mode: Frames show the step's number.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, space: str = "mixed", action: str = "discrete", render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = CATALOGUE[space]
        self.action_space = CATALOGUE[action]
        self.observation_space.seed(17)
        generator = np.random.default_rng(17)
        self._pool = [_sample(self.observation_space, generator) for _ in range(_POOL)]
        self._state = 1
        self.t = 0
        self.limit = 0

    def _turn(self, value: int) -> None:
        self._state = ((self._state ^ value) * 6364136223846793005 + 1442695040888963407) & _MASK

    def _draw(self, count: int) -> int:
        """Return a number below ``count``; the low bits of such a state are no good."""
        self._turn(count)
        return (self._state >> 33) % count

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._state = seed + 1
        self.t = 0
        self.limit = 1 + self._draw(_LONGEST)
        info: dict[str, Any] = {"kind": "reset", "seed": -1 if seed is None else seed}
        if options:
            info["options"] = dict(options)
        if self._draw(2):
            info["start"] = {"limit": self.limit, "draw": self._draw(1000) / 7}
        return self._pool[self._draw(_POOL)], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._turn(struct.unpack("<Q", struct.pack("<d", digest(action) + 0.0))[0])
        self.t += 1
        terminated = self.t >= self.limit
        truncated = self._draw(12) == 0 and self.t > 1
        info: dict[str, Any] = {"kind": "step", "t": self.t, "draw": self._draw(1000) / 7}
        if self._draw(3) == 0:
            info["now_and_then"] = bool(self._draw(2))
            info["vector"] = np.array([self._draw(9), self.t], dtype=np.float64)
        if self._draw(3) == 0:
            grid = np.array([[self.t, self._draw(9)]], dtype=np.int64)
            info["start"] = {"limit": self.limit, "deep": {"grid": grid, "word": f"w{self.t}"}}
        if self._draw(4) == 0:
            info["nothing"] = None
        if terminated or truncated:
            info["is_success"] = bool(self._draw(2))
        observation = self._pool[self._draw(_POOL)]
        return observation, self._draw(4096) / 64 - 32, terminated, truncated, info

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        frame = np.zeros((16, 16, 3), dtype=np.uint8)
        frame[:, :, 0] = 8 * self.t
        frame[:8, :, 1] = 8 * self.limit
        return frame
