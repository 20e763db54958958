"""What one ``reset`` or ``step`` returns for every lane, filled in by the endpoints one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import Leaves, SpaceCodec

    Numbers: TypeAlias = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


class Batch:
    """Rows of all lanes of the vector.

    Each call fills its own batch, so a reply that comes after its deadline writes where nobody
    looks any more. ``leaves`` are buffers for the observations, None for new ones; with
    ``read_only`` nobody writes to these, so that they may be views of a message.
    """

    __slots__ = (
        "_codec",
        "_leaves",
        "_numbers",
        "_read_only",
        "num_envs",
    )

    def __init__(
        self,
        codec: SpaceCodec,
        num_envs: int,
        leaves: Leaves | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._codec = codec
        self._leaves = leaves
        self._read_only = read_only
        self._numbers: Numbers | None = None
        self.num_envs: int = num_envs

    @property
    def numbers(self) -> Numbers:
        """Rewards, terminations and truncations; zero where no endpoint has written."""
        if self._numbers is None:
            count = self.num_envs
            self._numbers = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        return self._numbers

    def put_numbers(self, lanes: Sequence[int] | slice, numbers: Numbers) -> None:
        """Write those of some lanes; those of all lanes are taken over as they are."""
        if len(numbers[0]) == self.num_envs:
            self._numbers = numbers
            return
        for whole, part in zip(self.numbers, numbers, strict=True):
            whole[lanes] = part

    @property
    def leaves(self) -> Leaves:
        """The observations; zeros and empty strings where no endpoint has written."""
        if self._leaves is None:
            self._leaves = self._codec.empty(self.num_envs)
        return self._leaves

    def put(self, value: SpaceValue, start: int, num_rows: int) -> None:
        """Write the rows of a message over lanes ``start`` to ``start + num_rows``."""
        if (self._leaves is None or self._read_only) and num_rows == self.num_envs:
            # The only endpoint: its decoded arrays are the result, one copy in all, or none. A
            # view, as of the step before this reset, gives way, since nothing writes over it.
            decode = self._codec.view if self._read_only else self._codec.decode
            self._leaves = decode(value, num_rows)
        else:
            self._codec.decode_into(value, self.leaves, start, num_rows)

    def put_rows(self, lanes: Sequence[int] | slice, rows: Leaves) -> None:
        """Copy rows, one per lane, over some lanes."""
        if self._read_only and self._leaves is not None:
            self._leaves = [leaf.copy() for leaf in self._leaves]
            self._read_only = False
        for leaf, part in zip(self.leaves, rows, strict=True):
            leaf[lanes] = part

    def take_rows(self, lanes: Sequence[int]) -> Leaves:
        """Return copies of some lanes' rows."""
        return [leaf[lanes] for leaf in self.leaves]

    def sample(self, lane: int) -> Any:
        """Return one lane's observation as its space has it, a copy."""
        return self._codec.unflatten_row(self.leaves, lane)
