"""Tianshou trains on single remote environments in its own vector, as on local ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from rlmesh_gym.testing import serving

pytestmark = pytest.mark.training

cartpole = partial(gym.make, "CartPole-v1", max_episode_steps=9)


def train(makers: list[Callable[[], gym.Env[Any, Any]]]) -> tuple[Any, Any, Any]:
    """A short DQN; returns the algorithm, its buffer and the result."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what Tianshou draws from
    envs = DummyVectorEnv(makers)
    envs.seed(3)
    observation_space, action_space = envs.observation_space[0], envs.action_space[0]
    for space in envs.action_space:
        space.seed(0)
    algorithm = DQN(
        policy=DiscreteQLearningPolicy(
            model=Net(
                state_shape=observation_space.shape,
                action_shape=action_space.n,
                hidden_sizes=[16],
            ),
            action_space=action_space,
            observation_space=observation_space,
            eps_training=0.1,
        ),
        optim=AdamOptimizerFactory(lr=1e-3),
        target_update_freq=20,
    )
    buffer = VectorReplayBuffer(1000, len(envs))
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=Collector(algorithm, envs, buffer, exploration_noise=True),
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=160,
            collection_step_num_env_steps=20,
            update_step_num_gradient_steps_per_sample=0.2,
            batch_size=16,
            show_progress=False,
            verbose=False,
        )
    )
    envs.close()
    return algorithm, buffer, result


def test_same_transitions_and_weights_as_with_local_environments() -> None:
    # Every session gets an environment of its own, so one endpoint serves both.
    with serving(cartpole, max_sessions=2) as address:
        remote = partial(gym.make, "rlmesh_gym:rlmesh/Remote-v0", address=address)
        ours, our_buffer, result = train([remote] * 2)
    theirs, their_buffer, _ = train([cartpole] * 2)
    assert result.train_episode > 5
    assert our_buffer.truncated.any()
    for name in ("obs", "act", "rew", "obs_next", "terminated", "truncated"):
        assert np.array_equal(getattr(our_buffer, name), getattr(their_buffer, name)), name
    weights = theirs.policy.state_dict()
    for name, weight in ours.policy.state_dict().items():
        assert torch.equal(weight, weights[name]), name
