"""The last real observation of each lane of one endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import Leaves, SpaceCodec


Mark: TypeAlias = "tuple[SpaceValue | None, Leaves | None]"
"""What was kept at some moment."""


class LastObservation:
    """Kept for lanes that a partial reset leaves alone and for lanes that are lost.

    The newest message is only referenced and decoded when somebody asks, so that a plain step costs
    nothing. What is kept is never handed out: callers copy. ``known`` marks the lanes that have
    been observed at all.
    """

    __slots__ = ("_codec", "_is_marked", "_message", "_num_envs", "_rows", "known")

    def __init__(self, codec: SpaceCodec, num_envs: int) -> None:
        self._codec = codec
        self._num_envs = num_envs
        self._message: SpaceValue | None = None
        self._rows: Leaves | None = None
        self._is_marked = False  # Somebody may come back to these rows.
        self.known: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)

    def keep(self, message: SpaceValue) -> None:
        """Take the observation of all lanes."""
        if self._message is None:
            self.known[:] = True
        self._message = message
        self._rows = None
        self._is_marked = False

    def keep_rows(self, lanes: Sequence[int], rows: Leaves) -> None:
        """Take the observation of some lanes, one row each; copied."""
        kept = self.rows()
        if self._is_marked:
            self._rows = kept = [leaf.copy() for leaf in kept]
            self._is_marked = False
        for leaf, part in zip(kept, rows, strict=True):
            leaf[lanes] = part
        self.known[lanes] = True

    def rows(self) -> Leaves:
        """Return the rows of all lanes; zeros and empty strings for unknown ones. Do not change."""
        if self._rows is None:
            if self._message is None:
                self._rows = self._codec.empty(self._num_envs)
            else:
                self._rows = self._codec.decode(self._message, self._num_envs)
                self._message = None
        return self._rows

    def mark(self) -> Mark:
        """Return the present state for :meth:`rows_of`; costs nothing until the next change."""
        self._is_marked = True
        return self._message, self._rows

    def rows_of(self, mark: Mark) -> Leaves:
        """Return the rows of an earlier state, as ``rows`` does."""
        message, rows = mark
        if rows is not None:
            return rows
        if message is None:
            return self._codec.empty(self._num_envs)
        return self._codec.decode(message, self._num_envs)
