from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.episodes import EpisodeRecord
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.report.records import EpisodeJournal, episode_key
from rlmesh_gym.runtime.report.report_files import (
    merge_episodes,
    merged_report,
    read_report,
    write_report,
)
from tests.runtime.report.report_samples import make_report


def row(env: str, seed: int, episode_id: int, length: int = 3) -> dict[str, Any]:
    return {"env_id": env, "seed": seed, "episode_id": str(episode_id), "length": length}


SHARDS = st.lists(
    st.lists(
        st.builds(row, st.sampled_from(["A", "B"]), st.integers(0, 2), st.integers(0, 5)),
        max_size=8,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(shards=SHARDS)
def test_merge_against_sets(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[dict[str, Any]]]
) -> None:
    base = tmp_path_factory.mktemp("shards")
    for number, rows in enumerate(shards):
        (base / str(number)).mkdir()
        text = "".join(json.dumps(item) + "\n" for item in rows)
        (base / str(number) / "episodes.jsonl").write_text(text)
    merged = merge_episodes([base / str(number) for number in range(len(shards))])

    every = [episode_key(item) for rows in shards for item in rows]
    keys = [episode_key(item) for item in merged.rows]
    assert keys == list(dict.fromkeys(every))
    assert merged.duplicates == len(every) - len(keys)
    assert merged.repeats == len(keys) - len({(key.env, key.seed) for key in keys})
    assert merged.conflicts == ()
    assert sum(merged.per_source.values()) == len(keys)


def test_conflicts_are_named_and_the_first_is_kept(tmp_path: Path) -> None:
    for name, length in (("a", 3), ("b", 4)):
        with EpisodeJournal(tmp_path / name) as journal:
            journal.append(row("A", 1, 1, length))
    merged = merge_episodes([tmp_path / "a", tmp_path / "b"])
    assert [item["length"] for item in merged.rows] == [3]
    assert merged.duplicates == 1
    assert [key.episode_id for key in merged.conflicts] == ["1"]
    assert merged.repeats == 0


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        merge_episodes([tmp_path / "nowhere"])


def test_a_report_comes_back_from_its_files(tmp_path: Path) -> None:
    report = make_report(12)
    page = write_report(report, tmp_path / "out")
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "episodes.csv",
        "episodes.jsonl",
        "report.html",
        "report.json",
    ]
    assert read_report(tmp_path / "out") == report
    assert read_report(tmp_path / "other") is None
    (tmp_path / "out" / "report.json").write_text('{"session_id": 3}')
    with pytest.raises(ConfigurationError, match="cannot be read as a report"):
        read_report(tmp_path / "out")


def test_merged_reports_add_up(tmp_path: Path) -> None:
    first, second = make_report(10, seed=1), make_report(7, seed=2)
    write_report(first, tmp_path / "a")
    write_report(second, tmp_path / "b")
    # A third machine was killed: episodes without a report.
    with EpisodeJournal(tmp_path / "c") as journal:
        journal.append(make_report(1, seed=3).episodes[0].to_dict())
    sources = [tmp_path / name for name in "abc"]
    merged = merge_episodes(sources)
    report = merged_report(sources, merged)
    assert len(report.episodes) == 18
    assert report.episodes[:10] == first.episodes
    assert all(isinstance(episode, EpisodeRecord) for episode in report.episodes)
    assert report.duration == pytest.approx(first.duration + second.duration)
    assert report.total_steps == sum(episode.length for episode in report.episodes)
    assert report.base_seed == 7
    write_report(report, tmp_path / "joined")
    assert read_report(tmp_path / "joined") == report


def test_merging_lines_that_are_no_episodes(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"episode_id": "a", "lane": 1}\n')
    merged = merge_episodes([tmp_path])
    with pytest.raises(ConfigurationError, match="not an episode of this version"):
        merged_report([tmp_path], merged)
