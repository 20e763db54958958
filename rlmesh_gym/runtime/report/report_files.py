"""A report as files, and the report that joins those of several sessions, runs or machines.

Each file is written beside its place and moved there, so that a reader never sees half of one.
Joining decides by key what is the same episode; it reads and never writes.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh_gym.episodes import EpisodeRecord
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.runtime.report.bottleneck import Bottleneck
from rlmesh_gym.runtime.report.files import parse_json, replace_file
from rlmesh_gym.runtime.report.html_report import html_report
from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot
from rlmesh_gym.runtime.report.records import (
    EpisodeJournal,
    EpisodeKey,
    episode_key,
    read_episodes,
)
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlmesh_gym.runtime.report.records import Row


EPISODES_CSV = "episodes.csv"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


def write_report(
    report: RuntimeReport,
    directory: str | os.PathLike[str],
    *,
    journal: EpisodeJournal | None = None,
) -> Path:
    """Write a report into a directory, which is made when missing.

    ``report.json``, ``report.html`` and ``episodes.csv`` are replaced; finished episodes that
    ``episodes.jsonl`` has not yet are added to it.

    Args:
        report: What to write.
        directory: Where to.
        journal: That of the directory, if it is open; it stays open.

    Returns:
        The path of ``report.html``.

    Raises:
        ConfigurationError: The directory cannot be written.
    """
    target = Path(directory)
    rows = [episode.to_dict() for episode in report.episodes]
    texts = {
        REPORT_JSON: json.dumps(report.to_dict(), allow_nan=False, indent=1),
        EPISODES_CSV: episodes_csv(rows),
        REPORT_HTML: html_report(report),
    }
    try:
        with EpisodeJournal(target) if journal is None else nullcontext(journal) as opened:
            for row in rows:
                # A resumed run plays cut-off episodes anew.
                if not row["interrupted"]:
                    opened.append(row)
        for name, text in texts.items():
            replace_file(target / name, text)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report to {target}: {error.strerror or error}"
        ) from error
    return target / REPORT_HTML


def read_report(directory: str | os.PathLike[str]) -> RuntimeReport | None:
    """The report of a directory, None when the run left none (it was killed).

    Raises:
        ConfigurationError: ``report.json`` is there and is no report.
    """
    path = Path(directory) / REPORT_JSON
    try:
        data = parse_json(path.read_bytes())
        return RuntimeReport.from_dict(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a report: {type(error).__name__}: {error}"
        ) from error


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula; an env's own texts must not be one."""


def episodes_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a CSV table; the columns are the keys of all rows, nested values JSON text."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    plain = jsonable(value)
    if isinstance(plain, (dict, list)):
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(plain, str) and plain.startswith(_FORMULA):
        return f"'{plain}"
    return "" if plain is None else plain


@dataclass(frozen=True)
class MergeSummary:
    """What ``merge_episodes`` found.

    Attributes:
        rows: The distinct episodes, in the order of the sources.
        duplicates: Lines left out because their key was there already.
        conflicts: Duplicates whose content differs; the first one was kept.
        repeats: Episodes beyond the first of their environment and seed; all are kept.
        damaged: Unreadable lines.
        per_source: Per source path, the number of its episodes that were new.
    """

    rows: tuple[Row, ...]
    duplicates: int
    conflicts: tuple[EpisodeKey, ...]
    repeats: int
    damaged: int
    per_source: dict[str, int]


def merge_episodes(sources: Sequence[str | os.PathLike[str]]) -> MergeSummary:
    """Join the episodes of several report directories or files; nothing is written.

    Raises:
        ConfigurationError: A source does not exist.
    """
    merged: dict[EpisodeKey, Row] = {}
    per_source: dict[str, int] = {}
    duplicates = damaged = 0
    conflicts: dict[EpisodeKey, None] = {}
    for source in sources:
        content = read_episodes(source)
        damaged += content.damaged
        before = len(merged)
        for row in content.rows:
            key = episode_key(row)
            kept = merged.setdefault(key, row)
            if kept is not row:
                duplicates += 1
                if kept != row:
                    conflicts[key] = None
        per_source[os.fspath(source)] = len(merged) - before
    rows = tuple(merged.values())
    repeats = sum(count - 1 for count in repeat_counts(rows).values())
    return MergeSummary(rows, duplicates, tuple(conflicts), repeats, damaged, per_source)


