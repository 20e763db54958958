"""An env whose every answer says where it is, a model whose every action follows from that, and
processes that serve them.

So a client can tell from each transition whether one was lost, doubled or given to another lane.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

LANES = 4
LIFE, EPISODE, STEP, LENGTH, ACTION = range(5)
"""What the numbers of an observation are."""
NUM_ACTIONS = 7


def length_of(seed: int) -> int:
    """Return how long the episode of a seed is."""
    return 3 + seed % 23


def action_for(observation: Any) -> Any:
    """Return the action that follows from an observation, or from a batch of them."""
    return (observation[..., LIFE] + 3 * observation[..., STEP]) % NUM_ACTIONS


class CountedEnv(gym.Env[Any, Any]):
    """Observes its life (another one in each process), episode, step, length, last action.

    The reward of a step is its number, so that a return tells which steps were counted.
    """

    observation_space = spaces.Box(-1, 2**31 - 1, (5,), np.int64)
    action_space = spaces.Discrete(NUM_ACTIONS)
    must_fail = False

    def __init__(self) -> None:
        self.life = int.from_bytes(os.urandom(3), "big")
        self.episode = -1
        self.at = self.length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.at = 0
        own = int(self.np_random.integers(2**20)) if seed is None else seed
        self.length = length_of(own)
        return self._observe(0), {"step": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if CountedEnv.must_fail:
            CountedEnv.must_fail = False
            raise RuntimeError("failed, as it was asked to")
        self.at += 1
        return self._observe(action), float(self.at), self.at >= self.length, False, {}

    def _observe(self, action: Any) -> Any:
        return np.array(
            [self.life, self.episode, self.at, self.length, int(action)], dtype=np.int64
        )


def serve_envs(address: str, ready: Event, mode: str | None) -> None:
    """Serve lanes, or a vector of a mode, in this process, until it is killed.

    SIGUSR1 makes the next step of one of them fail.
    """
    from rlmesh_gym.server import EnvServer

    def fail(*_: object) -> None:
        CountedEnv.must_fail = True

    def build() -> Any:
        if mode is None:
            return [CountedEnv() for _ in range(LANES)]
        return SyncVectorEnv([CountedEnv] * LANES, autoreset_mode=AutoresetMode(mode))

    signal.signal(signal.SIGUSR1, fail)
    with EnvServer(build, address) as server:
        ready.set()
        server.wait()


def serve_model(address: str, ready: Event) -> None:
    """Serve the model, until the process is killed."""
    from rlmesh_gym.server import ModelServer

    with ModelServer(action_for, address) as server:
        ready.set()
        server.wait()
