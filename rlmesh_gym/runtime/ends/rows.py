"""Batches as events hold them: rows of a space, put into Gymnasium's form only on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves, SpaceCodec


class Rows:
    """Some rows of a space, perhaps views of received bytes. Never changed once made."""

    __slots__ = ("_codec", "_leaves", "num_rows")

    def __init__(self, codec: SpaceCodec, leaves: Leaves, num_rows: int) -> None:
        self._codec = codec
        self._leaves = leaves
        self.num_rows: int = num_rows

    def batch(self) -> Any:
        """Return the rows in Gymnasium's vector form, fresh."""
        return self._codec.unflatten([leaf.copy() for leaf in self._leaves], self.num_rows)
