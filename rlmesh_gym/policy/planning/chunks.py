"""Action chunks replayed lane by lane: plain arrays, no wire, no codec, no threads.

A chunk is several actions for one lane, the first of which acts now. Batches of actions are kept as
*leaves*: a list with one array per fundamental space, rows first, so that every operation is
indexing, whatever the action space is. A Text leaf is an object array of strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlmesh_gym.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


Leaves: TypeAlias = "Sequence[NDArray[Any]]"
"""A batch of actions: one array per fundamental space, rows first."""

Lanes: TypeAlias = "int | Sequence[int] | Sequence[bool] | NDArray[Any] | None"
"""Some lanes: an index, several indices, a boolean mask over all lanes, or None for all."""


def lane_indices(lanes: Lanes, num_lanes: int) -> NDArray[np.intp]:
    """Turn any way of naming lanes into indices.

    Args:
        lanes: One index, a sequence of indices, a boolean mask of shape ``(num_lanes,)``, or None
            for all lanes.
        num_lanes: Number of lanes; indices lie in ``[0, num_lanes)``.

    Returns:
        The indices in the order given (ascending for a mask), int, shape ``(k,)``.

    Raises:
        ConfigurationError: An index out of range or named twice, a mask of another length, or
            something that is neither.
    """
    if lanes is None:
        return np.arange(num_lanes)
    given = np.asarray(lanes)
    if given.dtype == np.bool_:
        if given.shape != (num_lanes,):
            message = f"a lane mask must have shape ({num_lanes},), got {given.shape}"
            raise ConfigurationError(message)
        return np.flatnonzero(given)
    if given.size == 0:
        return np.zeros(0, np.intp)
    if given.ndim > 1 or not np.issubdtype(given.dtype, np.integer):
        message = f"lanes must be an index, several indices or a boolean mask, got {lanes!r}"
        raise ConfigurationError(message)
    indices = np.atleast_1d(given).astype(np.intp)
    if indices.min() < 0 or indices.max() >= num_lanes:
        raise ConfigurationError(f"lanes must be in 0..{num_lanes - 1}, got {indices.tolist()}")
    if len(np.unique(indices)) != len(indices):
        raise ConfigurationError(f"duplicate lanes: {indices.tolist()}")
    return indices


def stack_frames(frames: Sequence[Leaves]) -> list[NDArray[Any]]:
    """Join action batches of successive steps into chunks.

    Args:
        frames: At least one batch, each as leaves of shape ``(k, *shape)``.

    Returns:
        Leaves of shape ``(k, len(frames), *shape)``, fresh.

    Raises:
        ConfigurationError: No frames.
    """
    if not frames:
        raise ConfigurationError("a chunk has at least one frame, got none")
    return [np.stack(leaf, axis=1) for leaf in zip(*frames, strict=True)]


class ActionChunkReplay:
    """What is left of each lane's action chunk.

    A lane is loaded with a chunk, gives one frame per step, and is empty after the last of them. It
    never holds more than ``horizon`` frames: a longer chunk is cut. Loading replaces what is left.
    Every lane argument takes an index, a sequence of indices, a mask or None for all.

    Args:
        num_lanes: Number of lanes, at least 1.
        horizon: Most frames that are replayed of one chunk, at least 1.
        template: One array per leaf of the action space with any number of rows, such as
            ``codec.empty(1)``; only shape and dtype of a row are taken.

    Attributes:
        num_lanes: Number of lanes.
        horizon: Most frames of one chunk.

    Raises:
        ConfigurationError: A number below 1, or a template leaf without a row axis.

    Example:
        >>> replay = ActionChunkReplay(2, 3, [np.zeros((1, 1), np.float32)])
        >>> chunk = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
        >>> replay.load(None, [chunk], counts=[3, 1])
        >>> replay.pop()[0].ravel().tolist()
        [0.0, 3.0]
        >>> replay.remaining.tolist()
        [2, 0]
        >>> replay.flush(0)
        >>> replay.empty_lanes().tolist()
        [True, True]
    """

    def __init__(self, num_lanes: int, horizon: int, template: Leaves) -> None:
        if num_lanes < 1 or horizon < 1:
            raise ConfigurationError(
                f"num_lanes and horizon must be at least 1, got {num_lanes} and {horizon}"
            )
        if any(leaf.ndim < 1 for leaf in template):
            raise ConfigurationError("every leaf of the template needs a row axis, got a 0-d array")
        self.num_lanes = num_lanes
        self.horizon = horizon
        self._rows = [(leaf.shape[1:], leaf.dtype) for leaf in template]
        self._buffers = [
            np.zeros((num_lanes, horizon, *shape), dtype) for shape, dtype in self._rows
        ]
        self._cursor = np.zeros(num_lanes, np.intp)
        self._end = np.zeros(num_lanes, np.intp)

    @property
    def remaining(self) -> NDArray[np.intp]:
        """Frames left per lane, shape ``(num_lanes,)``, a copy."""
        return self._end - self._cursor

    def empty_lanes(self) -> NDArray[np.bool_]:
        """Mask of the lanes that have no frame left, shape ``(num_lanes,)``."""
        return np.asarray(self._end == self._cursor)

    def load(
        self, lanes: Lanes, chunk: Leaves, *, counts: ArrayLike | None = None, skip: ArrayLike = 0
    ) -> None:
        """Give lanes a new chunk each, in place of what they had.

        Args:
            lanes: The ``k`` lanes.
            chunk: Leaves of shape ``(k, frames, *shape)``, rows in the order of ``lanes``. Copied.
            counts: Frames that count per row, shape ``(k,)`` or one number; None for all. Anything
                beyond the horizon is cut.
            skip: Frames dropped from the front per row, because their steps are over; a row with
                nothing left leaves its lane empty.

        Raises:
            ConfigurationError: Leaves of another number, shape or dtype, or counts beyond the
                frames given. No lane was touched.
        """
        indices = lane_indices(lanes, self.num_lanes)
        self._store(indices, chunk, *self._frame_range(len(indices), chunk, counts, skip))

    def pop(self, lanes: Lanes = None) -> list[NDArray[Any]]:
        """Take the next frame of lanes.

        Args:
            lanes: The ``k`` lanes, each with a frame left.

        Returns:
            Leaves of shape ``(k, *shape)``, fresh.

        Raises:
            StateError: A lane is empty. No frame was taken.
        """
        indices = self._filled(lanes)
        cursor = self._cursor[indices]
        frames = [buffer[indices, cursor] for buffer in self._buffers]
        self._cursor[indices] = cursor + 1
        return frames

    def flush(self, lanes: Lanes = None) -> None:
        """Drop what lanes have left; an empty lane stays empty."""
        indices = lane_indices(lanes, self.num_lanes)
        self._cursor[indices] = 0
        self._end[indices] = 0

    def _filled(self, lanes: Lanes) -> NDArray[np.intp]:
        """Return the lanes' indices; refuse those that are empty."""
        indices = lane_indices(lanes, self.num_lanes)
        empty = self._cursor[indices] >= self._end[indices]
        if empty.any():
            message = f"pop: lanes {indices[empty].tolist()} have no frame left, load them first"
            raise StateError(message)
        return indices

    def _frame_range(
        self, num_rows: int, chunk: Leaves, counts: ArrayLike | None, skip: ArrayLike
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Check what :meth:`load` is given.

        Returns:
            Per row the frames skipped, which may be more than there are, and the frames that count.
        """
        if len(chunk) != len(self._rows):
            raise ConfigurationError(f"a chunk has {len(self._rows)} leaves here, got {len(chunk)}")
        frames = chunk[0].shape[1] if chunk and chunk[0].ndim > 1 else 0
        for place, ((shape, dtype), leaf) in enumerate(zip(self._rows, chunk, strict=True)):
            if leaf.shape != (num_rows, frames, *shape):
                raise ConfigurationError(
                    f"leaf {place} of a chunk for {num_rows} lanes has shape (lanes, frames, "
                    f"*action) = {(num_rows, 'frames', *shape)}, got {leaf.shape}"
                )
            if leaf.dtype != dtype:
                message = f"leaf {place} of a chunk has dtype {dtype} here, got {leaf.dtype}"
                raise ConfigurationError(message)
        available = np.asarray(frames if counts is None else counts)
        skipped = np.asarray(skip)
        # A chunk without leaves has no length of its own.
        too_many = bool(chunk) and (available > frames).any()
        if too_many or (available < 0).any() or (skipped < 0).any():
            raise ConfigurationError(
                f"counts must be in 0..{frames if chunk else None} and skip must not be negative, "
                f"got counts={available.tolist()} and skip={skipped.tolist()}"
            )
        end = np.minimum(np.broadcast_to(available, num_rows), self.horizon)
        return np.broadcast_to(skipped, num_rows).astype(np.intp), end.astype(np.intp)

    def _store(
        self,
        lanes: NDArray[np.intp],
        chunk: Leaves,
        skipped: NDArray[np.intp],
        end: NDArray[np.intp],
    ) -> None:
        for buffer, leaf in zip(self._buffers, chunk, strict=True):
            frames = leaf[:, : self.horizon]
            buffer[lanes, : frames.shape[1]] = frames
        self._end[lanes] = end
        self._cursor[lanes] = np.minimum(skipped, end)
