"""Stable-Baselines3 trains on remote lanes exactly as on its own vector of local ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.integrations.sb3 import as_vec_env
from rlmesh_gym.testing import serving
from tests.training.training_envs import BinaryActionEnv, DictObservationEnv

pytestmark = pytest.mark.training


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=25)  # So that most episodes are truncated.


def dicts() -> gym.Env[Any, Any]:
    return DictObservationEnv(5)


def binary() -> gym.Env[Any, Any]:
    return BinaryActionEnv(5)


Maker = Callable[[], gym.Env[Any, Any]]

ppo = partial(
    PPO,
    n_steps=32,
    batch_size=32,
    n_epochs=2,
    seed=5,
    policy_kwargs={"net_arch": [16]},
    device="cpu",
)
dqn = partial(
    DQN,
    learning_starts=32,
    train_freq=4,
    batch_size=16,
    buffer_size=200,
    target_update_interval=20,
    seed=5,
    policy_kwargs={"net_arch": [16]},
    device="cpu",
)


@contextmanager
def remote(make: Maker, num_envs: int = 2) -> Iterator[Any]:
    """Lanes behind the bridge, monitored as training wants them."""
    with serving([make() for _ in range(num_envs)]) as address:
        vec_env = VecMonitor(as_vec_env(RemoteVectorEnv(address, autoreset_mode="SameStep")))
        try:
            yield vec_env
        finally:
            vec_env.close()


def local(make: Maker, num_envs: int = 2) -> Any:
    return VecMonitor(DummyVecEnv([make] * num_envs))


def episodes(model: Any) -> list[tuple[float, int]]:
    return [(episode["r"], episode["l"]) for episode in model.ep_info_buffer]


def assert_same_weights(left: Any, right: Any) -> None:
    ours, theirs = left.policy.state_dict(), right.policy.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


@pytest.mark.parametrize(
    ("algorithm", "policy", "make", "steps"),
    [
        (ppo, "MlpPolicy", cartpole, 256),
        (ppo, "MultiInputPolicy", dicts, 64),
        (ppo, "MlpPolicy", binary, 64),
        (dqn, "MlpPolicy", cartpole, 160),
        (dqn, "MultiInputPolicy", dicts, 80),
    ],
    ids=["ppo", "ppo-dict", "ppo-binary", "dqn", "dqn-dict"],
)
def test_same_weights_as_with_local_lanes(
    algorithm: Any, policy: str, make: Maker, steps: int
) -> None:
    """Bit for bit: observations, rewards, ends, time limits and terminal observations all count."""
    theirs = algorithm(policy, local(make)).learn(steps)
    with remote(make) as envs:
        ours = algorithm(policy, envs).learn(steps)
    assert len(episodes(ours)) > 3
    assert episodes(ours) == episodes(theirs)
    assert_same_weights(ours, theirs)


def test_the_return_rises_and_evaluation_sees_it() -> None:
    with remote(lambda: gym.make("CartPole-v1"), 4) as envs:
        model = PPO(
            "MlpPolicy",
            envs,
            n_steps=64,
            batch_size=128,
            n_epochs=8,
            learning_rate=2e-3,
            gamma=0.98,
            gae_lambda=0.9,
            policy_kwargs={"net_arch": [64]},
            seed=1,
            device="cpu",
        )
        before, _ = evaluate_policy(model, envs, n_eval_episodes=4)
        model.learn(4096)
        after, _ = evaluate_policy(model, envs, n_eval_episodes=4)
    assert after > 2 * before


def test_evaluate_policy_gives_what_it_gives_locally() -> None:
    theirs = local(cartpole)
    model = ppo("MlpPolicy", theirs)
    results = []
    with remote(cartpole) as ours:
        for envs in (ours, theirs):
            envs.seed(3)
            results.append(
                evaluate_policy(model, envs, n_eval_episodes=5, return_episode_rewards=True)
            )
    assert results[0] == results[1]
    assert len(results[0][0]) == 5


def test_save_load_and_go_on(tmp_path: Path) -> None:
    with remote(cartpole) as envs:
        model = ppo("MlpPolicy", envs).learn(64)
        model.save(tmp_path / "model")
        again = PPO.load(tmp_path / "model", env=envs, device="cpu")
        observations = envs.reset()
        actions, _ = model.predict(observations, deterministic=True)
        assert np.array_equal(again.predict(observations, deterministic=True)[0], actions)
        assert again.learn(64, reset_num_timesteps=False).num_timesteps == 128


def test_evaluation_while_training(tmp_path: Path) -> None:
    with remote(cartpole) as envs, remote(cartpole) as others:
        callback = EvalCallback(
            others, n_eval_episodes=2, eval_freq=32, log_path=str(tmp_path), verbose=0
        )
        ppo("MlpPolicy", envs).learn(128, callback=callback)
    evaluations = np.load(tmp_path / "evaluations.npz")
    assert evaluations["results"].shape == (2, 2)