def repeat_counts(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """For every (environment, seed) rolled out more than once: how often, duplicates aside."""
    keys = {episode_key(row) for row in rows if not row.get("interrupted")}
    counts = Counter((key.env, key.seed) for key in keys if key.seed is not None)
    return {pair: count for pair, count in counts.items() if count > 1}


def _read_rows(rows: Sequence[Mapping[str, Any]]) -> list[EpisodeRecord]:
    try:
        return [EpisodeRecord.from_dict(row) for row in rows]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a line of episodes.jsonl is not an episode of this version: {error}"
        ) from error


def merged_report(sources: Sequence[str | os.PathLike[str]], merged: MergeSummary) -> RuntimeReport:
    """A report over merged episodes: times and steps are the sums over the sources' reports.

    Latencies of different machines have no common percentiles, so there is no telemetry.
    """
    reports = [found for source in sources if (found := read_report(source)) is not None]
    episodes = tuple(_read_rows(merged.rows))
    env_ids = dict.fromkeys(episode.env_id for episode in episodes)
    endpoints = dict.fromkeys(episode.endpoint for episode in episodes)
    models = dict.fromkeys(report.model_endpoint for report in reports)
    seeds = {report.base_seed for report in reports}
    horizons = {report.execution_horizon for report in reports}
    modes = dict.fromkeys(report.autoreset_mode for report in reports)
    began = [one.started_at for one in reports or episodes]
    sentence = (
        f"Joined from {len(sources)} runs; the report of each tells what bound it, since latencies "
        "of different machines do not add up."
    )
    return RuntimeReport(
        session_id="merged",
        env_id=", ".join(env_ids),
        num_envs=sum(report.num_envs for report in reports) or 1,
        autoreset_mode=", ".join(modes),
        env_endpoints=tuple(endpoints),
        model_endpoint=", ".join(models),
        base_seed=seeds.pop() if len(seeds) == 1 else None,
        execution_horizon=horizons.pop() if len(horizons) == 1 else 1,
        episodes=episodes,
        total_steps=sum(episode.length for episode in episodes),
        total_reward=sum(episode.episode_return for episode in episodes),
        started_at=min(began, default=0.0),
        duration=sum(report.duration for report in reports),
        stop_reason="merged",
        error=None,
        telemetry=TelemetrySnapshot("session", "merged"),
        bottleneck=Bottleneck(sentence, {}),
    )


def joined_sessions(
    session: RuntimeReport,
    earlier: RuntimeReport | None,
    earlier_rows: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> RuntimeReport:
    """The report of a resumed run: all its finished episodes, and the last session's telemetry.

    Of before the last session are ``earlier`` and ``earlier_rows``; ``rows`` are all that is
    finished. Steps and rewards are of all sessions as far as known, times of those with a report.
    """
    done = sorted(_read_rows(rows), key=lambda episode: episode.index)
    cut_off = [episode for episode in session.episodes if episode.interrupted]
    report = dataclasses.replace(session, episodes=(*done, *cut_off))
    if not earlier_rows:
        return report
    known = _read_rows(earlier_rows)
    steps = sum(episode.length for episode in known)
    reward = sum(episode.episode_return for episode in known)
    duration, started_at = session.duration, min(episode.started_at for episode in known)
    if earlier is not None:
        duration += earlier.duration
        started_at = min(started_at, earlier.started_at)
        # Steps of episodes that were cut off, which the rows do not hold.
        if earlier.total_steps > steps:
            steps, reward = earlier.total_steps, earlier.total_reward
    note = "The run was resumed; this and the latencies are of its last session."
    return dataclasses.replace(
        report,
        total_steps=session.total_steps + steps,
        total_reward=session.total_reward + reward,
        duration=duration,
        started_at=started_at,
        bottleneck=Bottleneck(f"{session.bottleneck.sentence} {note}", session.bottleneck.shares),
    )
