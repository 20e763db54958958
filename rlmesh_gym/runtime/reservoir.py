"""Random samples of bounded size, and the percentiles that telemetry takes from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.runtime.report.metrics import TelemetryRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.runtime.report.metrics import Metric

__all__ = ["Reservoir", "nearest_rank"]


def nearest_rank(ordered: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank percentile: the smallest sample with that part at or below it.

    Args:
        ordered: Ascending samples, not empty.
        fraction: In ``(0, 1]``.
    """
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


class Reservoir:
    """A uniform random sample of bounded size, with exact count and sum.

    Args:
        capacity: Samples kept at most.
        rng: Source of the random choices.
    """

    __slots__ = ("_capacity", "_rng", "_samples", "count", "total")

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self._capacity = capacity
        self._rng = rng
        self._samples = np.empty(0)
        self.count: int = 0
        self.total: float = 0.0

    @property
    def samples(self) -> NDArray[np.float64]:
        """The samples kept, in no particular order; not to be changed."""
        return self._samples

    def extend(self, values: NDArray[np.float64]) -> None:
        """Take samples in; every sample so far is kept with equal chance."""
        self.total += float(values.sum())
        room = self._capacity - len(self._samples)
        if room > 0:
            self._samples = np.concatenate([self._samples, values[:room]])
            self.count += len(values[:room])
            values = values[room:]
        if not len(values):
            return
        # Sample number n replaces a random one of the kept with a chance of capacity / n.
        numbers = np.arange(self.count + 1, self.count + len(values) + 1)
        self.count += len(values)
        places = (self._rng.random(len(values)) * numbers).astype(np.intp)
        chosen = places < self._capacity
        self._samples[places[chosen]] = values[chosen]

    def row(self, operation: str, metric: Metric) -> TelemetryRow:
        """Summarise the samples, which must not be empty."""
        ordered = np.sort(self._samples).tolist()
        return TelemetryRow(
            operation=operation,
            metric=metric.name,
            unit=metric.unit,
            count=self.count,
            avg=self.total / self.count,
            p50=nearest_rank(ordered, 0.50),
            p95=nearest_rank(ordered, 0.95),
            p99=nearest_rank(ordered, 0.99),
            total=self.total,
        )
