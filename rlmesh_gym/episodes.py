"""Episodes that are over: records, the log of a vector env, whether they succeeded, statistics.

It knows numbers and nothing of lanes, wires or files. What ``envs.episodes`` and the report of a
run say of their episodes comes from here, so that the two agree.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rlmesh_gym.plain_data import PlainData

SUCCESS_KEYS = ("is_success", "success", "task_success")
"""Read in this order, first in the info itself, then inside its ``episode``."""

_Z95 = 1.959964  # Two-sided 95 % point of the normal distribution.


@dataclass(frozen=True)
class EpisodeRecord(PlainData):
    """One episode that is over.

    Attributes:
        episode_id: UUIDv7 that the client minted.
        lane: Lane of the vector that the user sees, counted over all endpoints.
        endpoint: Address that served the lane, ``"local"`` for an env in this process.
        env_id: Id of the environment, from its contract.
        seed: Seed given to the reset that began the episode; None if it began without one.
        length: Number of steps.
        episode_return: Sum of rewards, undiscounted.
        terminated: The last step said so.
        truncated: The last step said so, or a limit cut the episode off.
        interrupted: It did not end by itself: a reset or the end of the run came first, or its
            endpoint was lost. The numbers are what was reached.
        success: Whether the final info says that it succeeded; None if that says nothing.
        started_at: Time of the first observation, in seconds since the Unix epoch.
        duration: Wall-clock seconds from the first observation to the last.
        env_time: Seconds that a run waited for the env during this episode; 0 outside of runs.
        policy_time: Seconds that a run waited for the policy, likewise.
        index: Place in a run's plan: episode number ``index // num_envs`` of lane ``lane``; 0
            outside of runs.
        final_info: Info of the last step of this lane alone; empty when interrupted.
    """

    _READERS = dict.fromkeys(
        ("episode_return", "started_at", "duration", "env_time", "policy_time"), float
    )

    episode_id: str
    lane: int
    endpoint: str
    env_id: str
    seed: int | None
    length: int
    episode_return: float
    terminated: bool
    truncated: bool
    interrupted: bool = False
    success: bool | None = None
    started_at: float = 0.0
    duration: float = 0.0
    env_time: float = 0.0
    policy_time: float = 0.0
    index: int = 0
    final_info: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> Literal["interrupted", "terminated", "truncated"]:
        """How the episode ended, in one word."""
        if self.interrupted:
            return "interrupted"
        return "terminated" if self.terminated else "truncated"


EpisodeSummary = EpisodeRecord
"""The name of :class:`EpisodeRecord` in the reports of earlier versions."""


class EpisodeLog(Sequence[EpisodeRecord]):
    """The newest episodes, oldest first, up to a limit; the counts go on for ever.

    Args:
        maxlen: How many records to keep. None keeps all.

    Attributes:
        total: Episodes recorded so far, interrupted ones included, forgotten ones too.
        total_interrupted: How many of them were interrupted.
        watch: Called with every record that is added.
    """

    def __init__(self, maxlen: int | None = 1000) -> None:
        self._records: deque[EpisodeRecord] = deque(maxlen=maxlen)
        self.total: int = 0
        self.total_interrupted: int = 0
        self.watch: Callable[[EpisodeRecord], None] | None = None

    @property
    def maxlen(self) -> int | None:
        """How many records are kept."""
        return self._records.maxlen

    def append(self, record: EpisodeRecord) -> None:
        """Add one record; the oldest one goes when the log is full."""
        self._records.append(record)
        self.total += 1
        self.total_interrupted += record.interrupted
        if self.watch is not None:
            self.watch(record)

    @property
    def completed(self) -> list[EpisodeRecord]:
        """The kept records of episodes that ended by themselves."""
        return [record for record in self._records if not record.interrupted]

    @property
    def interrupted(self) -> list[EpisodeRecord]:
        """The kept records of episodes that were cut off."""
        return [record for record in self._records if record.interrupted]

    @property
    def statistics(self) -> EpisodeStatistics:
        """Returns, lengths and successes of the kept episodes, as a report gives them."""
        return EpisodeStatistics.of(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the kept records as dicts of their fields, ready for ``pandas.DataFrame``.

        Values are as the environment gave them; each ``final_info`` is a shallow copy.
        """
        return [{**vars(one), "final_info": dict(one.final_info)} for one in self._records]

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


