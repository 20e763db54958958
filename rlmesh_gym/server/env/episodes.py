"""What a session knows about the episodes of its lanes: ids, counts, returns, beginnings and ends.

The client mints the ids and sends them down; this book only attaches them to what the environment
does. It never touches an environment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.codec import encode_meta_map
from rlmesh_gym.lanes import all_true, any_true

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


INTERRUPTED_KEPT = 100
"""Interrupted episodes that wait for the next step's report; older ones are dropped."""


class EpisodeBook:
    """Episodes of one session.

    A lane is *tracked* from the reset that begins an episode to the step that ends it; under
    NEXT_STEP it then awaits the step that rolls it over, under SAME_STEP the next episode begins on
    the spot and its id follows with the next step. Lanes that this session never reset are not
    tracked and make no records. Safe to use from several threads.
    """

    def __init__(
        self, num_envs: int, autoreset_mode: AutoresetMode, *, typed: bool = False
    ) -> None:
        self.num_envs = num_envs
        self._typed = typed
        self.autoreset_mode = autoreset_mode
        self._lock = threading.Lock()
        self._tracked = np.zeros(num_envs, dtype=np.bool_)
        self._awaits_roll = np.zeros(num_envs, dtype=np.bool_)
        self._awaits_id = np.zeros(num_envs, dtype=np.bool_)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._begun_ns = [0] * num_envs
        self._ids = [""] * num_envs
        self._seeds: list[int | None] = [None] * num_envs
        self._backlog: deque[interaction_pb2.EpisodeMetadata] = deque(maxlen=INTERRUPTED_KEPT)

    def awaits_reset(self) -> list[int]:
        """Lanes with neither a running episode nor a roll to come."""
        known = self._tracked | self._awaits_roll
        return [] if all_true(known) else np.flatnonzero(~known).tolist()

    def awaits_roll(self) -> NDArray[np.bool_] | None:
        """Which lanes the next step resets, a copy of shape ``(num_envs,)``; None for none."""
        return self._awaits_roll.copy() if any_true(self._awaits_roll) else None

    def begin(
        self,
        lanes: Sequence[int] | None,
        episode_ids: Sequence[str],
        seeds: Sequence[int | None],
    ) -> None:
        """Begin episodes after a reset of ``lanes`` (None for all), which ids and seeds follow.

        Missing ids are empty. Episodes still running are kept for the next step's report.
        """
        now = time.time_ns()
        with self._lock:
            for row, lane in enumerate(range(self.num_envs) if lanes is None else lanes):
                if self._is_running(lane):
                    self._backlog.append(self._record(lane, now))
                seed = seeds[row] if row < len(seeds) else None
                self._start(lane, _id_of(episode_ids, row), seed, now)

    def advance(
        self,
        lanes: Sequence[int] | None,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        *,
        episode_ids: Sequence[str],
        final_info: Callable[[int], Mapping[str, Any] | None],
    ) -> list[interaction_pb2.EpisodeMetadata]:
        """Count one step of ``lanes`` (None for all); return records of the episodes that ended.

        The arrays have a row per lane stepped, the request's ``episode_ids`` one for each lane of
        the whole vector; ``final_info`` gives the last info of the episode in a row of the arrays.
        """
        with self._lock:
            if any_true(self._awaits_id):
                for lane in np.flatnonzero(self._awaits_id).tolist():
                    self._ids[lane] = _id_of(episode_ids, lane)
                self._awaits_id[:] = False
            rows: NDArray[np.int64] | None = None
            if lanes is None:
                counted = self._tracked.copy()
                self._lengths += counted
                # Not a product: an infinite reward of a lane that does not count would be nan.
                np.add(self._returns, rewards, out=self._returns, where=counted)
                if any_true(self._awaits_roll):
                    now = time.time_ns()
                    for lane in np.flatnonzero(self._awaits_roll).tolist():
                        self._start(lane, _id_of(episode_ids, lane), None, now)
                ended = counted & (terminated | truncated)
            else:
                rows = np.asarray(lanes, dtype=np.int64)
                counted = self._tracked[rows]
                self._lengths[rows] += counted
                self._returns[rows[counted]] += rewards[counted]
                ended = counted & (terminated | truncated)
            if not any_true(ended):
                return []
            now = time.time_ns()
            records = []
            for row in np.flatnonzero(ended).tolist():
                lane = row if rows is None else int(rows[row])
                flags = {"terminated": bool(terminated[row]), "truncated": bool(truncated[row])}
                record = self._record(lane, now, **flags)
                info = final_info(row)
                if info is not None:
                    record.final_info.CopyFrom(encode_meta_map(info, typed=self._typed))
                records.append(record)
                self._tracked[lane] = False
                if self.autoreset_mode is AutoresetMode.NEXT_STEP:
                    self._awaits_roll[lane] = True
                elif self.autoreset_mode is AutoresetMode.SAME_STEP:
                    self._start(lane, "", None, now)
                    self._awaits_id[lane] = True
            return records

    def keep(self, records: Sequence[interaction_pb2.EpisodeMetadata]) -> None:
        """Keep records whose own step could not report them, for the next step's report."""
        with self._lock:
            self._backlog.extend(records)

    def take_backlog(self) -> list[interaction_pb2.EpisodeMetadata]:
        """Return, and forget, the records that wait for a step's report."""
        if not self._backlog:
            return []
        with self._lock:
            records = list(self._backlog)
            self._backlog.clear()
        return records

    def interrupt(self, lanes: Sequence[int] | None) -> list[interaction_pb2.EpisodeMetadata]:
        """End the running episodes of ``lanes`` (None for all); they need a reset to go on."""
        now = time.time_ns()
        with self._lock:
            records = []
            for lane in range(self.num_envs) if lanes is None else lanes:
                if self._is_running(lane):
                    records.append(self._record(lane, now))
                self._tracked[lane] = self._awaits_roll[lane] = self._awaits_id[lane] = False
        return records

    def _start(self, lane: int, episode_id: str, seed: int | None, now: int) -> None:
        self._tracked[lane] = True
        self._awaits_roll[lane] = self._awaits_id[lane] = False
        self._lengths[lane] = 0
        self._returns[lane] = 0.0
        self._begun_ns[lane] = now
        self._ids[lane] = episode_id
        self._seeds[lane] = seed

    def _is_running(self, lane: int) -> bool:
        return bool(self._tracked[lane] and not self._awaits_id[lane])

    def _record(
        self, lane: int, now: int, *, terminated: bool = False, truncated: bool = True
    ) -> interaction_pb2.EpisodeMetadata:
        """Return the record of an episode; without flags of one that is interrupted."""
        return interaction_pb2.EpisodeMetadata(
            episode_id=self._ids[lane],
            seed=self._seeds[lane],
            env_index=lane,
            step_count=int(self._lengths[lane]),
            cumulative_reward=float(self._returns[lane]),
            terminated=terminated,
            truncated=truncated,
            start_timestamp_ns=self._begun_ns[lane],
            end_timestamp_ns=now,
        )


def _id_of(episode_ids: Sequence[str], index: int) -> str:
    return episode_ids[index] if index < len(episode_ids) else ""
