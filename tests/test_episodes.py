"""One record of an episode, and one way to sum episodes up: in a loop of one's own as in a run."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np

import rlmesh_gym as rg
from rlmesh_gym.episodes import EpisodeStatistics
from rlmesh_gym.plain_data import jsonable
from tests.fake_envs import CountingEnv

# What depends on who plays and on the clock.
OWN = {"episode_id", "endpoint", "started_at", "duration", "env_time", "policy_time", "index"}


class JudgedEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        *step, info = super().step(action)
        return (*step, {**info, "is_success": self.length == 3})


def _lanes() -> list[JudgedEnv]:
    return [JudgedEnv(3), JudgedEnv(5)]


def _threes(observations: Any) -> Any:
    return np.full(len(observations), 3)


def shared(record: rg.EpisodeRecord) -> dict[str, Any]:
    return {name: value for name, value in record.to_dict().items() if name not in OWN}


def test_a_loop_and_a_run_record_the_same() -> None:
    before = time.time()
    with rg.EnvServer(_lanes, max_sessions=2) as server:
        with rg.RemoteVectorEnv(server.address, autoreset_mode="NextStep") as envs:
            observations, _ = envs.reset(seed=[4, 5])
            while len({record.lane for record in envs.episodes}) < 2:
                observations, *_ = envs.step(_threes(observations))
        run = rg.run(server.address, _threes, episode_seeds=[4, 5])
    mine = {record.lane: record for record in reversed(envs.episodes)}
    assert [shared(mine[lane]) for lane in (0, 1)] == [shared(one) for one in run.episodes]
    assert all(before <= record.started_at <= time.time() for record in (*mine.values(),))
    assert run.total_episodes == 2
    assert run.success_rate == 0.5
    assert EpisodeStatistics.of(mine.values()) == run.statistics


def test_a_record_is_plain_and_comes_back() -> None:
    record = rg.EpisodeRecord(
        episode_id="a",
        lane=0,
        endpoint="local",
        env_id="Env-v0",
        seed=None,
        length=2,
        episode_return=math.inf,
        terminated=False,
        truncated=True,
        final_info={"path": np.arange(2), "note": b"\x01"},
    )
    assert record.end == "truncated"
    data = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert data["final_info"] == {"path": [0, 1], "note": "01"}
    again = rg.EpisodeRecord.from_dict({**data, "mood": "of a later version"})
    assert again.episode_return == math.inf
    assert again.to_dict() == record.to_dict()


def test_jsonable_takes_dataclasses_and_mappings() -> None:
    found = jsonable(rg.Timeouts(step=2.0))
    assert found["step"] == 2.0
    assert jsonable(rg.Timeouts) == repr(rg.Timeouts)
