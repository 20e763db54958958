"""Envs with the habits that other remote and vector envs were reported to stumble over."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tests.catalogue import ordered_dict_space
from tests.fake_envs import CountingEnv

__all__ = ["IndexingEnv", "OrderedEnv", "OwnKeysEnv", "UnsteadyInfoEnv"]


class OwnKeysEnv(CountingEnv):
    """Its infos use the keys that vector envs and wrappers reserve.

    ``own`` names the keys: ``final_info``, ``_x``, ``episode``; ``at_reset`` puts them into the
    first info of an episode too.
    """

    def __init__(
        self, length: int = 3, *, base: float = 0.0, own: str = "_x", at_reset: bool = False
    ) -> None:
        super().__init__(length, base=base)
        self.own = own.split()
        self.at_reset = at_reset

    def _extra(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "final_info": {"goal": self.t, "deep": {"word": f"w{self.t}"}},
            "_x": self.t,
            "episode": {"r": self.t / 2, "l": self.t},
        }
        return {key: values[key] for key in self.own}

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {**info, **self._extra()} if self.at_reset else info

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return (*rest, {**info, **self._extra()})


class UnsteadyInfoEnv(CountingEnv):
    """One info key is of another type at each step, another one comes and goes."""

    VALUES: tuple[Any, ...] = (1, "two", {"three": 3}, [4, "four"], None, 6.5, np.arange(7.0), True)

    def __init__(self, length: int = 5, *, phase: int = 0) -> None:
        super().__init__(length)
        self.phase = phase

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        number = self.steps_taken + self.phase
        info["unsteady"] = self.VALUES[number % len(self.VALUES)]
        if number % 3 == 0:
            info["now_and_then"] = number
        return (*rest, info)


class IndexingEnv(CountingEnv):
    """Uses the action as an index, as an int only can, and tells what came."""

    REWARDS = tuple(float(10 * i) for i in range(10))

    def step(self, action: Any) -> Any:
        observation, _, *rest, info = super().step(action)
        return (observation, self.REWARDS[action], *rest, {**info, "type": type(action).__name__})


class OrderedEnv(CountingEnv):
    """A Dict observation whose keys are declared in the order z, a, m."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.observation_space = ordered_dict_space(
            {
                "z": gym.spaces.Box(-1, 1, (2,), np.float32),
                "a": gym.spaces.Discrete(3),
                "m": gym.spaces.MultiBinary(2),
            }
        )

    def observe(self) -> Any:
        return {
            "z": np.array([0.5, -0.25], np.float32),
            "a": np.int64(self.t % 3),
            "m": np.array([1, 0], np.int8),
        }
