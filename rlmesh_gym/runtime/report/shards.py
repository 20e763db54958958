"""Joining the episodes that several runs, or several machines, left behind.

It decides by key what is the same episode; it reads and never writes.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.episodes import EpisodeRecord
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.report.bottleneck import Bottleneck
from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot
from rlmesh_gym.runtime.report.records import EpisodeKey, episode_key, read_episodes
from rlmesh_gym.runtime.report.report_files import read_report
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlmesh_gym.runtime.report.records import Row

__all__ = ["MergeSummary", "joined_sessions", "merge_episodes", "merged_report", "repeat_counts"]


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

    ``earlier`` is the report before the last session, ``earlier_rows`` what was finished by then,
    and ``rows`` all that is. Episodes stand in the order of the plan, then those that the last
    session cut off. Steps and rewards are of all sessions as far as known, times of those with a
    report.
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
