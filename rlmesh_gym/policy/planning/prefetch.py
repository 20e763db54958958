"""Plans asked for ahead of time, and which of their rows are still wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from rlmesh_gym.policy.planning.plan import Plan

__all__ = ["PrefetchedPlans"]


class PrefetchedPlans:
    """Plans in flight or arrived, whose lanes still replay what they had.

    A lane is in at most one of them. A row whose episode has ended is never taken.

    Args:
        num_lanes: Number of lanes.
    """

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._plans: list[tuple[Plan, NDArray[np.bool_]]] = []

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan) -> None:
        """Keep a plan until all its rows are taken or have become useless."""
        self._plans.append((plan, np.ones(len(plan.lanes), np.bool_)))

    def drop_lanes(self, lanes: NDArray[np.bool_]) -> int:
        """Give up the rows of lanes, since they would act on what is no longer so.

        Args:
            lanes: Mask over all lanes.

        Returns:
            How many rows were given up.
        """
        dropped = 0
        for plan, is_open in self._plans:
            useless = is_open & lanes[plan.lanes]
            dropped += int(useless.sum())
            plan.give_up(rows=useless)
            is_open &= ~useless  # noqa: PLW2901 - changed in place
        self._plans = [entry for entry in self._plans if entry[1].any()]
        return dropped

    def lanes(self) -> NDArray[np.bool_]:
        """Mask of the lanes that a row is kept for, ``(num_lanes,)``."""
        mask = np.zeros(self._num_lanes, np.bool_)
        for plan, is_open in self._plans:
            mask[plan.lanes[is_open]] = True
        return mask

    def take(
        self, due: NDArray[np.bool_], *, arrived: bool
    ) -> Generator[tuple[Plan, NDArray[np.intp]], None, None]:
        """Hand out the rows of lanes that are due.

        A plan that fails when it is read is dropped with all its rows.

        Args:
            due: Mask of the lanes that cannot act otherwise.
            arrived: Hand out all rows of plans that are answered too.

        Yields:
            A plan, and the positions of its rows. Reading its chunk may have to wait.
        """
        for entry in list(self._plans):
            plan, is_open = entry
            wanted = is_open if arrived and plan.done() else is_open & due[plan.lanes]
            rows = np.flatnonzero(wanted)
            if not len(rows):
                continue
            self._plans.remove(entry)
            yield plan, rows
            is_open[rows] = False
            if is_open.any() and plan.num_frames:  # It was read, so there is more to take.
                self._plans.append(entry)
