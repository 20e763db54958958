"""Deterministic environments for the tests, each showing one habit of real ones.

Importing the module registers them, so ``gym.make("tests.fake_envs:RlmeshTest/Counting-v0")`` works
in any process whose working directory is the project's root.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "ENV_IDS",
    "ActionTypeEnv",
    "AllSpacesEnv",
    "BlockingEnv",
    "BufferReusingEnv",
    "CloseCountingEnv",
    "CountingEnv",
    "DiscreteEnv",
    "FailingEnv",
    "ImageEnv",
    "InfoVarietyEnv",
    "NaNEnv",
    "RangeEnv",
    "RenderEnv",
    "RewardArrayEnv",
    "SleepEnv",
    "StubbornEnv",
    "counting_vector",
]


LETTERS = "abcxyzABCXYZ019"
"""In a fixed order: old versions of Gymnasium draw from the default in each process's own order."""


class CountingEnv(gym.Env[Any, Any]):
    """The observation is ``base + 10 * episode + t``; the reward is the action.

    ``t`` counts steps in the episode, which ends (by termination, or truncation if asked) at
    ``length``. Infos: ``kind``; ``t`` only in steps; ``rseed`` only in resets (-1 without seed).
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30, "maker": "tests"}  # noqa: RUF012

    def __init__(
        self,
        length: int = 5,
        *,
        base: float = 0.0,
        truncate: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.length = length
        self.base = base
        self.truncate = truncate
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(10)
        self.episode = -1
        self.t = 0
        self.steps_taken = 0
        self.resets_taken = 0
        self.close_calls = 0
        self.last_options: dict[str, Any] | None = None
        self.last_seed: int | None = None
        self.last_action: Any = None

    def observe(self) -> Any:
        return np.array([self.base + 10 * self.episode + self.t], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        self.resets_taken += 1
        self.last_options = options
        self.last_seed = seed
        return self.observe(), {"kind": "reset", "rseed": -1 if seed is None else seed}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        self.steps_taken += 1
        self.last_action = action
        ended = self.t >= self.length
        return (
            self.observe(),
            float(np.sum(action)),
            ended and not self.truncate,
            ended and self.truncate,
            {"kind": "step", "t": self.t},
        )

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        frame = np.zeros((6, 8, 3), dtype=np.uint8)
        frame[:, :, 0] = int(self.base) % 256
        frame[:, :, 1] = self.t
        return frame

    def close(self) -> None:
        self.close_calls += 1


class CloseCountingEnv(CountingEnv):
    """Calls ``on_close`` whenever it is closed."""

    def __init__(self, length: int = 5, *, on_close: Callable[[], None]) -> None:
        super().__init__(length)
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._on_close()


class AllSpacesEnv(gym.Env[Any, Any]):
    """Observations of every space with a wire form, drawn from the env's own seeded generator.

    Episodes last ``length`` steps plus 0 to 2, also drawn. The released clients refuse a Box
    without axes; ``zero_d=False`` does without.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, length: int = 6, *, composite_action: bool = False, zero_d: bool = True
    ) -> None:
        self.render_mode = None
        self.length = length
        self.observation_space = spaces.Dict(
            {
                "pose": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
                "wide": spaces.Box(-5.0, 5.0, () if zero_d else (1,), np.float64),
                "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
                "mode": spaces.Discrete(4, start=-1),
                "flags": spaces.MultiBinary(3),
                "grid": spaces.MultiDiscrete([2, 5]),
                "pair": spaces.Tuple(
                    (
                        spaces.Text(8, charset=LETTERS),
                        spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Box(0, 1)}),
                    )
                ),
            }
        )
        self.action_space: gym.Space[Any] = (
            spaces.Dict(
                {
                    "move": spaces.Box(-1.0, 1.0, (2,), np.float32),
                    "grip": spaces.Discrete(2),
                    "word": spaces.Tuple((spaces.Text(4), spaces.MultiBinary(2))),
                }
            )
            if composite_action
            else spaces.Discrete(3)
        )
        self.t = 0
        self.limit = length
        self.last_action: Any = None

    def _draw(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.limit = self.length + int(self.np_random.integers(3))
        return self._draw(), {"limit": self.limit}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.last_action = action
        ended = self.t >= self.limit
        by_time = ended and bool(self.np_random.integers(2))
        info: dict[str, Any] = {"t": self.t, "draw": float(self.np_random.random())}
        if self.t % 2:
            info["odd"] = {"value": self.t, "vector": np.arange(2, dtype=np.float64) * self.t}
        return self._draw(), float(self.np_random.normal()), ended and not by_time, by_time, info


class DiscreteEnv(CountingEnv):
    """Observes ``t`` itself as a Discrete value."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.observation_space = spaces.Discrete(length + 1)

    def observe(self) -> Any:
        return self.t


class BufferReusingEnv(CountingEnv):
    """Returns one observation array and one info dict for ever, changed in place."""

    def __init__(self, length: int = 3, *, base: float = 0.0) -> None:
        super().__init__(length, base=base)
        self.buffer = np.zeros(1, dtype=np.float32)
        self.info: dict[str, Any] = {"inner": np.zeros(2)}

    def observe(self) -> Any:
        self.buffer[0] = self.base + 10 * self.episode + self.t
        self.info["inner"][:] = self.buffer[0]
        self.info["t"] = self.t
        return self.buffer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, self.info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.info


class RewardArrayEnv(CountingEnv):
    """Rewards are whatever ``reward`` is, an array of one element at first."""

    def __init__(self, length: int = 3, *, reward: Any = None) -> None:
        super().__init__(length)
        self.reward = np.array([1.0]) if reward is None else reward

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info


class InfoVarietyEnv(CountingEnv):
    """Infos of every kind, some of them only on some steps."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        info |= {
            "integer": self.t,
            "number": self.t / 2,
            "flag": self.t % 2 == 0,
            "np_flag": np.bool_(True),
            "np_float32": np.float32(0.5),
            "text": f"step {self.t}",
            "nothing": None,
            "vector": np.arange(3) + self.t,
            "matrix": np.full((2, 2), self.t, dtype=np.float64),
            "list": [1, 2, "x"],
            "nested": {"deep": {"value": self.t}, "other": 1.5},
        }
        if self.t % 2:
            info["sometimes"] = self.t
        return observation, reward, terminated, truncated, info


