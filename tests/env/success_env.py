"""An env whose episodes report success in every form that there is, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

ENV_ID = "Success-v0"


class Tensor:
    """What of a torch tensor matters here; on a GPU it has no ``__array__`` that works."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def item(self) -> Any:
        if self.values.size != 1:
            message = "a Tensor with several elements cannot be converted to Scalar"
            raise RuntimeError(message)
        return self.values.item()

    def tolist(self) -> Any:
        return self.values.tolist()


FORMS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "bool": lambda flag: {"success": flag},
    "np_bool": lambda flag: {"success": np.bool_(flag)},
    "int": lambda flag: {"is_success": int(flag)},
    "float": lambda flag: {"task_success": float(flag)},
    "zero_d": lambda flag: {"success": np.array(flag)},
    "one_element": lambda flag: {"is_success": np.array([flag])},
    "float32": lambda flag: {"success": np.array([[flag]], np.float32)},
    "object_array": lambda flag: {"success": np.array([flag], object)},
    "list": lambda flag: {"success": [flag]},
    "tuple": lambda flag: {"success": (flag,)},
    "tensor": lambda flag: {"task_success": Tensor([flag])},
    "zero_d_tensor": lambda flag: {"success": Tensor(float(flag))},
    "episode": lambda flag: {"episode": {"r": 1.0, "success": flag}},
    "episode_array": lambda flag: {"episode": {"is_success": np.array([flag])}},
}

FLAGS = [flag for _ in FORMS for flag in (True, False)]
"""Success of the episodes, in order."""


class SuccessEnv(gym.Env[Any, Any]):
    """Episodes of two steps. ``flip`` turns the flags round, to tell two lanes apart."""

    def __init__(self, *, flip: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-9.0, 9.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode = None
        self.flip = flip
        self.episode = -1
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        info: dict[str, Any] = {}
        if self.t == 2:
            place = self.episode % len(FLAGS)
            info = list(FORMS.values())[place // 2](FLAGS[place] is not self.flip)
        return np.zeros(1, np.float32), 1.0, self.t == 2, False, info


def flags(num_episodes: int, *, flip: bool = False) -> list[bool]:
    """Return the success of a lane's first episodes."""
    return [FLAGS[place % len(FLAGS)] is not flip for place in range(num_episodes)]


if ENV_ID not in gym.registry:
    gym.register(ENV_ID, entry_point="tests.env.success_env:SuccessEnv")
