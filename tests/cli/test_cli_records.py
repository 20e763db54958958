"""Records are exactly-once: a run is killed at any moment, and goes on with ``--resume``."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

import rlmesh_gym as rg
from rlmesh_gym.runtime.report.records import read_episodes
from rlmesh_gym.runtime.report.report_files import read_report
from tests.cli.conftest import started
from tests.lengths import IS_THOROUGH
from tests.runtime.ends import play_by_hand
from tests.runtime.played_env import PlayedEnv, frame

if TYPE_CHECKING:
    from pathlib import Path

EPISODES = 14
KILLS = 60 if IS_THOROUGH else 6


class Killer:
    """A model that kills the run which asks it, in its ``at``-th answer from now on."""

    def __init__(self) -> None:
        self.process: Any = None
        self.at = 0

    def __call__(self, observations: Any) -> Any:
        self.at -= 1
        if self.at == 0:
            self.process.kill()
        return frame(observations)


def outcomes(directory: Path) -> list[tuple[Any, ...]]:
    return sorted(
        (row["index"], row["seed"], row["length"], row["episode_return"])
        for row in read_episodes(directory).rows
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [7, None])
def test_no_episode_is_lost_doubled_or_renumbered(seed: int | None, tmp_path: Path) -> None:
    rng = random.Random(11)
    killer = Killer()
    model = rg.ModelServer(killer)
    # Sessions of runs that were killed may end a moment later than the next one begins.
    env = rg.EnvServer(lambda: [PlayedEnv() for _ in range(3)], max_sessions=8)
    with env, model:
        ends = ("--env", env.address, "--model", model.address, "--episodes", str(EPISODES))
        seeded = () if seed is None else ("--seed", str(seed))
        kills, runs = 0, 0
        while kills < KILLS:
            out = tmp_path / f"out-{runs}"
            runs += 1
            arguments: tuple[str, ...] = ("run", *ends, *seeded, "--report", str(out))
            while True:
                before = outcomes(out) if out.exists() else []
                killer.at = rng.randint(1, 45)
                with started(*arguments) as process:
                    killer.process = process
                    process.communicate(timeout=60)
                killed = process.returncode == -signal.SIGKILL
                kills += killed
                assert killed or process.returncode == 0
                after = outcomes(out) if out.exists() else []
                # What was there stays as it was, and no number comes twice.
                assert set(before) <= set(after)
                assert len({row[0] for row in after}) == len(after)
                if not killed:
                    break
                if (out / "run.json").exists():
                    arguments = ("run", "--resume", str(out))
            found = outcomes(out)
            assert [row[0] for row in found] == list(range(EPISODES))
            report = read_report(out)
            assert report is not None
            assert sorted(one.index for one in report.completed_episodes) == list(range(EPISODES))
            assert report.total_steps >= sum(row[2] for row in found)
            if seed is not None:
                for _, own, length, total in found:
                    by_hand = play_by_hand(own)
                    assert (length, total) == (by_hand.length, by_hand.episode_return)
