from __future__ import annotations

import uuid

import numpy as np
import pytest

from rlmesh_gym.episodes import EpisodeLog, wilson_interval
from rlmesh_gym.lanes import LanePhase, LaneTable, mint_episode_id


def test_ids_are_uuid7_and_sorted() -> None:
    ids = [mint_episode_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert all(uuid.UUID(name).version == 7 for name in ids)
    assert ids == sorted(ids)


def test_a_new_table_has_no_running_lane() -> None:
    table = LaneTable(2)
    assert table.phases == (LanePhase.ENDED, LanePhase.ENDED)
    assert table.episode_ids == ["", ""]


@pytest.mark.parametrize("lanes", [[0, 2], slice(0, 3, 2)])
def test_begin_count_and_end_some_lanes(lanes: list[int] | slice) -> None:
    table = LaneTable(3)
    table.begin(range(3), seeds=[5, None, 7])
    assert len(set(table.episode_ids)) == 3
    assert table.seeds == [5, None, 7]
    table.count(lanes, np.array([1.0, 3.0]))
    table.end([2])
    assert table.phases == (LanePhase.RUNNING, LanePhase.RUNNING, LanePhase.ENDED)
    assert table.lengths.tolist() == [1, 0, 1]
    assert table.returns.tolist() == [1.0, 0.0, 3.0]


def test_begin_with_minted_ids_starts_over() -> None:
    table = LaneTable(2)
    table.begin(range(2), seeds=[1, 2])
    table.count(slice(0, 2), np.ones(2))
    table.end([0])
    table.begin([0], episode_ids=["x"])
    assert table.episode_ids[0] == "x"
    assert table.seeds == [None, 2]
    assert table.lengths.tolist() == [0, 1]
    assert table.phases == (LanePhase.RUNNING, LanePhase.RUNNING)


def test_record_and_log() -> None:
    table = LaneTable(1)
    log = EpisodeLog(maxlen=2)
    for number in range(3):
        table.begin([0], seeds=[number])
        table.count([0], np.array([2.5]))
        log.append(
            table.record(
                0,
                endpoint="tcp://h:1",
                env_id="Env-v0",
                terminated=True,
                final_info={"is_success": number == 2},
            )
        )
    table.begin([0])
    log.append(table.record(0, endpoint="tcp://h:1", interrupted=True))
    assert (log.total, log.total_interrupted, len(log), log.maxlen) == (4, 1, 2, 2)
    assert log[0].seed == 2
    assert log[0].env_id == "Env-v0"
    assert log[0].end == "terminated"
    assert log[0].success is True
    assert log[0].episode_return == 2.5
    assert log[1].interrupted
    assert log[1].success is None
    assert [record.seed for record in log[:1]] == [2]
    assert log.completed == [log[0]]
    assert log.interrupted == [log[1]]
    assert (log.statistics.completed, log.statistics.interrupted) == (1, 1)
    assert log.statistics.success_rate == 1.0
    assert log.statistics.success_interval == wilson_interval(1, 1)
    row = log.to_dicts()[0]
    assert list(row) == list(log[0].__dataclass_fields__)
    row["final_info"]["is_success"] = False
    assert log[0].final_info == {"is_success": True}
