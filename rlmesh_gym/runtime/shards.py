"""Joining the episodes that several runs, or several machines, left behind.

It decides by key what is the same episode; it reads and never writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.records import EpisodeKey, episode_key, read_episodes, repeat_counts
from rlmesh_gym.runtime.report import (
    Bottleneck,
    EpisodeSummary,
    RuntimeReport,
    TelemetrySnapshot,
)
from rlmesh_gym.runtime.report_files import read_report

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MergeSummary", "merge_episodes", "merged_report"]

Row = dict[str, Any]


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


def merged_report(sources: Sequence[str | os.PathLike[str]], merged: MergeSummary) -> RuntimeReport:
    """A report over merged episodes.

    Times and steps are the sums over the sources' reports. Latencies of different machines have no
    common percentiles, so there is no telemetry.

    Raises:
        ConfigurationError: A source's report cannot be read, or its episodes are none.
    """
    reports = [found for source in sources if (found := read_report(source)) is not None]
    try:
        episodes = tuple(map(EpisodeSummary.from_dict, merged.rows))
    except (TypeError, ValueError) as error:
        message = f"a line of the sources is no episode of this version: {error}"
        raise ConfigurationError(message) from error
    env_ids = dict.fromkeys(episode.env_id for episode in episodes)
    endpoints = dict.fromkeys(episode.endpoint for episode in episodes)
    models = dict.fromkeys(report.model_endpoint for report in reports)
    seeds = {report.base_seed for report in reports}
    horizons = {report.execution_horizon for report in reports}
    modes = dict.fromkeys(report.autoreset_mode for report in reports)
    began = [report.started_at for report in reports] or [
        episode.started_at for episode in episodes
    ]
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
