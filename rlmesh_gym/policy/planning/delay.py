"""How many env steps a model's answer takes, judged by the last few of both."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

__all__ = ["DelayEstimate"]


class DelayEstimate:
    """A forgetting estimate: old answers and steps drop out of a window.

    The first answer is left out, since a model often compiles or loads on its first call. The
    latency taken is the window's upper quartile, so that most answers are in time; the step time is
    its median, so that a pause in the user's loop does not count.

    Args:
        window: Answers, and steps, that are remembered.

    Example:
        >>> delay = DelayEstimate()
        >>> for answer_ns in (900_000_000, 20_000_000, 20_000_000):
        ...     delay.note_answer(answer_ns)
        >>> delay.note_step(8_000_000)
        >>> delay.frames(8)
        3
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
        """Give the frames that a lane uses up while it waits for an answer.

        At most half the horizon: a chunk asked for earlier than that has lost more frames when it
        arrives than it has left, and the next one is late by just as much.

        Args:
            horizon: Frames of one chunk.

        Returns:
            Steps in ``[1, max(1, horizon // 2)]``; the most while nothing is known.
        """
        most = max(1, horizon // 2)
        if not self._answers or not self._steps:
            return most
        answer = float(np.quantile(self._answers, 0.75))
        step = float(np.median(self._steps))
        if answer >= step * most:
            return most
        return max(1, math.ceil(answer / step))