class SleepEnv(CountingEnv):
    """Sleeps ``seconds`` in every step, or only in step ``at`` of each episode."""

    def __init__(self, length: int = 5, *, seconds: float = 0.05, at: int | None = None) -> None:
        super().__init__(length)
        self.seconds = seconds
        self.at = at

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.at is None or self.t + 1 == self.at:
            time.sleep(self.seconds)
        return super().step(action)


class BlockingEnv(CountingEnv):
    """A step waits until the test sets ``release``; ``entered`` says that one is waiting.

    Only while ``blocking`` is true. For in-process servers.
    """

    def __init__(self, length: int = 100, *, base: float = 0.0, blocking: bool = True) -> None:
        super().__init__(length, base=base)
        self.blocking = blocking
        self.entered = threading.Event()
        self.release = threading.Event()
        self.in_step = 0
        self.most_in_step = 0

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.in_step += 1
        self.most_in_step = max(self.most_in_step, self.in_step)
        try:
            if self.blocking:
                self.entered.set()
                if not self.release.wait(30):
                    message = "nobody released the step"
                    raise TimeoutError(message)
            return super().step(action)
        finally:
            self.in_step -= 1


class FailingEnv(CountingEnv):
    """Raises ``exception`` in step number ``at`` (over all episodes), or in ``reset`` if 0."""

    def __init__(
        self, length: int = 5, *, at: int = 2, exception: BaseException | None = None
    ) -> None:
        super().__init__(length)
        self.at = at
        self.exception = ValueError("the gripper is stuck") if exception is None else exception

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.at == 0:
            raise self.exception
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.steps_taken + 1 == self.at:
            self.steps_taken += 1
            raise self.exception
        return super().step(action)


class StubbornEnv(CountingEnv):
    """Returns ``result`` from ``step`` in place of a proper one where it is not None."""

    def __init__(self, length: int = 5, **parts: Any) -> None:
        super().__init__(length)
        self.parts = parts

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        names = ("observation", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, super().step(action), strict=True))
        result |= self.parts
        return tuple(result.values())


