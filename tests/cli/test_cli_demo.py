from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

import rlmesh_gym as rg
from rlmesh_gym.cli.demo_learner import PPO, Network, advantages_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Outcome


def test_the_demo_learns_and_ends(program: Callable[..., Outcome]) -> None:
    shown = program("demo", "--seed", 3, "--updates", 6)
    assert shown.code == 0, shown.out
    match = re.search(r"mean return of 8 episodes: ([\d.]+) before, ([\d.]+) after", shown.out)
    assert match
    before, after = map(float, match.groups())
    assert after > 2 * before
    assert re.search(r"the last 10 of \d+ episodes\nepisode id", shown.out)
    assert "learning" in shown.err
    again = program("demo", "--seed", 3, "--updates", 6)
    numbers = re.compile(r"[\d.]+ before, [\d.]+ after [\d,]+ steps")
    assert numbers.findall(again.out) == numbers.findall(shown.out)


def test_a_demo_that_does_not_learn_says_so(
    program: Callable[..., Outcome], monkeypatch: Any
) -> None:
    monkeypatch.setattr(PPO, "update", lambda *_: None)
    shown = program("demo", "--updates", 1)
    assert "before" in shown.out
    if shown.code:
        assert "did not rise" in shown.out


def test_gradients_against_differences() -> None:
    """The network's hand-written gradient, seen through one step of plain descent."""
    rng = np.random.default_rng(0)
    network = Network((3, 5, 4, 2), 1.0, rng)
    x = rng.standard_normal((4, 3))
    weights = rng.standard_normal((4, 2))

    def loss() -> float:
        return float((network.forward(x)[0] * weights).sum())

    expected = []
    for parameter in network.weights:
        gradient = np.zeros_like(parameter)
        for place in np.ndindex(parameter.shape):
            kept = parameter[place]
            parameter[place] = kept + 1e-6
            above = loss()
            parameter[place] = kept - 1e-6
            gradient[place] = (above - loss()) / 2e-6
            parameter[place] = kept
        expected.append(gradient)
    norm = np.sqrt(sum(float((part**2).sum()) for part in expected))
    network.step(weights, network.forward(x)[1], 0.0)
    # Adam's first moment after one step is a tenth of the clipped gradient.
    for (moment, _), gradient in zip(network.moments, expected, strict=True):
        np.testing.assert_allclose(moment, 0.1 * gradient * min(1, 0.5 / norm), atol=1e-6)


def test_advantages_against_a_recursion() -> None:
    rng = np.random.default_rng(1)
    steps, lanes, gamma, lam = 12, 3, 0.99, 0.95
    values, rewards = rng.standard_normal((steps + 1, lanes)), rng.standard_normal((steps, lanes))
    terminations, truncations = rng.random((2, steps, lanes)) < 0.2

    def advantage(step: int, lane: int) -> float:
        if step == steps:
            return 0.0
        reward, value = rewards[step][lane], values[step][lane]
        if terminations[step][lane]:
            return float(reward - value)
        error = float(reward + gamma * values[step + 1][lane] - value)
        if truncations[step][lane]:
            return error
        return error + gamma * lam * advantage(step + 1, lane)

    expected = [[advantage(step, lane) for lane in range(lanes)] for step in range(steps)]
    found = advantages_of(values, rewards, terminations, truncations)
    np.testing.assert_allclose(found, expected)


def test_bench_beside_gymnasium(program: Callable[..., Outcome]) -> None:
    shown = program("bench", "--num-envs", 2, "--steps", 30, "--json")
    assert shown.code == 0
    result = json.loads(shown.out)
    assert [row["name"] for row in result["rows"]] == [
        "remote, 2 lanes in a child process",
        "local, sync",
        "local, async",
    ]
    for row in result["rows"]:
        assert row["env_steps_per_second"] > 0
        assert row["p50"] <= row["p95"] <= row["p99"]


def test_bench_of_an_address(program: Callable[..., Outcome]) -> None:
    lanes = [gym.make("CartPole-v1") for _ in range(2)]
    with rg.EnvServer(lanes, env_id="OnlyThere-v0") as server:
        shown = program("bench", server.address, "--steps", 60)
    assert shown.code == 0
    assert "OnlyThere-v0, 2 lanes, 60 vector steps each" in shown.out
    assert "'OnlyThere-v0' cannot be made on this machine" in shown.out
