"""Lane state: what each sub-environment is doing, which episode it is in, and what it has done.

It knows numpy and nothing of wires or autoreset modes. Whoever steps the lanes tells the table what
happened; everybody else reads it instead of guessing episode boundaries from observations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import uuid6

from rlmesh_gym.success import success_of

__all__ = [
    "EpisodeLog",
    "EpisodeRecord",
    "LanePhase",
    "LaneTable",
    "any_true",
    "mint_episode_id",
]


class LanePhase(Enum):
    """What a lane is doing."""

    RUNNING = "running"
    """An episode is going on."""

    ENDED = "ended"
    """No episode: before the first reset, or after an episode's last step."""


def any_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Return ``mask.any()``, for the few lanes of a vector in a tenth of the time."""
    return b"\1" in mask.tobytes()


def mint_episode_id() -> str:
    """Return a new episode id, a UUIDv7: unique, and sorting in the order of creation."""
    return str(uuid6.uuid7())


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode that is over.

    Attributes:
        episode_id: UUIDv7 that the client minted.
        lane: Lane of the vector that the user sees.
        endpoint: Address that served the lane.
        seed: Seed given to the reset that began the episode; None if it began without one.
        length: Number of steps.
        episode_return: Sum of rewards, undiscounted.
        terminated: The last step said so.
        truncated: The last step said so, or the client cut the episode off at its limit.
        interrupted: It did not end by itself: a reset came first, or its endpoint was lost.
        duration: Wall-clock seconds from the first observation to the last.
        success: What the final info says of it; None where it says nothing.
        final_info: Info of the last step of this lane alone; empty when interrupted.
    """

    episode_id: str
    lane: int
    endpoint: str
    seed: int | None
    length: int
    episode_return: float
    terminated: bool
    truncated: bool
    interrupted: bool
    duration: float
    success: bool | None
    final_info: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, a row for a data frame; ``final_info`` is a shallow copy."""
        row = dict(self.__dict__)
        row["final_info"] = dict(self.final_info)
        return row


class EpisodeLog(Sequence[EpisodeRecord]):
    """The newest episodes, oldest first, up to a limit; the counts go on for ever.

    Args:
        maxlen: How many records to keep. None keeps all.

    Attributes:
        total: Episodes recorded so far, interrupted ones included, forgotten ones too.
        total_interrupted: How many of them were interrupted.
    """

    def __init__(self, maxlen: int | None = 1000) -> None:
        self._records: deque[EpisodeRecord] = deque(maxlen=maxlen)
        self.total = 0
        self.total_interrupted = 0

    @property
    def maxlen(self) -> int | None:
        """How many records are kept."""
        return self._records.maxlen

    def append(self, record: EpisodeRecord) -> None:
        """Add one record; the oldest one goes when the log is full."""
        self._records.append(record)
        self.total += 1
        self.total_interrupted += record.interrupted

    @property
    def completed(self) -> list[EpisodeRecord]:
        """The kept records of episodes that ended by themselves."""
        return [record for record in self._records if not record.interrupted]

    @property
    def interrupted(self) -> list[EpisodeRecord]:
        """The kept records of episodes that were cut off."""
        return [record for record in self._records if record.interrupted]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the kept records as dicts, ready for ``pandas.DataFrame``."""
        return [record.to_dict() for record in self._records]

    @overload
    def __getitem__(self, index: int) -> EpisodeRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpisodeRecord]: ...
    def __getitem__(self, index: int | slice) -> EpisodeRecord | list[EpisodeRecord]:
        if isinstance(index, slice):
            return list(self._records)[index]
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        counts = f"total={self.total}, interrupted={self.total_interrupted}"
        return f"EpisodeLog(kept={len(self)}, {counts})"


