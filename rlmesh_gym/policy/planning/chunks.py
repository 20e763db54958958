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

__all__ = [
    "ActionChunkReplay",
    "Lanes",
    "Leaves",
    "check_chunk",
    "frame_range",
    "lane_indices",
    "stack_frames",
]

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
            message = f"a lane mask has shape ({num_lanes},) here, got {given.shape}"
            raise ConfigurationError(message)
        return np.flatnonzero(given)
    if given.size == 0:
        return np.zeros(0, np.intp)
    if given.ndim > 1 or not np.issubdtype(given.dtype, np.integer):
        message = f"lanes are an index, several indices or a boolean mask, got {lanes!r}"
        raise ConfigurationError(message)
    indices = np.atleast_1d(given).astype(np.intp)
    if indices.min() < 0 or indices.max() >= num_lanes:
        message = f"lanes lie in 0..{num_lanes - 1}, got {indices.tolist()}"
        raise ConfigurationError(message)
    if len(np.unique(indices)) != len(indices):
        message = f"a lane is named twice: {indices.tolist()}"
        raise ConfigurationError(message)
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
        message = "a chunk has at least one frame, got none"
        raise ConfigurationError(message)
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
            message = (
                f"num_lanes and horizon are at least 1, got {num_lanes} lanes and horizon {horizon}"
            )
            raise ConfigurationError(message)
        if any(leaf.ndim < 1 for leaf in template):
            message = "every leaf of the template needs a row axis, got a 0-d array"
            raise ConfigurationError(message)
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
        self,
        lanes: Lanes,
        chunk: Leaves,
        *,
        counts: ArrayLike | None = None,
        skip: ArrayLike = 0,
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
        frames = check_chunk(self._rows, len(indices), chunk)
        first, end = frame_range(len(indices), frames if chunk else None, counts, skip)
        width = min(frames, self.horizon)
        for buffer, leaf in zip(self._buffers, chunk, strict=True):
            buffer[indices, :width] = leaf[:, :width]
        self._end[indices] = np.minimum(end, self.horizon)
        self._cursor[indices] = np.minimum(first, self._end[indices])

    def pop(self, lanes: Lanes = None) -> list[NDArray[Any]]:
        """Take the next frame of lanes.

        Args:
            lanes: The ``k`` lanes, each with a frame left.

        Returns:
            Leaves of shape ``(k, *shape)``, fresh.

        Raises:
            StateError: A lane is empty. No frame was taken.
        """
        indices = lane_indices(lanes, self.num_lanes)
        cursor = self._cursor[indices]
        empty = cursor >= self._end[indices]
        if empty.any():
            message = f"pop: lanes {indices[empty].tolist()} have no frame left, load them first"
            raise StateError(message)
        frames = [buffer[indices, cursor] for buffer in self._buffers]
        self._cursor[indices] = cursor + 1
        return frames

    def flush(self, lanes: Lanes = None) -> None:
        """Drop what lanes have left; an empty lane stays empty."""
        indices = lane_indices(lanes, self.num_lanes)
        self._cursor[indices] = 0
        self._end[indices] = 0


def check_chunk(
    rows: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], num_rows: int, chunk: Leaves
) -> int:
    """Check that a chunk holds actions of this form, and count its frames.

    Args:
        rows: Shape and dtype of one action, per leaf.
        num_rows: Lanes that the chunk is for.
        chunk: Leaves of shape ``(num_rows, frames, *shape)``.

    Returns:
        The number of frames; 0 for an action space without leaves.

    Raises:
        ConfigurationError: Leaves of another number, shape or dtype.
    """
    if len(chunk) != len(rows):
        message = f"a chunk has {len(rows)} leaves here, got {len(chunk)}"
        raise ConfigurationError(message)
    frames = chunk[0].shape[1] if chunk and chunk[0].ndim > 1 else 0
    for place, ((shape, dtype), leaf) in enumerate(zip(rows, chunk, strict=True)):
        if leaf.shape != (num_rows, frames, *shape):
            message = (
                f"leaf {place} of a chunk for {num_rows} lanes has shape (lanes, frames, *action) "
                f"= {(num_rows, 'frames', *shape)}, got {leaf.shape}"
            )
            raise ConfigurationError(message)
        if leaf.dtype != dtype:
            message = f"leaf {place} of a chunk has dtype {dtype} here, got {leaf.dtype}"
            raise ConfigurationError(message)
    return frames


def frame_range(
    num_rows: int, frames: int | None, counts: ArrayLike | None, skip: ArrayLike
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give the first frame that counts and the one after the last, per row of a chunk.

    Args:
        num_rows: Rows of the chunk.
        frames: Frames that the chunk holds; None for a chunk without leaves, which has no length.
        counts: Frames that count per row; None for all.
        skip: Frames dropped from the front per row.

    Returns:
        Two arrays of shape ``(num_rows,)``; the first never exceeds the second.

    Raises:
        ConfigurationError: A negative number, or more counted than there are.
    """
    available = np.asarray((frames or 0) if counts is None else counts)
    dropped = np.asarray(skip)
    too_many = frames is not None and (available > frames).any()
    if too_many or (available < 0).any() or (dropped < 0).any():
        message = (
            f"counts lie in 0..{frames} and skip is not negative, got counts={available.tolist()} "
            f"and skip={dropped.tolist()}"
        )
        raise ConfigurationError(message)
    end = np.broadcast_to(available, num_rows).astype(np.intp)
    return np.minimum(np.broadcast_to(dropped, num_rows), end).astype(np.intp), end
