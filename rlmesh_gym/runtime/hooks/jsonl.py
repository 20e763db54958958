"""Hooks that write lines of JSON: every event into a file, finished episodes into a journal."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from threading import Lock
from types import MethodType
from typing import TYPE_CHECKING, Any, TextIO

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.hooks.table import OBSERVERS, RuntimeHooks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from rlmesh_gym.runtime.hooks.events import EpisodeCompleted, RuntimeEvent
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot
    from rlmesh_gym.runtime.report.records import EpisodeJournal, Row


_logger = logging.getLogger(__name__)

_FLUSHED = frozenset({"session_started", "episode_completed", "log"})
_LAST = frozenset({"session_ended", "session_failed"})


class JsonLinesRecorder(RuntimeHooks):
    """Writes events to a file, one JSON object per line, flushed at every episode and at the end.

    Each line has ``time`` (seconds since the Unix epoch), ``event`` and the event's fields;
    observations and actions are left out. The file is opened at the first event, added to if it is
    there, and closed with the run.

    Args:
        path: The file; its directory must exist.
        only: Names of the events to write; all if omitted. ``step_completed`` is one line per
            vector step.

    Raises:
        ConfigurationError: There is no event of such a name.
    """

    def __init__(self, path: str | os.PathLike[str], only: Iterable[str] | None = None) -> None:
        self.path: Path = Path(path)
        chosen = frozenset(OBSERVERS if only is None else only)
        unknown = sorted(chosen - set(OBSERVERS))
        if unknown:
            raise ConfigurationError(f"unknown events {unknown}; known are {', '.join(OBSERVERS)}")
        for name in OBSERVERS:
            if name not in chosen:
                # Hidden behind the base class's own method, which the driver never calls.
                setattr(self, name, MethodType(getattr(RuntimeHooks, name), self))
        self._file: TextIO | None = None
        # Telemetry windows come from another thread.
        self._lock = Lock()

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, data: dict[str, Any], *, flush: bool = False) -> None:
        line = json.dumps({"time": time.time(), **data}, allow_nan=False)
        with self._lock:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            if flush:
                self._file.flush()

    def _record(self, event: RuntimeEvent) -> None:
        self._write(event.to_dict(), flush=event.name in _FLUSHED)
        if event.name in _LAST:
            self.close()

    env_connected = model_connected = session_started = episode_started = _record
    observation_emitted = action_received = step_completed = episode_completed = _record
    log = session_ended = session_failed = _record

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        """Write the rows of the snapshot."""
        self._write({"event": "on_telemetry", **snapshot.to_dict()})


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
