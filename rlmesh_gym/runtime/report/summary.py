"""Statistics over the episodes of a run, for the terminal's table and for the page.

Pure numbers: it knows the episode summaries, and neither HTML nor text layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.runtime.report.runtime_report import EpisodeSummary

__all__ = ["Distribution", "EpisodeStatistics", "moving_mean", "outcome", "wilson_interval"]

_Z95 = 1.959964  # Two-sided 95 % point of the normal distribution.


@dataclass(frozen=True)
class Distribution:
    """Location and spread of finite values; all NaN when there are none.

    Attributes:
        values: The finite values, float64, in the order given.
        left_out: How many were NaN or infinite.
        ci95: Half width of the 95 % interval of the mean (normal approximation), NaN below two.
    """

    values: NDArray[np.float64]
    left_out: int
    mean: float
    std: float
    ci95: float
    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Describe ``values``; the standard deviation is the sample's (n - 1)."""
        every = np.asarray(values, dtype=np.float64).reshape(-1)
        finite = every[np.isfinite(every)]
        left_out = int(every.size - finite.size)
        nan = math.nan
        if finite.size == 0:
            return cls(finite, left_out, nan, nan, nan, nan, nan, nan)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(finite.mean())
            std = float(finite.std(ddof=1)) if finite.size > 1 else nan
            median = float(np.median(finite))
        return cls(
            values=finite,
            left_out=left_out,
            mean=mean,
            std=std,
            ci95=_Z95 * std / math.sqrt(finite.size),
            minimum=float(finite.min()),
            median=median,
            maximum=float(finite.max()),
        )


@dataclass(frozen=True)
class EpisodeStatistics:
    """What a run's episodes say together. Interrupted episodes are counted and left out.

    Attributes:
        completed: Episodes that ended by themselves or by an episode limit.
        interrupted: Episodes that the end of the run cut off.
        terminated: Completed episodes whose last step said terminated.
        returns: Of the completed episodes; likewise ``lengths``.
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
    def of(cls, episodes: Sequence[EpisodeSummary]) -> EpisodeStatistics:
        """Summarise ``episodes``."""
        done = [episode for episode in episodes if not episode.interrupted]
        judged = [episode for episode in done if episode.success is not None]
        return cls(
            completed=len(done),
            interrupted=len(episodes) - len(done),
            terminated=sum(episode.terminated for episode in done),
            returns=Distribution.of([episode.episode_return for episode in done]),
            lengths=Distribution.of([episode.length for episode in done]),
            judged=len(judged),
            successes=sum(bool(episode.success) for episode in judged),
        )

    @property
    def success_rate(self) -> float | None:
        """Share of the judged episodes that succeeded, None when none was judged."""
        return self.successes / self.judged if self.judged else None


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


def moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last ``window`` values at each place, of fewer at the beginning.

    Returns:
        A fresh float64 array of the same length.
    """
    if values.size == 0:
        return values.copy()
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    begins = np.maximum(0, ends - max(1, window))
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def outcome(episode: EpisodeSummary) -> str:
    """One word: how the episode ended."""
    if episode.interrupted:
        return "interrupted"
    if episode.terminated:
        return "terminated"
    return "truncated" if episode.truncated else "running"