@dataclass(frozen=True)
class Distribution:
    """Location and spread of finite values; all NaN when there are none.

    Attributes:
        values: The finite values, float64, in the order given.
        left_out: How many were NaN or infinite.
        mean: Their mean.
        std: Standard deviation of the sample (n - 1), NaN below two values.
        ci95: Half width of the 95 % interval of the mean (normal approximation), NaN below two.
        minimum: The least value.
        median: The middle value.
        maximum: The greatest value.
    """

    values: npt.NDArray[np.float64] = field(compare=False, repr=False)
    left_out: int
    mean: float = math.nan
    std: float = math.nan
    ci95: float = math.nan
    minimum: float = math.nan
    median: float = math.nan
    maximum: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Describe ``values``."""
        every = np.asarray(values, dtype=np.float64).reshape(-1)
        finite = every[np.isfinite(every)]
        left_out = int(every.size - finite.size)
        if finite.size == 0:
            return cls(finite, left_out)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(finite.mean())
            std = float(finite.std(ddof=1)) if finite.size > 1 else math.nan
            median = float(np.median(finite))
        half = _Z95 * std / math.sqrt(finite.size)
        least, greatest = float(finite.min()), float(finite.max())
        return cls(finite, left_out, mean, std, half, least, median, greatest)


@dataclass(frozen=True)
class EpisodeStatistics:
    """What episodes say together. Interrupted ones are counted and left out.

    Attributes:
        completed: Episodes that ended by themselves or by an episode limit.
        interrupted: Episodes that something else cut off.
        terminated: Completed episodes whose last step said terminated.
        returns: Of the completed episodes; likewise ``lengths``.
        lengths: Their numbers of steps.
        judged: Completed episodes whose env said whether they succeeded.
        successes: How many of those did.
    """

    completed: int
    interrupted: int
    terminated: int
    returns: Distribution
    lengths: Distribution
    judged: int
    successes: int

    @classmethod
    def of(cls, episodes: Iterable[EpisodeRecord]) -> EpisodeStatistics:
        """Summarise ``episodes``."""
        every = list(episodes)
        done = [episode for episode in every if not episode.interrupted]
        judged = [episode.success for episode in done if episode.success is not None]
        return cls(
            completed=len(done),
            interrupted=len(every) - len(done),
            terminated=sum(episode.terminated for episode in done),
            returns=Distribution.of([episode.episode_return for episode in done]),
            lengths=Distribution.of([episode.length for episode in done]),
            judged=len(judged),
            successes=sum(judged),
        )

    @property
    def success_rate(self) -> float | None:
        """Share of the judged episodes that succeeded, None when none was judged."""
        return self.successes / self.judged if self.judged else None

    @property
    def success_interval(self) -> tuple[float, float]:
        """95 % interval of the success rate (Wilson), ``(0, 1)`` when none was judged."""
        return wilson_interval(self.successes, self.judged)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion; it stays inside [0, 1] and holds for few trials too."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    square = _Z95**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials**2)
    half = _Z95 / (1 + square / trials) * math.sqrt(spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Read whether an episode succeeded from the info of its last step, of one lane.

    A flag is a bool, a number, or an array, tensor, list or tuple with exactly one of these in it.
    None where the info holds none that is one truth value.
    """
    for place in (info, info.get("episode")):
        if isinstance(place, Mapping):
            for key in SUCCESS_KEYS:
                flag = _truth(place.get(key))
                if flag is not None:
                    return flag
    return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, (list, tuple)):
        return _truth(value[0]) if len(value) == 1 else None
    item = getattr(value, "item", None)
    if callable(item):  # Arrays, numpy scalars and tensors, on whatever device.
        try:
            value = item()
        except (TypeError, ValueError, RuntimeError):
            return None  # Several values, or none.
    elif callable(getattr(value, "__array__", None)):
        return _truth(value.__array__())
    if isinstance(value, (list, tuple)):  # In an array of objects.
        return _truth(value)
    if not isinstance(value, (bool, int, float)) or math.isnan(value):
        return None
    return bool(value)