class NaNEnv(CountingEnv):
    """Observes NaN at step ``at`` of each episode."""

    def __init__(self, length: int = 5, *, at: int = 2) -> None:
        super().__init__(length)
        self.at = at

    def observe(self) -> Any:
        value = super().observe()
        return value * np.float32("nan") if self.t == self.at else value


class RangeEnv(gym.Env[Any, Any]):
    """Bounded observation and action; echoes ``observation`` when told to leave its bounds."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.render_mode = None
        self.observation_space = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,), np.float64)})
        self.action_space = spaces.Dict(
            {"u": spaces.Box(-1.0, 1.0, (2,), np.float32), "word": spaces.Text(3)}
        )
        self.observation = np.zeros(2)
        self.last_action: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"x": self.observation.copy()}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.last_action = action
        return {"x": self.observation.copy()}, 0.0, False, False, {}


class ActionTypeEnv(CountingEnv):
    """Puts the type of the action it received into the info."""

    def __init__(self, action_space: gym.Space[Any], length: int = 100) -> None:
        super().__init__(length)
        self.action_space = action_space

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.last_action = action
        self.t += 1
        return self.observe(), 0.0, self.t >= self.length, False, {"type": type(action).__name__}


class RenderEnv(CountingEnv):
    """Renders whatever ``frame`` is."""

    def __init__(self, frame: Any, length: int = 5) -> None:
        super().__init__(length, render_mode="rgb_array")
        self.frame = frame

    def render(self) -> Any:
        return self.frame


class ImageEnv(gym.Env[Any, Any]):
    """Costs next to nothing per step: an (84, 84, 4) uint8 observation made beforehand."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length: int = 1_000, *, shape: tuple[int, ...] = (84, 84, 4)) -> None:
        self.render_mode = None
        self.observation_space = spaces.Box(0, 255, tuple(shape), np.uint8)
        self.action_space = spaces.Discrete(6)
        generator = np.random.default_rng(0)
        self.frames: NDArray[np.uint8] = generator.integers(0, 256, (4, *shape), dtype=np.uint8)
        self.length = length
        self.t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.frames[self.t & 3], 1.0, self.t >= self.length, False, {}


def counting_vector(
    num_envs: int = 3,
    autoreset_mode: gym.vector.AutoresetMode = gym.vector.AutoresetMode.NEXT_STEP,
    *,
    env: Callable[..., CountingEnv] = CountingEnv,
    **options: Any,
) -> gym.vector.SyncVectorEnv:
    """Lanes with episodes of 2, 3, 4 … steps and bases 0, 100, 200 …."""
    makers = [partial(env, 2 + lane, base=100.0 * lane, **options) for lane in range(num_envs)]
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=autoreset_mode)


ENV_IDS = {
    "RlmeshTest/Counting-v0": CountingEnv,
    "RlmeshTest/AllSpaces-v0": AllSpacesEnv,
    "RlmeshTest/BufferReusing-v0": BufferReusingEnv,
    "RlmeshTest/RewardArray-v0": RewardArrayEnv,
    "RlmeshTest/InfoVariety-v0": InfoVarietyEnv,
    "RlmeshTest/Sleep-v0": SleepEnv,
    "RlmeshTest/Failing-v0": FailingEnv,
    "RlmeshTest/NaN-v0": NaNEnv,
    "RlmeshTest/Image-v0": ImageEnv,
    "RlmeshTest/Range-v0": RangeEnv,
}

for _name, _cls in ENV_IDS.items():
    if _name not in gym.registry:
        _entry_point = f"tests.fake_envs:{_cls.__name__}"
        gym.register(_name, entry_point=_entry_point, disable_env_checker=True)


class WideEnv(gym.Env[Any, Any]):
    """Takes a MiB as its action: 300 lanes of it exceed the limit of the released package."""

    action_space = spaces.Box(0, 1, (2**17,), np.float64)
    observation_space = spaces.Box(0, 255, (4,), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.uint8), float(action[0]), False, False, {}
