"""Observations of replayed steps, for models that look back.

Such a model must see every step of an episode once and in order, so the steps on which a lane
replayed its chunk are handed over with its next request.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.policy.planning.chunks import Leaves


class ObservationHistory:
    """The last steps' observations of all lanes, and up to where each lane's were handed over.

    Steps are the policy's own count of its calls. It goes on over episodes, as the protocol asks.
    """

    def __init__(self, num_lanes: int) -> None:
        self._steps: deque[tuple[int, list[NDArray[Any]]]] = deque()
        self._delivered = np.full(num_lanes, -1, np.int64)
        self._begun = np.full(num_lanes, -1, np.int64)

    def begin(self, lanes: NDArray[np.intp], step: int) -> None:
        """Start lanes' episodes at ``step``: nothing before it is theirs."""
        self._delivered[lanes] = step - 1
        self._begun[lanes] = step

    def record(self, step: int, leaves: Leaves) -> None:
        """Keep a copy of all lanes' observations; the same step again replaces them."""
        if self._steps and self._steps[-1][0] == step:
            self._steps.pop()
        self._steps.append((step, [leaf.copy() for leaf in leaves]))

    def rows(
        self, lanes: NDArray[np.intp], step: int
    ) -> list[tuple[int, NDArray[np.intp], list[NDArray[Any]]]]:
        """Give ``(step, lanes, observations)`` that lanes owe before their request's ``step``.

        Steps ascend, lanes are in the order of ``lanes``, the observations have a row for each.
        """
        delivered = self._delivered[lanes]
        found = []
        for at, leaves in self._steps:
            owing = lanes[delivered < at]
            if at < step and len(owing):
                found.append((at, owing, [leaf[owing] for leaf in leaves]))
        return found

    def deliver(self, lanes: NDArray[np.intp], step: int) -> NDArray[np.int64]:
        """Count lanes as handed over up to ``step``; return a row per lane for :meth:`restore`."""
        before = np.stack([self._delivered[lanes], self._begun[lanes]], axis=1)
        self._delivered[lanes] = step
        return before

    def restore(self, lanes: NDArray[np.intp], before: NDArray[np.int64]) -> None:
        """Take back a :meth:`deliver` whose request failed, but for episodes that are over."""
        delivered, begun = before.T
        same = self._begun[lanes] == begun
        self._delivered[lanes[same]] = delivered[same]

    def prune(self, active: NDArray[np.bool_]) -> None:
        """Drop the steps that no active lane owes any more."""
        if not active.any():
            self._steps.clear()
            return
        owed = self._delivered[active].min() + 1
        while self._steps and self._steps[0][0] < owed:
            self._steps.popleft()
