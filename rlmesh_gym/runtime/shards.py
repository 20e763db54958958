"""Joining the episodes that several runs, or several machines, left behind.

It decides by key what is the same episode; it reads and never writes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.runtime.records import EpisodeKey, episode_key, read_episodes, repeat_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MergeSummary", "merge_episodes"]

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
