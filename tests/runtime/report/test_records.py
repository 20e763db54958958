from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.errors import ClosedError, ConfigurationError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.runtime.report.records import (
    EpisodeJournal,
    EpisodeKey,
    episode_key,
    read_episodes,
    remaining_seeds,
)
from rlmesh_gym.runtime.report.report_files import episodes_csv, repeat_counts

if TYPE_CHECKING:
    from pathlib import Path


def row(seed: int | None, episode_id: str, **more: Any) -> dict[str, Any]:
    return {"env_id": "Env-v0", "seed": seed, "episode_id": episode_id, "length": 3, **more}


TEXT = st.text(max_size=20)
ROWS = st.lists(
    st.builds(
        lambda seed, name, info, interrupted: row(
            seed, f"id-{name}", final_info={"text": info}, interrupted=interrupted
        ),
        st.one_of(st.none(), st.integers(0, 3)),
        st.integers(0, 6),
        TEXT,
        st.booleans(),
    ),
    max_size=12,
)


def first_of_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[EpisodeKey, dict[str, Any]] = {}
    for item in rows:
        found.setdefault(episode_key(item), item)
    return list(found.values())


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, data=st.data())
def test_a_kill_at_any_byte_loses_at_most_one_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("killed")
    with EpisodeJournal(directory) as journal:
        for item in rows:
            journal.append(item)
    written = journal.path.read_bytes()
    cut = data.draw(st.integers(0, len(written)))
    journal.path.write_bytes(written[:cut])

    whole = first_of_each(rows)
    ends = [len(json.dumps(item, separators=(",", ":"))) + 1 for item in whole]
    # The newline alone is no loss: the line before it is complete.
    kept = sum(sum(ends[: place + 1]) - 1 <= cut for place in range(len(ends)))
    with EpisodeJournal(directory) as journal:
        assert list(journal.rows) == whole[:kept]
        # Going on writes what is missing, once, and what is there not again.
        for item in rows:
            journal.append(item)
        assert list(journal.rows) == whole
    assert journal.path.read_bytes() == written
    assert read_episodes(directory).damaged == 0


def test_append_tells_duplicates_from_repeats(tmp_path: Path) -> None:
    with EpisodeJournal(tmp_path) as journal:
        assert journal.append(row(1, "a"))
        assert not journal.append(row(1, "a", length=99))
        assert journal.append(row(1, "b"))
        assert journal.append({**row(1, "a"), "env_id": "Other-v0"})
    assert [item["length"] for item in read_episodes(tmp_path).rows] == [3, 3, 3]
    assert repeat_counts(journal.rows) == {("Env-v0", 1): 2}


def test_each_line_is_on_disk_at_once(tmp_path: Path) -> None:
    with EpisodeJournal(tmp_path) as journal:
        for count in range(1, 4):
            journal.append(row(count, f"id-{count}"))
            assert len(read_episodes(tmp_path).rows) == count


def test_a_damaged_middle_is_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    lines = [json.dumps(row(1, "a")), '{"episode_id": "half', "[1]", "{}", json.dumps(row(2, "b"))]
    path.write_text("\n".join(lines) + "\n")
    found = read_episodes(path)
    assert [item["episode_id"] for item in found.rows] == ["a", "b"]
    assert found.damaged == 3
    with EpisodeJournal(tmp_path) as journal:
        journal.append(row(3, "c"))
    assert [item["episode_id"] for item in read_episodes(path).rows] == ["a", "b", "c"]


@given(content=st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "episodes.jsonl"
    path.write_bytes(content)
    read_episodes(path)


def test_a_closed_journal_and_an_impossible_place(tmp_path: Path) -> None:
    journal = EpisodeJournal(tmp_path / "new" / "deep")
    journal.close()
    journal.close()
    with pytest.raises(ClosedError, match="closed"):
        journal.append(row(1, "a"))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigurationError, match="cannot write episodes"):
        EpisodeJournal(file)
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_episodes(tmp_path / "nothing")


@given(
    wanted=st.lists(st.integers(0, 4), max_size=8),
    rows=ROWS,
)
def test_remaining_seeds_against_counting(wanted: list[int], rows: list[dict[str, Any]]) -> None:
    remaining = remaining_seeds(wanted, rows)
    done = Counter(item["seed"] for item in first_of_each(rows) if not item["interrupted"])
    expected = Counter(wanted) - done
    assert Counter(remaining) == expected
    # In the order of the plan.
    iterator = iter(wanted)
    assert all(any(seed == other for other in iterator) for seed in remaining)


def test_jsonable_knows_what_envs_put_into_infos() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    value = {
        "array": np.arange(4, dtype=np.int16).reshape(2, 2),
        "scalar": np.float32(0.5),
        "flag": np.bool_(True),
        "nan": math.nan,
        "limits": (math.inf, -math.inf),
        "bytes": b"\x00\xff",
        7: {"nested": [None, Odd()]},
        "set": {1},
    }
    plain = jsonable(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "array": [[0, 1], [2, 3]],
        "scalar": 0.5,
        "flag": True,
        "nan": "NaN",
        "limits": ["Infinity", "-Infinity"],
        "bytes": "00ff",
        "7": {"nested": [None, "odd"]},
        "set": [1],
    }
    assert math.isnan(float(plain["nan"]))
    assert float(plain["limits"][1]) == -math.inf


def test_csv_has_every_column_and_nested_cells_as_json() -> None:
    text = 'a "quoted", line\nbreak'
    table = episodes_csv([row(1, "a", final_info={"x": [1]}), row(None, "b", note=text)])
    rows = list(csv.DictReader(io.StringIO(table, newline="")))
    assert [item["episode_id"] for item in rows] == ["a", "b"]
    assert json.loads(rows[0]["final_info"]) == {"x": [1]}
    assert rows[0]["note"] == ""
    assert rows[1]["seed"] == ""
    assert rows[1]["note"] == text


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    """The same as above with a real kill, in the middle of writing."""
    import signal
    import subprocess
    import sys

    script = (
        "import itertools, sys\n"
        "from rlmesh_gym.runtime.report.records import EpisodeJournal\n"
        "journal = EpisodeJournal(sys.argv[1])\n"
        "for k in itertools.count():\n"
        "    journal.append({'env_id': 'E', 'seed': k, 'episode_id': str(k), 'pad': 'x' * 2000})\n"
        "    if k == 200:\n"
        "        print('go', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert read_episodes(tmp_path).damaged <= 1
    with EpisodeJournal(tmp_path) as journal:
        seeds = [item["seed"] for item in journal.rows]
    assert len(seeds) > 200
    assert seeds == list(range(len(seeds)))


def test_one_run_at_a_time_writes_into_a_directory(tmp_path: Path) -> None:
    with (
        EpisodeJournal(tmp_path) as journal,
        pytest.raises(ConfigurationError, match="being written by another run"),
    ):
        EpisodeJournal(tmp_path)
    with EpisodeJournal(tmp_path) as journal:
        assert journal.append({"episode_id": "a"})


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def write_half(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with EpisodeJournal(tmp_path) as journal:
        journal.append({"episode_id": "a"})
        monkeypatch.setattr(os, "write", write_half)
        with pytest.raises(OSError, match="No space left"):
            journal.append({"episode_id": "b"})
        monkeypatch.setattr(os, "write", write)
        # Once there is room again, both this one and the next one are taken.
        assert journal.append({"episode_id": "c"})
        assert journal.append({"episode_id": "b"})
    found = read_episodes(tmp_path)
    assert [row["episode_id"] for row in found.rows] == ["a", "c", "b"]
    assert found.damaged == 0
