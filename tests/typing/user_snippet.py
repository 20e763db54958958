"""What a user writes, for mypy and pyright: the annotations must hold, and nothing may be unknown.

Not run; ``mypy`` checks it with the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from typing_extensions import assert_type

import rlmesh_gym as rg

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Still(rg.ModelHandler):
    """A model that answers zeros."""

    def predict(self, observation: rg.ModelObservation) -> NDArray[np.int64]:
        assert_type(observation.num_envs, int)
        assert_type(observation.episode_ids, tuple[str, ...])
        return np.zeros(observation.num_envs, np.int64)


class Shout(rg.RuntimeHooks):
    """A hook that tells of every episode."""

    def episode_completed(self, event: rg.EpisodeCompleted) -> None:
        assert_type(event.episode, rg.EpisodeRecord)
        print(event.episode.lane, event.episode.episode_id)

    def transform_action(self, event: rg.ActionTransform) -> Any:
        return event.actions


def step() -> None:
    """Make environments and step them."""
    with rg.RemoteVectorEnv(
        env_id="CartPole-v1", num_envs=8, autoreset_mode="SameStep", on_failure="restart"
    ) as envs:
        assert_type(envs.num_envs, int)
        assert_type(envs.autoreset_mode, AutoresetMode)
        assert_type(envs.single_action_space, gym.Space[Any])
        assert_type(envs.episode_ids, tuple[str, ...])
        _, infos = envs.reset(seed=7)
        assert_type(infos, dict[str, Any])
        _, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        assert_type(rewards, "NDArray[np.float64]")
        assert_type(terminations | truncations, "NDArray[np.bool_]")
        records: list[rg.EpisodeRecord] = list(envs.episodes)
        assert_type(records[0].length, int)
    with rg.RemoteEnv("127.0.0.1:5555", timeouts={"step": 5.0}, tls=rg.TLSConfig()) as env:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert_type(terminated or truncated, bool)
        print(rewards.sum(), reward)


def predict() -> None:
    """Serve a model and ask it, with and without environments."""
    with (
        rg.ModelServer(Still()) as server,
        rg.EnvServer(list, max_sessions=2, token="secret") as served,
        rg.RemoteVectorEnv(served.address) as envs,
        rg.RemotePolicy(server.address, envs, execution_horizon=4, ensemble="mean") as policy,
    ):
        observations, _ = envs.reset()
        envs.step(policy(observations))


def evaluate() -> list[dict[str, Any]]:
    """Run a policy, and look at the report."""
    report = rg.run("127.0.0.1:5555", Still(), episodes=20, seed=1, hooks=[Shout()])
    assert_type(report, rg.RuntimeReport)
    assert_type(report.total_steps, int)
    assert_type(report.success_rate, float | None)
    spec = rg.RuntimeSessionSpec(max_episodes=3, limits=rg.RuntimeLimits(close_timeout=1.0))
    try:
        again = rg.RuntimeDriver(spec, "127.0.0.1:5555", "127.0.0.1:5556").run()
    except rg.errors.ModelError as error:
        assert_type(error.episode_ids, tuple[str, ...])
        raise
    return [episode.to_dict() for episode in (*report.episodes, *again.episodes)]
