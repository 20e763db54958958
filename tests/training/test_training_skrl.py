"""skrl's ``wrap_env`` recognises a remote vector by itself and trains on it as on a local one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import ResetNeededError
from rlmesh_gym.testing import serving
from tests.fake_envs import CountingEnv

pytestmark = pytest.mark.training


class Policy(CategoricalMixin, Model):  # type: ignore[misc]
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = nn.Sequential(
            nn.Linear(self.num_observations, 16), nn.Tanh(), nn.Linear(16, self.num_actions)
        )

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):  # type: ignore[misc]
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 16), nn.Tanh(), nn.Linear(16, 1))

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


def train(envs: Any, directory: Path) -> dict[str, Any]:
    """A short PPO; returns what was learned."""
    set_seed(3)
    env = wrap_env(envs)
    about = {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    agent = PPO(
        models={"policy": Policy(**about), "value": Value(**about)},
        memory=RandomMemory(memory_size=32, num_envs=env.num_envs, device=env.device),
        cfg={
            "rollouts": 32,
            "learning_epochs": 2,
            "mini_batches": 2,
            "time_limit_bootstrap": True,
            "experiment": {
                "directory": str(directory),
                "write_interval": 0,
                "checkpoint_interval": 0,
            },
        },
        **about,
    )
    trainer = SequentialTrainer(
        env=env,
        agents=agent,
        cfg={
            "timesteps": 96,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        },
    )
    trainer.train()
    env.close()
    return {
        f"{name}.{key}": weight
        for name, model in agent.models.items()
        for key, weight in model.state_dict().items()
    }


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_same_weights_as_with_local_lanes(mode: str, tmp_path: Path) -> None:
    maker = partial(gym.make, "CartPole-v1", max_episode_steps=20)
    theirs = train(SyncVectorEnv([maker] * 3, autoreset_mode=mode), tmp_path)
    ours = train(
        gym.make_vec(
            "rlmesh_gym:rlmesh/Remote-v0",
            num_envs=3,
            env_id="CartPole-v1",
            max_episode_steps=20,
            autoreset_mode=mode,
        ),
        tmp_path,
    )
    assert ours.keys() == theirs.keys()
    for key, weight in theirs.items():
        assert torch.equal(ours[key], weight), key


def test_disabled_needs_resets_that_skrl_does_not_ask_for() -> None:
    makers = [partial(CountingEnv, 2) for _ in range(2)]
    with serving([make() for make in makers]) as address:
        env = wrap_env(RemoteVectorEnv(address, autoreset_mode="Disabled"))
        env.reset()
        actions = torch.zeros((2, 1), dtype=torch.int64)
        env.step(actions)
        assert env.step(actions)[2].all()
        with pytest.raises(ResetNeededError):
            env.step(actions)
        env.close()


def test_render() -> None:
    makers = [partial(CountingEnv, 2, base=7.0, render_mode="rgb_array") for _ in range(2)]
    with serving([make() for make in makers]) as address:
        env = wrap_env(RemoteVectorEnv(address, autoreset_mode="SameStep"))
        env.reset()
        frames = env.render()
        env.close()
    assert len(frames) == 2
    assert np.array_equal(frames[0][..., 0], np.full((6, 8), 7))
