"""Episodes on disk: one JSON line each, written as they end, resumed and merged by their key.

A run may be killed at any byte. What was written before stays readable, and a run that goes on in
the same directory continues after the last whole line. This module knows files and dictionaries,
nothing of environments or of the run loop.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import Self

from rlmesh_gym.errors import ClosedError, ConfigurationError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.runtime.report.files import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_logger = logging.getLogger(__name__)

EPISODES_JSONL = "episodes.jsonl"

Row = dict[str, Any]


class EpisodeKey(NamedTuple):
    """What makes an episode the same episode, wherever its line is found.

    Two lines with one key are *duplicates*: the same rollout, copied. Two keys that differ in the
    id alone are *repeats*: the same environment and seed, rolled out twice.
    """

    env: str
    seed: int | None
    episode_id: str


def episode_key(row: Mapping[str, Any]) -> EpisodeKey:
    """The key of one row (``env_id``, ``seed``, ``episode_id``)."""
    env, seed = str(row.get("env_id", "")), row.get("seed")
    return EpisodeKey(env, None if seed is None else int(seed), str(row["episode_id"]))


@dataclass(frozen=True)
class EpisodeFile:
    """What a file of episodes holds.

    Attributes:
        rows: One dictionary per readable line, in the file's order, duplicates included.
        damaged: Lines that are no episode, such as one cut off by a kill.
        whole_bytes: Length of the file up to the end of its last whole line.
    """

    rows: tuple[Row, ...]
    damaged: int
    whole_bytes: int


def read_episodes(path: str | os.PathLike[str]) -> EpisodeFile:
    """Read a file of episodes, or a directory's ``episodes.jsonl``.

    A line that was cut off, or that is no episode, is counted and passed over.

    Raises:
        ConfigurationError: There is no such file.
    """
    source = Path(path)
    if source.is_dir() or not source.suffix:
        source /= EPISODES_JSONL
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{source} does not exist; give the --report directory of an earlier run"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{source} cannot be read: {error.strerror or error}") from error
    rows: list[Row] = []
    damaged = whole = 0
    for line in data.splitlines(keepends=True):
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif line.strip():
            damaged += 1
        # A whole episode that lost only its newline is kept; the journal adds the newline.
        if line.endswith(b"\n") or row is not None:
            whole += len(line)
    return EpisodeFile(tuple(rows), damaged, whole)


def remaining_seeds(wanted: Sequence[int], rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """The seeds of ``wanted`` that ``rows`` have not finished, in order.

    A seed that is wanted twice needs two finished episodes. Interrupted episodes do not count.
    """
    finished = Counter(
        row["seed"]
        for row in _distinct(rows)
        if row.get("seed") is not None and not row.get("interrupted")
    )
    remaining = []
    for seed in wanted:
        if finished[seed] > 0:
            finished[seed] -= 1
        else:
            remaining.append(seed)
    return remaining


class EpisodeJournal:
    """The ``episodes.jsonl`` of one report directory, open for appending.

    Opening reads what an earlier run left there and cuts off a half-written last line. Every
    episode is one ``write`` to the file descriptor, so that a killed process loses at most the
    line it was writing. While one journal of a directory is open, there can be no other one.

    Args:
        directory: The report directory; it is made when missing.

    Raises:
        ConfigurationError: The directory or the file cannot be written, or another run is writing.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = Path(directory)
        self.path: Path = self.directory / EPISODES_JSONL
        self._descriptor: int | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            _lock(self._descriptor)
            self._rows = self._take_in()
        except OSError as error:
            self._drop()
            if isinstance(error, BlockingIOError):
                message = (
                    f"{self.path} is being written by another run; wait for its end, or name "
                    "another directory"
                )
            else:
                message = f"cannot write episodes to {self.path}: {error.strerror or error}"
            raise ConfigurationError(message) from error
        self._keys = {episode_key(row) for row in self._rows}

    def _take_in(self) -> list[Row]:
        """Read the earlier lines and leave the file at the end of its last whole one."""
        earlier = read_episodes(self.path)
        with self.path.open("rb+") as file:
            file.truncate(earlier.whole_bytes)
            if earlier.whole_bytes:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        return _distinct(earlier.rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every distinct episode, earlier runs' included, in the order of writing."""
        return tuple(self._rows)

    def append(self, row: Mapping[str, Any]) -> bool:
        """Write one episode.

        Args:
            row: At least ``episode_id``; ``env_id`` and ``seed`` complete the key.

        Returns:
            Whether it was new. A duplicate is not written again.

        Raises:
            ClosedError: After ``close``.
            OSError: The disk does not take it.
        """
        if self._descriptor is None:
            raise ClosedError(f"the journal {self.path} is closed")
        plain: Row = jsonable(dict(row))
        key = episode_key(plain)
        if key in self._keys:
            return False
        length = os.fstat(self._descriptor).st_size
        # ASCII only: no reader takes an exotic line separator in a string for the end of a line.
        text = json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n"
        try:
            _write_all(self._descriptor, text.encode("ascii"))
        except OSError:
            # Half a line would spoil the next one.
            os.ftruncate(self._descriptor, length)
            raise
        self._keys.add(key)
        self._rows.append(plain)
        return True

    def close(self) -> None:
        """Put everything on the disk and close; further calls do nothing."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            finally:
                self._drop()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
        episode_key(row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _distinct(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    first: dict[EpisodeKey, Row] = {}
    for row in rows:
        first.setdefault(episode_key(row), dict(row))
    return list(first.values())


def _lock(descriptor: int) -> None:
    """Lock the file until the descriptor is closed, where the system has such locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        _logger.debug("files of this system cannot be locked", exc_info=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
