"""Overlapping predictions of one lane, combined into the action that it takes.

When a lane is planned again before its chunk is used up, several chunks predict the same step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.policy.planning.chunks import ActionChunkReplay, lane_indices

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from numpy.typing import NDArray

    from rlmesh_gym.policy.planning.chunks import Lanes, Leaves


EXPONENTIAL_DECAY = 0.01
"""The ``m`` of ACT's weights ``exp(-m * i)``, where ``i`` is 0 for the oldest prediction."""

_Combination: TypeAlias = "Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]]"
EnsembleRule: TypeAlias = "Literal['newest', 'mean', 'exponential'] | _Combination"
"""How predictions for one step become one action; see :class:`EnsembleReplay`."""


class EnsembleReplay(ActionChunkReplay):
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
        # The newest chunk alone says how many frames are left.
        super().__init__(num_lanes, horizon, template)
        self.rule = rule
        # Axis 1 holds slots; one whose end is not after the lane's step is dead. Steps count from
        # the flush.
        self._chunks = [
            np.zeros((num_lanes, 2, horizon, *shape), dtype) for shape, dtype in self._rows
        ]
        self._starts = np.zeros((num_lanes, 2), np.int64)
        self._ends = np.zeros((num_lanes, 2), np.int64)
        self._step = np.zeros(num_lanes, np.int64)

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
        indices = self._filled(lanes)
        step = self._step[indices, None]
        # Oldest first: by start, and dead slots behind all others.
        alive = (self._ends[indices] > step) & (self._starts[indices] <= step)
        starts = np.where(alive, self._starts[indices], np.iinfo(np.int64).max)
        order = np.argsort(starts, axis=1, kind="stable")
        counts = alive.sum(axis=1)
        slots = order[:, : counts.max(initial=1)]
        ages = step - np.take_along_axis(self._starts[indices], slots, axis=1)
        valid = np.arange(slots.shape[1]) < counts[:, None]
        frame = np.where(valid, ages, 0)
        combined = [
            self._combine(chunks[indices[:, None], slots, frame], ages, counts)
            for chunks in self._chunks
        ]
        super().pop(indices)
        self._step[indices] += 1
        return combined

    def flush(self, lanes: Lanes = None) -> None:
        """Drop all that was predicted for lanes, as at an episode's start."""
        indices = lane_indices(lanes, self.num_lanes)
        super().flush(indices)
        self._starts[indices] = 0
        self._ends[indices] = 0
        self._step[indices] = 0

    def _store(
        self,
        lanes: NDArray[np.intp],
        chunk: Leaves,
        skipped: NDArray[np.intp],
        end: NDArray[np.intp],
    ) -> None:
        super()._store(lanes, chunk, skipped, end)
        step = self._step[lanes]
        # The stalest slot is taken; where even that one is alive, every lane gets more slots.
        slot = self._ends[lanes].argmin(axis=1)
        if (self._ends[lanes, slot] > step).any():
            self._grow()
            slot = self._ends[lanes].argmin(axis=1)
        for chunks, leaf in zip(self._chunks, chunk, strict=True):
            frames = leaf[:, : self.horizon]
            chunks[lanes, slot, : frames.shape[1]] = frames
        self._starts[lanes, slot] = step - skipped
        self._ends[lanes, slot] = step - skipped + end

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
                    raise ConfigurationError(
                        f"the ensemble rule returned {answer.dtype}{list(answer.shape)}, expected "
                        f"{newest.dtype}{list(newest.shape[1:])}"
                    )
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
        self._chunks = [_doubled(chunks) for chunks in self._chunks]
        self._starts = _doubled(self._starts)
        self._ends = _doubled(self._ends)


def _doubled(slots: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([slots, np.zeros_like(slots)], axis=1)


def check_rule(rule: object) -> None:
    """Refuse what was given as ``ensemble`` if there is no such rule."""
    if not (rule in ("newest", "mean", "exponential") or callable(rule)):
        raise ConfigurationError(
            f"ensemble must be 'newest', 'mean', 'exponential' or a callable, got ensemble={rule!r}"
        )


def make_replay(
    num_lanes: int, horizon: int, template: Leaves, rule: EnsembleRule
) -> ActionChunkReplay:
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
