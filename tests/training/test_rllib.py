"""RLlib's new stack trains on remote lanes, on its own process's and on a worker's.

It has an environment of its own: ``scripts/test-training rllib``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
from gymnasium.vector import SyncVectorEnv
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.testing import serving
from tests.fake_envs import CountingEnv
from tests.training.training_page import run_example

# Ray takes its time to start on a busy machine.
pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

REMOTE = "rlmesh_gym:rlmesh/Remote-v0"


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield
    ray.shutdown()


def configured(env: str, mode: str, *, num_env_runners: int = 0, **env_config: Any) -> Any:
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(
            num_env_runners=num_env_runners,
            num_envs_per_env_runner=4,
            gym_env_vectorize_mode=mode,
            rollout_fragment_length=32,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=2)
        .debugging(seed=3)
    )


def two_iterations(config: Any) -> list[tuple[float, ...]]:
    algorithm = config.build_algo()
    try:
        results = [algorithm.train()["env_runners"] for _ in range(2)]
    finally:
        algorithm.stop()
    names = ("num_env_steps_sampled", "num_episodes", "episode_return_mean", "episode_len_max")
    return [tuple(float(result[name]) for name in names) for result in results]


def test_two_iterations_are_those_of_local_lanes() -> None:
    local = two_iterations(configured("CartPole-v1", "sync"))
    remote = two_iterations(configured(REMOTE, "vector_entry_point", env_id="CartPole-v1"))
    assert remote == local
    assert remote[1][1] > 0


def test_two_iterations_with_a_worker() -> None:
    """The worker imports the package because the id names it."""
    with serving(lambda: SyncVectorEnv([_cartpole] * 4), max_sessions=1) as address:
        config = configured(REMOTE, "vector_entry_point", num_env_runners=1, address=address)
        results = two_iterations(config)
    assert results[1][0] >= 128
    assert results[1][1] > 0


def test_episodes_are_whole() -> None:
    """Each begins with its first observation and ends with its terminal one."""
    lanes = [CountingEnv(2 + lane, base=100.0 * lane) for lane in range(4)]
    with serving(lanes) as address:
        config = configured(
            REMOTE, "vector_entry_point", address=address, autoreset_mode="NextStep"
        )
        runner = SingleAgentEnvRunner(config=config)
        episodes = runner.sample(num_episodes=8, random_actions=True)
        runner.stop()
    over = [episode for episode in episodes if episode.is_done]
    assert len(over) >= 8
    for episode in over:
        observations = np.array(episode.get_observations())[:, 0]
        first = observations[0]
        assert first % 10 == 0
        assert observations.tolist() == [first + t for t in range(len(observations))]
        assert len(observations) == 3 + int(first) // 100


def test_the_number_of_lanes_must_be_given() -> None:
    with serving([CountingEnv() for _ in range(2)]) as address:
        config = configured(
            REMOTE, "vector_entry_point", address=address, autoreset_mode="NextStep"
        )
        for lanes, error in ((1, AssertionError), (3, ConfigurationError)):
            config.env_runners(num_envs_per_env_runner=lanes)
            with pytest.raises(error):
                SingleAgentEnvRunner(config=config)


def test_the_example_of_the_documentation() -> None:
    result = run_example("RLlib")["result"]
    assert result["env_runners"]["num_env_steps_sampled"] >= 128


def _cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")
