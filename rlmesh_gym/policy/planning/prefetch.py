"""Plans asked for ahead of time: when, and which of their rows are still wanted."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from rlmesh_gym.policy.planning.plan import Plan


class DelayEstimate:
    """How many env steps a model's answer takes, judged by the last few of both.

    The first answer is left out, since a model often compiles or loads on its first call. The
    latency taken is the window's upper quartile, so that most answers are in time; the step time is
    its median, so that a pause in the user's loop does not count.
    """

    def __init__(self, window: int = 16) -> None:
        self._answers: deque[int] = deque(maxlen=window)
        self._steps: deque[int] = deque(maxlen=window)
        self._is_warm = False

    def note_answer(self, elapsed_ns: int) -> None:
        """Count the nanoseconds from a request to its answer."""
        if self._is_warm:
            self._answers.append(elapsed_ns)
        self._is_warm = True

    def note_step(self, elapsed_ns: int) -> None:
        """Count the nanoseconds from giving out actions to the next observations."""
        self._steps.append(elapsed_ns)

    def frames(self, horizon: int) -> int:
        """Give the frames that a lane uses up while it waits for an answer, at least 1.

        At most half the horizon, which is also the answer while nothing is known: a chunk asked for
        earlier than that has lost more frames when it arrives than it has left, and the next one is
        late by just as much.
        """
        most = max(1, horizon // 2)
        if not self._answers or not self._steps:
            return most
        answer = float(np.quantile(self._answers, 0.75))
        step = float(np.median(self._steps))
        if answer >= step * most:
            return most
        return max(1, math.ceil(answer / step))


class PrefetchedPlans:
    """Plans in flight or arrived, whose lanes still replay what they had.

    A lane is in at most one of them. A row whose episode has ended is never taken.
    """

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._plans: list[tuple[Plan, NDArray[np.bool_]]] = []

    def add(self, plan: Plan) -> None:
        """Keep a plan until all its rows are taken or have become useless."""
        self._plans.append((plan, np.ones(len(plan.lanes), np.bool_)))

    def drop_lanes(self, lanes: NDArray[np.bool_]) -> int:
        """Give up the rows of a mask's lanes, as they are out of date; return how many."""
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
        """Hand out plans with the positions of their rows for lanes that are due.

        With ``arrived``, all rows of plans that are answered too. Reading a plan may have to wait;
        one that fails then is dropped with all its rows.
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
