"""Files of a run are whole at every moment, and what others wrote into them does no harm."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from rlmesh_gym.cli.run_plan import RunPlan
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.report.files import replace_file
from rlmesh_gym.runtime.report.records import read_episodes
from rlmesh_gym.runtime.report.report_files import episodes_csv, read_report

DEEP = '{"env": ' + "[" * 200_000


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    replace_file(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    plan = RunPlan(env=("127.0.0.1:1",), model="127.0.0.1:2", episodes=3)
    with pytest.raises(ConfigurationError, match=r"cannot write .*No space"):
        plan.save(tmp_path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_plan_comes_back(tmp_path: Path) -> None:
    plan = RunPlan(env=("127.0.0.1:1",), model="127.0.0.1:2", episodes=3)
    plan.save(tmp_path)
    assert RunPlan.load(tmp_path) == plan


@pytest.mark.parametrize("name", ["run.json", "report.json", "episodes.jsonl"])
def test_json_that_is_too_deep_is_damage(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(DEEP + "\n")
    if name == "episodes.jsonl":
        assert read_episodes(tmp_path).damaged == 1
        return
    read: Any = RunPlan.load if name == "run.json" else read_report
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd|'x'!A1", "@SUM(1)", "\t=1", "\r=1"])
def test_texts_of_a_peer_are_no_formulas(text: str) -> None:
    row = {"episode_id": text, "length": -3, "episode_return": -1.5, "note": "a=b"}
    [cells] = csv.DictReader(io.StringIO(episodes_csv([row]), newline=""))
    assert cells == {
        "episode_id": f"'{text}",
        "length": "-3",
        "episode_return": "-1.5",
        "note": "a=b",
    }
