"""The hook that puts every finished episode into a journal, at the moment it is finished."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rlmesh_gym.runtime.hooks.table import RuntimeHooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.runtime.hooks.events import EpisodeCompleted
    from rlmesh_gym.runtime.report.records import EpisodeJournal, Row

__all__ = ["EpisodeRecorder"]

_logger = logging.getLogger(__name__)


class EpisodeRecorder(RuntimeHooks):
    """Appends finished episodes to a journal; those that the end of the run cut off it leaves out.

    Args:
        journal: Open; it stays open.
        indices: Of a run that plays a part of a larger plan: the place in that plan of each of its
            own episodes. None keeps the run's own numbers.

    Attributes:
        unwritten: Rows of finished episodes that the disk did not take.
    """

    def __init__(self, journal: EpisodeJournal, indices: Sequence[int] | None = None) -> None:
        self.journal: EpisodeJournal = journal
        self.unwritten: list[Row] = []
        self._indices = indices

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Write the episode down, unless it was interrupted."""
        if event.episode.interrupted:
            return
        row: Row = event.episode.to_dict()
        if self._indices is not None:
            row["index"] = self._indices[event.episode.index]
        try:
            self.journal.append(row)
        except OSError as error:
            if not self.unwritten:
                _logger.warning(
                    "%s takes no more episodes (%s); they are kept for the report",
                    self.journal.path,
                    error.strerror or error,
                )
            self.unwritten.append(row)
