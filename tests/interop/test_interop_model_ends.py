"""A model that fails where an episode ends: the run does the same wherever the model is."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.runtime import RuntimeHooks, events
from tests.peers import expected_action, model_endpoint

pytestmark = pytest.mark.interop

SEEDS = [3, 1, 4, 1, 5, 9, 2]


class Clinging(rg.ModelHandler):
    """As the released package's model of the tests is."""

    def predict(self, observation: Any) -> Any:
        return np.array([expected_action(row) for row in observation.observation])

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        raise ValueError("cannot let go")


class Log(RuntimeHooks):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, event: events.LogEvent) -> None:
        self.lines.append(event.message)


def play(policy: Any, mode: AutoresetMode) -> tuple[Any, list[str], list[str]]:
    envs = gym.make_vec(
        "CartPole-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    log = Log()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = rg.run(envs, policy, episode_seeds=SEEDS, hooks=log)
    envs.close()
    told = [str(one.message) for one in caught if "forget" in str(one.message)]
    records = [(one.seed, one.length, one.terminated) for one in report.episodes]
    return (records, report.stop_reason, report.error), told, log.lines


def loop(address: str) -> list[str]:
    """Play with a RemotePolicy by hand; return the warnings."""
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with warnings.catch_warnings(record=True) as caught, rg.RemotePolicy(address, envs) as policy:
        warnings.simplefilter("always")
        observations, _ = envs.reset(seed=3)
        for _ in range(80):
            observations, _, terminations, truncations, _ = envs.step(policy(observations))
            policy.observe_step(terminations, truncations)
    envs.close()
    return [str(one.message) for one in caught if "forget" in str(one.message)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_model_that_cannot_let_go_ends_no_run(mode: AutoresetMode) -> None:
    cart_pole = gym.make("CartPole-v1")
    with ExitStack() as stack:
        stack.callback(cart_pole.close)
        released = stack.enter_context(model_endpoint("clinging"))
        served = stack.enter_context(rg.ModelServer(Clinging())).address
        policy = stack.enter_context(
            rg.RemotePolicy(
                released.address,
                single_observation_space=cart_pole.observation_space,
                single_action_space=cart_pole.action_space,
                num_envs=2,
            )
        )
        played = {
            "local": play(Clinging(), mode),
            "served": play(served, mode),
            "released": play(released.address, mode),
            "policy": play(policy, mode),
        }
        in_a_loop = loop(released.address)
    outcomes = [outcome for outcome, _, _ in played.values()]
    assert len(outcomes[0][0]) == len(SEEDS)
    assert outcomes[0][1:] == ("max_episodes", None)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    for end, (_, told, lines) in played.items():
        assert len(told) == 1, (end, told)
        assert "cannot let go" in told[0]
        # A policy of the user's own warns, as in a loop; the run's log has what the run opened.
        assert sum("cannot let go" in line for line in lines) >= (end != "policy"), (end, lines)
    assert len(in_a_loop) == 1
    assert "cannot let go" in in_a_loop[0]
