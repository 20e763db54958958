"""How many rows and calls replay costs, as counts that no machine changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import ModelServer
from tests.policy.served_models import ScriptedLanes, TellingModel, check_origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.policy import PolicyStats

HORIZON = 8
LANES = 16
STEPS = 400


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ModelServer(TellingModel()) as server:
        yield server.address


def run(address: str, mode: AutoresetMode, coalesce: int) -> tuple[PolicyStats, int, int, int]:
    """Return the statistics, env steps, episodes, and the rows that the whole-batch rule takes."""
    random = np.random.default_rng(0)
    lanes = ScriptedLanes(lambda: random.integers(20, 61), mode, chunk=HORIZON, num_envs=LANES)
    env_steps = whole_batch_rows = left = 0
    observations = lanes.reset()
    with RemotePolicy(address, lanes, execution_horizon=HORIZON, coalesce=coalesce) as policy:
        for _ in range(STEPS):
            check_origin(lanes, policy(observations))
            running = ~lanes.table.ended
            env_steps += int(running.sum())
            # The rule beside it: one lane's new episode throws away every lane's chunk.
            if left == 0 or (running & (lanes.t == 0)).any():
                whole_batch_rows += LANES
                left = HORIZON
            left -= 1
            observations, _, _ = lanes.step()
        return policy.stats, env_steps, int(lanes.episode.sum()) + LANES, whole_batch_rows


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_stay_near_one_per_chunk(mode: AutoresetMode, address: str) -> None:
    stats, env_steps, episodes, whole_batch_rows = run(address, mode, 0)
    assert stats.rows <= 1.1 * env_steps / HORIZON + episodes
    assert whole_batch_rows > 2 * stats.rows
    assert stats.rows + stats.replayed_rows == env_steps
    assert env_steps + stats.idle_rows == STEPS * LANES


def test_coalescing_trades_rows_for_calls(address: str) -> None:
    by_coalesce = {each: run(address, AutoresetMode.SAME_STEP, each)[0] for each in (0, 2, 4)}
    calls = [stats.calls for stats in by_coalesce.values()]
    rows = [stats.rows for stats in by_coalesce.values()]
    assert calls == sorted(calls, reverse=True)
    assert rows == sorted(rows)
    assert calls[0] > 1.5 * calls[2]
    assert rows[2] < 2 * rows[0]


def test_an_interval_plans_that_often(address: str) -> None:
    lanes = ScriptedLanes(lambda: 40, AutoresetMode.SAME_STEP, chunk=8, num_envs=2)
    observations = lanes.reset()
    with RemotePolicy(address, lanes, execution_horizon=8, replan_interval=5) as policy:
        for _ in range(80):
            policy(observations)
            observations, _, _ = lanes.step()
        assert policy.stats.rows == 2 * 2 * 40 // 5
