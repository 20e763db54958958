"""Lane state: what each sub-environment is doing, which episode it is in, and what it has done.

It knows numpy and nothing of wires or autoreset modes. Whoever steps the lanes tells the table what
happened; everybody else reads it instead of guessing episode boundaries from observations.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import uuid6

from rlmesh_gym.episodes import EpisodeRecord, success_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_ONE = np.ones((), np.int64)


class LanePhase(Enum):
    """What a lane is doing."""

    RUNNING = "running"
    """An episode is going on."""

    ENDED = "ended"
    """No episode: before the first reset, or after an episode's last step."""


def any_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Return ``mask.any()``, for the few lanes of a vector in a tenth of the time."""
    return b"\1" in mask.tobytes()


def all_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Return ``mask.all()``, likewise."""
    return b"\0" not in mask.tobytes()


def mint_episode_id() -> str:
    """Return a new episode id, a UUIDv7: unique, and sorting in the order of creation."""
    return str(uuid6.uuid7())


class LaneTable:
    """One row per lane: phase, episode, seed, and running sums.

    The arrays are written in place and never replaced, so views of them stay valid.

    Attributes:
        ended: bool ``(n,)``; True from an episode's last step to the next one's first observation.
        episode_ids: Episode of each lane's last observation; ``""`` before the first reset.
        seeds: Seed that began each lane's episode; None if it began without one.
        lengths: int64 ``(n,)``; steps of the current episode.
        returns: float64 ``(n,)``; sum of its rewards.
        begun_ns: int64 ``(n,)``; ``time.monotonic_ns()`` of its first observation.
        num_changes: How many lanes have begun an episode or ended one so far.
        is_cut: bool ``(n,)``; it was written up as over while its env goes on with it.
    """

    def __init__(self, num_envs: int) -> None:
        self.ended: npt.NDArray[np.bool_] = np.ones(num_envs, dtype=np.bool_)
        self.episode_ids: list[str] = [""] * num_envs
        self.seeds: list[int | None] = [None] * num_envs
        self.lengths: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.returns: npt.NDArray[np.float64] = np.zeros(num_envs, dtype=np.float64)
        self.begun_ns: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.is_cut: npt.NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self.num_changes: int = 0

    @property
    def phases(self) -> tuple[LanePhase, ...]:
        """Phase of each lane."""
        phases = LanePhase.RUNNING, LanePhase.ENDED
        return tuple(phases[ended] for ended in self.ended.tolist())

    def begin(
        self,
        lanes: Iterable[int],
        seeds: Sequence[int | None] | None = None,
        episode_ids: Sequence[str] | None = None,
    ) -> None:
        """Begin a new episode on each of the lanes; ids are minted unless that is done already."""
        now = time.monotonic_ns()
        for position, lane in enumerate(lanes):
            self.ended[lane] = False
            self.episode_ids[lane] = (
                mint_episode_id() if episode_ids is None else episode_ids[position]
            )
            self.seeds[lane] = None if seeds is None else seeds[position]
            self.lengths[lane] = 0
            self.returns[lane] = 0.0
            self.begun_ns[lane] = now
            self.is_cut[lane] = False
            self.num_changes += 1

    def count(self, lanes: Sequence[int] | slice, rewards: npt.NDArray[np.float64]) -> None:
        """Count one step of some lanes, whose rewards are given in that order."""
        if isinstance(lanes, slice):
            # In place: ``self.lengths[lanes] += 1`` would write the view back once more.
            lengths, returns = self.lengths[lanes], self.returns[lanes]
            lengths += _ONE
            returns += rewards
        else:
            self.lengths[lanes] += 1
            self.returns[lanes] += rewards

    def end(self, lanes: Iterable[int]) -> None:
        """Mark lanes as ENDED, by their last step or since their endpoint or env was lost."""
        for lane in lanes:
            self.ended[lane] = True
            self.num_changes += 1

    def record(
        self,
        lane: int,
        *,
        endpoint: str,
        env_id: str = "",
        terminated: bool = False,
        truncated: bool = False,
        interrupted: bool = False,
        final_info: dict[str, Any] | None = None,
    ) -> EpisodeRecord:
        """Write up the lane's current episode; call it before ``begin`` starts the next one.

        The keywords are the record's own, which owns ``final_info`` from now on. Nothing in the
        table changes.
        """
        info = {} if final_info is None else final_info
        duration = (time.monotonic_ns() - int(self.begun_ns[lane])) / 1e9
        return EpisodeRecord(
            episode_id=self.episode_ids[lane],
            lane=lane,
            endpoint=endpoint,
            env_id=env_id,
            seed=self.seeds[lane],
            length=int(self.lengths[lane]),
            episode_return=float(self.returns[lane]),
            terminated=terminated,
            truncated=truncated,
            interrupted=interrupted,
            success=None if interrupted else success_of(info),
            started_at=time.time() - duration,
            duration=duration,
            final_info=info,
        )
