"""Overlapping predictions of one lane, combined into the action that it takes.

When a lane is planned again before its chunk is used up, several chunks predict the same step.
:class:`EnsembleReplay` keeps them and answers like
``ActionChunkReplay``, so that whoever replays need not know which of the two it has. Plain arrays,
no wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlmesh_gym.errors import ConfigurationError, StateError
from rlmesh_gym.policy.planning.chunks import (
    ActionChunkReplay,
    check_chunk,
    frame_range,
    lane_indices,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from numpy.typing import ArrayLike, NDArray

    from rlmesh_gym.policy.planning.chunks import Lanes, Leaves

__all__ = ["EXPONENTIAL_DECAY", "EnsembleReplay", "EnsembleRule", "check_rule", "make_replay"]

EXPONENTIAL_DECAY = 0.01
"""The ``m`` of ACT's weights ``exp(-m * i)``, where ``i`` is 0 for the oldest prediction."""

_Combination: TypeAlias = "Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]"
EnsembleRule: TypeAlias = "Literal['newest', 'mean', 'exponential'] | _Combination"
"""How predictions for one step become one action; see :class:`EnsembleReplay`."""


class EnsembleReplay:
    """Every lane's chunks that still reach the present step, and their combination.

    The rules, where ``i`` counts a lane's predictions for the step from 0, the oldest:

    - ``"newest"``: the prediction of the newest chunk. :func:`make_replay` gives a plain
      ``ActionChunkReplay`` for it, which does the same with less memory.
    - ``"mean"``: all weigh the same.
    - ``"exponential"``: weights ``exp(-m * i)`` with ``m`` = ``EXPONENTIAL_DECAY``, as in ACT, so
      the oldest weighs most.
    - a callable ``rule(predictions, ages) -> action``, called for one lane and one leaf at a
      time: ``predictions`` of shape ``(m, *leaf.shape)``, oldest first, in the leaf's own dtype
      (an object array of strings for Text); ``ages`` int64 ``(m,)``, steps since the observation
      that each was made from.

    The built-in averages are taken in float64 and rounded to the leaf's dtype once. An integer,
    boolean or Text leaf has no mean: there both take the newest prediction. A callable is asked for
    such leaves too, and its answer must be castable within the kind (no float for an integer).

    A chunk's place in time is that of the observation which it was made from: ``skip`` frames of it
    lie in the past. Only the newest chunk decides when a lane is empty, so a short new chunk means
    an early new plan, even where an older one reaches further.

    Args:
        num_lanes: Number of lanes, at least 1.
        horizon: Most frames of one chunk that count, at least 1.
        template: One array per leaf of the action space with any number of rows.
        rule: How to combine.

    Attributes:
        num_lanes: Number of lanes.
        horizon: Most frames of one chunk.
        rule: How predictions are combined.

    Raises:
        ConfigurationError: A number below 1, or an unknown rule.
    """

    def __init__(
        self, num_lanes: int, horizon: int, template: Leaves, rule: EnsembleRule = "mean"
    ) -> None:
        check_rule(rule)
        # The newest chunk alone says how many frames are left, and checks what comes in.
        self._newest = ActionChunkReplay(num_lanes, horizon, template)
        self.num_lanes = num_lanes
        self.horizon = horizon
        self.rule = rule
        self._rows = [(leaf.shape[1:], leaf.dtype) for leaf in template]
        self._slots = 2
        self._chunks = [
            np.zeros((num_lanes, self._slots, horizon, *shape), dtype)
            for shape, dtype in self._rows
        ]
        # A slot is dead when its end is not after the lane's step. Steps count from the flush.
        self._start = np.zeros((num_lanes, self._slots), np.int64)
        self._end = np.zeros((num_lanes, self._slots), np.int64)
        self._step = np.zeros(num_lanes, np.int64)

    @property
    def remaining(self) -> NDArray[np.intp]:
        """Frames left of each lane's newest chunk, shape ``(num_lanes,)``, a copy."""
        return self._newest.remaining

    def empty_lanes(self) -> NDArray[np.bool_]:
        """Mask of the lanes whose newest chunk is used up, shape ``(num_lanes,)``."""
        return self._newest.empty_lanes()

    def load(
        self,
        lanes: Lanes,
        chunk: Leaves,
        *,
        counts: ArrayLike | None = None,
        skip: ArrayLike = 0,
    ) -> None:
        """Give lanes a new chunk each, beside those that still reach the present step.

        Args:
            lanes: The ``k`` lanes.
            chunk: Leaves of shape ``(k, frames, *shape)``, rows in the order of ``lanes``. Copied.
            counts: Frames that count per row, shape ``(k,)`` or one number; None for all.
            skip: Frames per row whose steps are over; a row with nothing left leaves its lane
                empty.

        Raises:
            ConfigurationError: Leaves of another number, shape or dtype, or counts beyond the
                frames given. No lane was touched.
        """
        indices = lane_indices(lanes, self.num_lanes)
        frames = check_chunk(self._rows, len(indices), chunk)
        passed, end = frame_range(len(indices), frames if chunk else None, counts, skip)
        self._newest.load(indices, chunk, counts=end, skip=passed)
        step = self._step[indices]
        # The stalest slot is taken; where even that one is alive, every lane gets more slots.
        slot = self._end[indices].argmin(axis=1)
        if (self._end[indices, slot] > step).any():
            self._grow()
            slot = self._end[indices].argmin(axis=1)
        width = min(frames, self.horizon)
        for chunks, leaf in zip(self._chunks, chunk, strict=True):
            chunks[indices, slot, :width] = leaf[:, :width]
        dropped = np.broadcast_to(np.asarray(skip), len(indices))
        self._start[indices, slot] = step - dropped
        self._end[indices, slot] = step - dropped + np.minimum(end, self.horizon)

    def pop(self, lanes: Lanes = None) -> list[NDArray[Any]]:
        """Combine what was predicted for lanes' present step, and go on to the next.

        Args:
            lanes: The ``k`` lanes, none of them empty.

        Returns:
            Leaves of shape ``(k, *shape)``, fresh.

        Raises:
            StateError: A lane is empty. No lane went on.
            ConfigurationError: The callable rule gave something of another shape or kind.
        """
        indices = lane_indices(lanes, self.num_lanes)
        empty = self._newest.remaining[indices] <= 0
        if empty.any():
            message = f"pop: lanes {indices[empty].tolist()} have no frame left, load them first"
            raise StateError(message)
        step = self._step[indices, None]
        # Oldest first: by start, and dead slots behind all others.
        alive = (self._end[indices] > step) & (self._start[indices] <= step)
        starts = np.where(alive, self._start[indices], np.iinfo(np.int64).max)
        order = np.argsort(starts, axis=1, kind="stable")
        counts = alive.sum(axis=1)
        slots = order[:, : counts.max(initial=1)]
        ages = step - np.take_along_axis(self._start[indices], slots, axis=1)
        valid = np.arange(slots.shape[1]) < counts[:, None]
        frame = np.where(valid, ages, 0)
        combined = [
            self._combine(chunks[indices[:, None], slots, frame], ages, counts)
            for chunks in self._chunks
        ]
        self._newest.pop(indices)
        self._step[indices] += 1
        return combined

    def flush(self, lanes: Lanes = None) -> None:
        """Drop all that was predicted for lanes, as at an episode's start."""
        indices = lane_indices(lanes, self.num_lanes)
        self._newest.flush(indices)
        self._start[indices] = 0
        self._end[indices] = 0
        self._step[indices] = 0

    def _combine(
        self, predictions: NDArray[Any], ages: NDArray[np.int64], counts: NDArray[np.intp]
    ) -> NDArray[Any]:
        """Combine ``(k, m, *shape)`` over its second axis, of which ``counts`` are valid."""
        rows = np.arange(len(counts))
        newest: NDArray[Any] = predictions[rows, counts - 1]
        if callable(self.rule):
            for row, count in enumerate(counts):
                answer = np.asarray(self.rule(predictions[row, :count], ages[row, :count]))
                fits = answer.shape == newest.shape[1:]
                if not fits or not np.can_cast(answer.dtype, newest.dtype, "same_kind"):
                    message = (
                        f"the ensemble rule returned {answer.dtype}{list(answer.shape)}, expected "
                        f"{newest.dtype}{list(newest.shape[1:])}"
                    )
                    raise ConfigurationError(message)
                newest[row] = answer
            return newest
        if self.rule == "newest" or not np.issubdtype(newest.dtype, np.floating):
            return newest
        place = np.arange(predictions.shape[1])
        decay = EXPONENTIAL_DECAY if self.rule == "exponential" else 0.0
        weights = np.where(place < counts[:, None], np.exp(-decay * place), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        # Dead frames hold old numbers, and 0 * inf would spoil the sum.
        shape = (*weights.shape, *(1,) * (predictions.ndim - 2))
        dead = weights.reshape(shape) == 0.0
        weighed = np.where(dead, 0.0, predictions) * weights.reshape(shape)
        mean: NDArray[Any] = weighed.sum(axis=1).astype(newest.dtype)
        return mean

    def _grow(self) -> None:
        more = self._slots
        self._chunks = [
            np.concatenate([chunks, np.zeros_like(chunks[:, :more])], axis=1)
            for chunks in self._chunks
        ]
        self._start = np.pad(self._start, ((0, 0), (0, more)))
        self._end = np.pad(self._end, ((0, 0), (0, more)))
        self._slots += more


def check_rule(rule: object) -> None:
    """Check what was given as ``ensemble``.

    Raises:
        ConfigurationError: No such rule.
    """
    if not (rule in ("newest", "mean", "exponential") or callable(rule)):
        raise ConfigurationError(
            f"ensemble must be 'newest', 'mean', 'exponential' or a callable, got ensemble={rule!r}"
        )


def make_replay(
    num_lanes: int, horizon: int, template: Leaves, rule: EnsembleRule
) -> ActionChunkReplay | EnsembleReplay:
    """Give the replay for a rule: the plain one where only the newest prediction counts.

    Args:
        num_lanes: Number of lanes.
        horizon: Most frames of one chunk that are replayed.
        template: One array per leaf of the action space, with a row axis.
        rule: How overlapping predictions are combined.

    Returns:
        An empty replay.

    Raises:
        ConfigurationError: A number below 1, or an unknown rule.
    """
    if rule == "newest":
        return ActionChunkReplay(num_lanes, horizon, template)
    return EnsembleReplay(num_lanes, horizon, template, rule)
