"""``rlmesh-gym demo``: an agent learns CartPole on eight lanes of an endpoint of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

import rlmesh_gym  # noqa: F401 - registers the id
from rlmesh_gym.cli.demo_learner import PPO
from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import count_option
from rlmesh_gym.cli.output import show
from rlmesh_gym.episodes import EpisodeStatistics
from rlmesh_gym.runtime.report.episode_table import episodes_text
from rlmesh_gym.runtime.report.formatting import format_number

if TYPE_CHECKING:
    import argparse


_NUM_ENVS = 8
_ROLLOUT_STEPS = 128
_UPDATES = 50
_SOLVED = 475.0  # CartPole-v1's own reward threshold
_RECENT = 20
_TIME_LIMIT = 90.0  # seconds; a machine too slow for all updates still ends in time
# Positions and angles at which an episode ends, and speeds that are seldom passed: inputs near one.
_SCALE = np.array([2.4, 3.0, 0.21, 3.0])

EPILOG = """\
It starts an endpoint in a child process, connects with
gym.make_vec("rlmesh/Remote-v0", env_id="CartPole-v1", num_envs=8), trains a small PPO written in
numpy, and shows the mean return before and after. The same seed gives the same result.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    text = f"at most so many learning steps (default: {_UPDATES})"
    count_option(parser, "--updates", text, default=_UPDATES)


def execute(options: argparse.Namespace) -> int:
    """Train, compare, tell."""
    began = time.perf_counter()
    envs = gym.make_vec("rlmesh/Remote-v0", env_id="CartPole-v1", num_envs=_NUM_ENVS)
    try:
        show(f"CartPole-v1, {_NUM_ENVS} lanes in a process of its own, seed {options.seed}")
        learner = PPO(_SCALE.size, 2, seed=options.seed)
        before = _evaluate(envs, learner, seed=options.seed + 1000)
        steps = _train(envs, learner, options.seed, options.updates, began)
        after = _evaluate(envs, learner, seed=options.seed + 2000)
        episodes: Any = envs.unwrapped.episodes  # type: ignore[attr-defined]
        show(f"\n{episodes_text(episodes.completed, limit=10)}")
    finally:
        envs.close()
    seconds = time.perf_counter() - began
    show(
        f"\nmean return of {_NUM_ENVS} episodes: {format_number(before)} before, "
        f"{format_number(after)} after {steps:,} steps; {seconds:.0f} s in all"
    )
    if after <= before:
        show("The return did not rise; try another --seed.")
        return Exit.FAILED
    return Exit.DONE


def _train(envs: Any, learner: PPO, seed: int, updates: int, began: float) -> int:
    """Learn until solved, until ``updates`` are done, or until time is up; return the steps."""
    observations = envs.reset(seed=seed)[0] / _SCALE
    ended = np.zeros(_NUM_ENVS, dtype=np.bool_)
    with tqdm(total=updates, desc="learning", unit="update", dynamic_ncols=True) as progress:
        for update in range(updates):
            rollout = []
            for _ in range(_ROLLOUT_STEPS):
                chosen = learner.act(observations)
                following, *outcome, _ = envs.step(chosen[0])
                # After an episode's end the lane's next step is its reset.
                rollout.append((observations, *chosen, *outcome, ~ended))
                ended = outcome[1] | outcome[2]
                observations = following / _SCALE
            learner.update(rollout, observations, update / updates)
            recent = EpisodeStatistics.of(envs.unwrapped.episodes.completed[-_RECENT:])
            progress.set_postfix_str(f"mean return {recent.returns.mean:.0f}")
            progress.update()
            is_solved = recent.completed == _RECENT and recent.returns.mean >= _SOLVED
            if is_solved or time.perf_counter() - began > _TIME_LIMIT:
                break
    return (update + 1) * _ROLLOUT_STEPS * _NUM_ENVS


def _evaluate(envs: Any, learner: PPO, seed: int) -> float:
    """Mean return of each lane's first episode; the actions are sampled, as in training."""
    observations, _ = envs.reset(seed=seed)
    returns = np.zeros(_NUM_ENVS)
    running = np.ones(_NUM_ENVS, dtype=np.bool_)
    while running.any():
        actions, _, _ = learner.act(observations / _SCALE)
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminations | truncations)
    return float(returns.mean())
