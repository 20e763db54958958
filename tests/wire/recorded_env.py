"""Environments whose every value is written down, for recording what the released package sends.

They are served by the released package while recording, and rebuilt by the tests to know what the
recorded bytes must say; so nothing here may depend on a random generator, a clock or our codec.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.catalogue import MIXED_SPACE, SPACE_IDS, SPACES

__all__ = [
    "ALONE",
    "CATALOGUE_SPACE",
    "EPISODE_LENGTH",
    "CatalogueEnv",
    "RecordedEnv",
    "fixed_sample",
    "info_of",
]

EPISODE_LENGTH = 2

ALONE = ("box_empty", "box_empty_2d", "box_scalar", "box_scalar_float64")
"""Spaces that the released package takes alone but not inside a Dict or Tuple."""

# It sorts the keys of every Dict, where ours keeps the declared order; it refuses a Text that may
# be empty.
_OURS_ONLY = ("dict_declared_order", "text_maybe_empty")

CATALOGUE_SPACE = spaces.Dict(
    {
        name: space
        for name, space in zip(SPACE_IDS, SPACES, strict=True)
        if name not in ALONE + _OURS_ONLY
    }
)
"""All other spaces of the catalogue at once."""


def fixed_sample(space: spaces.Space[Any], step: int) -> Any:
    """Return a sample of the space that depends on nothing but ``step``."""
    if isinstance(space, spaces.Dict):
        return {key: fixed_sample(child, step) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(fixed_sample(child, step) for child in space.spaces)
    if isinstance(space, spaces.Text):
        letters = sorted(space.character_set)
        length = min(space.max_length, space.min_length + step)
        return "".join(letters[(step + index) % len(letters)] for index in range(length))
    if isinstance(space, spaces.Discrete):
        return int(space.start) + step % int(space.n)
    shape = space.shape or ()
    ramp = np.arange(math.prod(shape)).reshape(shape) + step
    if isinstance(space, spaces.MultiDiscrete):
        return ramp % space.nvec
    if isinstance(space, spaces.MultiBinary):
        return (ramp % 2).astype(np.int8)
    if isinstance(space, spaces.Box):
        # Halves where the type has them, and inside the bounds whatever those are.
        values = ramp / 2 if space.dtype.kind == "f" else ramp
        return np.clip(values, space.low, space.high).astype(space.dtype)
    raise TypeError(space)


def info_of(step: int) -> dict[str, Any]:
    """Return an info dict with one value of each kind."""
    return {
        "step": step,
        "big": -(2**53) - 1,
        "score": 0.25,
        "nan": float("nan"),
        "name": "naïve ☃",
        "flag": True,
        "unset": None,
        "raw": b"\x00\xff",
        "list": [1, 2.5, "three", None, [False]],
        "tuple": (1, 2),
        "array": np.array([[1, 2], [3, 4]], np.int16),
        "floats": np.array([0.1, np.inf], np.float32),
        "scalar": np.float32(0.1),
        "map": {"inner": {"deep": 1}, "empty": {}},
        "": "empty key",
    }


class RecordedEnv(gym.Env[Any, Any]):
    """One of each fundamental space to see and to do; episodes of two steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    observation_space: spaces.Space[Any] = MIXED_SPACE
    action_space = spaces.Dict(
        {"gripper": spaces.Discrete(3, start=-1), "move": spaces.Box(-1, 1, (2,))}
    )

    def __init__(self, *, fails: bool = False) -> None:
        self.render_mode = "rgb_array"
        self.spec = gym.spec("CartPole-v1")
        self._step = 0
        self._fails = fails

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return fixed_sample(self.observation_space, 0), info_of(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._fails:
            raise ValueError("broken on purpose")
        self._step += 1
        observation = fixed_sample(self.observation_space, self._step)
        ended = self._step == EPISODE_LENGTH
        return observation, 0.5 * self._step, ended, False, info_of(self._step)

    def render(self) -> Any:
        return np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


class CatalogueEnv(RecordedEnv):
    """One space of the catalogue to see, or all of them."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.observation_space = SPACES[SPACE_IDS.index(name)] if name else CATALOGUE_SPACE