class LaneTable:
    """One row per lane: phase, episode, seed, and running sums.

    The arrays are written in place and never replaced, so views of them stay valid.

    Args:
        num_envs: Number of lanes.

    Attributes:
        ended: bool ``(n,)``; True from an episode's last step to the next one's first observation.
        episode_ids: Episode of each lane's last observation; ``""`` before the first reset.
        seeds: Seed that began each lane's episode; None if it began without one.
        lengths: int64 ``(n,)``; steps of the current episode.
        returns: float64 ``(n,)``; sum of its rewards.
        begun_ns: int64 ``(n,)``; ``time.monotonic_ns()`` of its first observation.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.ended: npt.NDArray[np.bool_] = np.ones(num_envs, dtype=np.bool_)
        self.episode_ids: list[str] = [""] * num_envs
        self.seeds: list[int | None] = [None] * num_envs
        self.lengths: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.returns: npt.NDArray[np.float64] = np.zeros(num_envs, dtype=np.float64)
        self.begun_ns: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    @property
    def phases(self) -> tuple[LanePhase, ...]:
        """Phase of each lane."""
        return tuple(
            LanePhase.ENDED if ended else LanePhase.RUNNING for ended in self.ended.tolist()
        )

    def begin(
        self,
        lanes: Iterable[int],
        seeds: Sequence[int | None] | None = None,
        episode_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Begin a new episode on each of the lanes.

        Args:
            lanes: Which lanes.
            seeds: Seed of each of them, in the same order; none were given if omitted.
            episode_ids: Their ids if already minted (and sent down); minted here if omitted.

        Returns:
            The new ids, in the order of ``lanes``.
        """
        now = time.monotonic_ns()
        begun: list[str] = []
        for position, lane in enumerate(lanes):
            episode_id = mint_episode_id() if episode_ids is None else episode_ids[position]
            self.ended[lane] = False
            self.episode_ids[lane] = episode_id
            self.seeds[lane] = None if seeds is None else seeds[position]
            self.lengths[lane] = 0
            self.returns[lane] = 0.0
            self.begun_ns[lane] = now
            begun.append(episode_id)
        return begun

    def count(
        self,
        lanes: npt.NDArray[Any] | Sequence[int] | slice,
        rewards: npt.NDArray[np.float64],
    ) -> None:
        """Count one step in which no episode ended; see ``advance``."""
        self.lengths[lanes] += 1
        self.returns[lanes] += rewards

    def advance(
        self,
        lanes: npt.NDArray[Any] | Sequence[int] | slice | None,
        rewards: npt.NDArray[np.float64],
        terminations: npt.NDArray[np.bool_],
        truncations: npt.NDArray[np.bool_],
    ) -> list[int]:
        """Count one step of some lanes.

        Args:
            lanes: Mask, indices or slice of the lanes that were really stepped; None for all.
            rewards: Their rewards, one per stepped lane in that order.
            terminations: Their flags, likewise.
            truncations: Their flags, likewise.

        Returns:
            The lanes whose episode ended with this step, ascending. They are ENDED from now on.
        """
        done = terminations | truncations
        if lanes is None:
            self.lengths += 1
            self.returns += rewards
            if not any_true(done):
                return []
            self.ended |= done
            return np.flatnonzero(done).tolist()  # type: ignore[no-any-return,unused-ignore]
        self.lengths[lanes] += 1
        self.returns[lanes] += rewards
        if not any_true(done):
            return []
        ended = np.arange(self.num_envs)[lanes][done]
        self.ended[ended] = True
        return sorted(ended.tolist())

    def end(self, lanes: Iterable[int]) -> None:
        """Mark lanes as ENDED without a step, since their endpoint or their env was lost."""
        for lane in lanes:
            self.ended[lane] = True

    def record(
        self,
        lane: int,
        *,
        endpoint: str,
        terminated: bool = False,
        truncated: bool = False,
        interrupted: bool = False,
        final_info: dict[str, Any] | None = None,
    ) -> EpisodeRecord:
        """Write up the lane's current episode; call it before ``begin`` starts the next one.

        Args:
            lane: Which lane.
            endpoint: Address that served it.
            terminated: Flag of its last step.
            truncated: Flag of its last step.
            interrupted: It did not end by itself.
            final_info: Info of its last step, owned by the record from now on.

        Returns:
            The record; nothing in the table changes.
        """
        info = {} if final_info is None else final_info
        return EpisodeRecord(
            episode_id=self.episode_ids[lane],
            lane=lane,
            endpoint=endpoint,
            seed=self.seeds[lane],
            length=int(self.lengths[lane]),
            episode_return=float(self.returns[lane]),
            terminated=terminated,
            truncated=truncated,
            interrupted=interrupted,
            duration=(time.monotonic_ns() - int(self.begun_ns[lane])) / 1e9,
            success=None if interrupted else success_of(info),
            final_info=info,
        )
