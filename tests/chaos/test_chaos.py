"""The short form of ``scripts/test-chaos``: a few seconds of harm in each mode, and in a run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.chaos.counted import LANES
from tests.chaos.fleet import env_fleet, model_fleet
from tests.chaos.play import Watcher, play_run, play_vector

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 120.0
"""Seconds; they end with what has happened, which takes as long as the machine needs."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_nothing_is_lost_or_doubled(mode: AutoresetMode, socket_dir: Path) -> None:
    with env_fleet(socket_dir, 8, seed=1, pause=0.1, native=mode.value) as fleet:
        until = time.monotonic() + LONGEST
        tally = play_vector(fleet, mode, steps=60, interrupted=40, until=until, seed=1)
    assert tally.violations == []
    assert tally.interrupted >= 40
    assert tally.steps >= 60


@pytest.mark.timeout(180)
def test_a_policy_that_is_lost_too(socket_dir: Path) -> None:
    with (
        env_fleet(socket_dir, 2, seed=2, pause=0.3) as fleet,
        model_fleet(socket_dir, seed=1, pause=0.3) as models,
    ):
        until = time.monotonic() + LONGEST
        tally = play_vector(
            fleet,
            AutoresetMode.NEXT_STEP,
            steps=60,
            interrupted=20,
            until=until,
            seed=2,
            models=models,
        )
        assert models.faults
    assert tally.violations == []


@pytest.mark.timeout(180)
def test_a_run(socket_dir: Path) -> None:
    with (
        env_fleet(socket_dir, 4, seed=3, pause=0.2) as envs,
        model_fleet(socket_dir, seed=3, pause=0.5) as model,
    ):
        tally = play_run(envs, model, seeds=list(range(300, 550)))
    assert tally.violations == []
    assert tally.episodes == 250


@pytest.mark.parametrize(
    ("now", "reward", "text"),
    [
        ([7, 0, 2, 9, 3], 2.0, ""),
        ([7, 0, 3, 9, 3], 3.0, "was followed by"),  # One was lost, or done twice.
        ([7, 0, 2, 9, 4], 2.0, "was followed by"),  # Another lane's action.
        ([8, 0, 2, 9, 3], 2.0, "was followed by"),
        ([7, 0, 2, 9, 3], 1.0, "has the reward"),
        ([7, 1, 0, 9, 0], 0.0, "was followed by"),
    ],
)
def test_a_wrong_transition_is_seen(now: list[int], reward: float, text: str) -> None:
    fleet: Any = SimpleNamespace(endpoints=[SimpleNamespace(losses=0)])
    watcher = Watcher(fleet, AutoresetMode.NEXT_STEP)
    for lane in range(LANES):
        watcher.begin(lane, np.array([7, 0, 0, 9, 0]), cut=True)
    good = np.array([[7, 0, 1, 9, 3]] * LANES)
    actions, none = np.full(LANES, 3), np.zeros(LANES, np.bool_)
    watcher.see(good, (np.ones(LANES), none, none, {}), actions)
    assert watcher.tally.violations == []
    rewards = np.full(LANES, 2.0)
    after = good + np.array([0, 0, 1, 0, 0])
    after[2], rewards[2] = now, reward
    watcher.see(after, (rewards, none, none, {}), actions)
    assert [text in one for one in watcher.tally.violations] == [True] * bool(text)


def test_a_loss_without_a_cause_is_seen() -> None:
    fleet: Any = SimpleNamespace(endpoints=[SimpleNamespace(losses=0)])
    watcher = Watcher(fleet, AutoresetMode.NEXT_STEP)
    all_of_them = np.ones(LANES, np.bool_)
    numbers = (np.zeros(LANES), ~all_of_them, all_of_them, {"interrupted": all_of_them})
    watcher.see(np.zeros((LANES, 5), np.int64), numbers, np.zeros(LANES))
    assert "lost 1 times, harmed 0 times" in watcher.tally.violations[0]
