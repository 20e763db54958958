"""Batches that a run passes from one end to the other: rows of a space, decoded only on demand.

What comes from the wire stays bytes: a row is cut out of each leaf by its stride, and a batch that
goes through whole is the very message that came. What comes from this process stays arrays.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium
    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves

__all__ = ["RowFormat", "RowStore", "Rows", "gather"]

_U64 = np.dtype("<u8")


class RowFormat:
    """How one row of a space lies in memory; compiled once per run.

    Args:
        space: Space of one lane.

    Attributes:
        codec: The space's codec, for those who want values.
        strides: Bytes of one row per leaf; None for text, whose rows have no fixed size.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.codec = SpaceCodec(space)
        arrays = self.codec.empty(1)
        wire = self.codec.encode(arrays, 1).leaves
        self.strides = tuple(
            None if array.dtype == object else len(data)
            for array, data in zip(arrays, wire, strict=True)
        )

    def from_value(self, value: SpaceValue, num_rows: int) -> Rows:
        """Take a message over; only its sizes are looked at.

        Args:
            value: The message. Kept, not copied; nobody may change it any more.
            num_rows: Rows that it must hold.

        Raises:
            CodecError: Another number of leaves, or a leaf of another size.
        """
        data = value.leaves
        if len(data) != len(self.strides):
            message = f"expected {len(self.strides)} leaves, got {len(data)}"
            raise CodecError(message)
        for part, stride, path in zip(data, self.strides, self.codec.paths, strict=True):
            if stride is not None and len(part) != num_rows * stride:
                message = (
                    f"expected {num_rows * stride} bytes ({num_rows} rows of {stride}), "
                    f"got {len(part)}"
                )
                raise CodecError(message, path=path)
        return Rows(self, num_rows, value=value)

    def from_leaves(self, leaves: Leaves, num_rows: int) -> Rows:
        """Take arrays over, one per leaf; kept, not copied."""
        return Rows(self, num_rows, arrays=leaves)

    def from_batch(self, batch: Any, num_rows: int) -> Rows:
        """Take a batch in Gymnasium's vector form over; arrays that fit are kept, not copied.

        Raises:
            CodecError: The batch does not fit the space.
        """
        return Rows(self, num_rows, arrays=self.codec.flatten(batch, num_rows))


class Rows:
    """Some rows of a space, as wire bytes or as arrays. Never changed once made.

    Args:
        form: Their format.
        num_rows: How many.
        value: The message they came in.
        raw: Per leaf one row of bytes per row, uint8 ``(num_rows, stride)``; for text an object
            array of ``bytes``.
        arrays: The decoded leaves. At least one of the three is given.
    """

    __slots__ = ("_arrays", "_raw", "_value", "form", "num_rows")

    def __init__(
        self,
        form: RowFormat,
        num_rows: int,
        *,
        value: SpaceValue | None = None,
        raw: list[NDArray[Any]] | None = None,
        arrays: Leaves | None = None,
    ) -> None:
        self.form = form
        self.num_rows = num_rows
        self._value = value
        self._raw = raw
        self._arrays = arrays

    @property
    def is_decoded(self) -> bool:
        """Whether the rows began as arrays of this process, not as bytes from the wire."""
        return self._value is None and self._raw is None

    def value(self) -> SpaceValue:
        """Return the message of these rows; not to be changed.

        Raises:
            CodecError: Arrays that have no form on the wire, such as text with a lone surrogate.
        """
        if self._value is None:
            if self._raw is not None:
                self._value = SpaceValue(leaves=[_join(rows) for rows in self._raw])
            else:
                self._value = self.form.codec.encode(self._arrays or [], self.num_rows)
        return self._value

    def leaves(self) -> Leaves:
        """Return the rows as fresh arrays, which the caller may change.

        Raises:
            CodecError: Text that is not UTF-8.
        """
        if self._arrays is not None:
            return [array.copy() for array in self._arrays]
        return self.form.codec.decode(self.value(), self.num_rows)

    def batch(self) -> Any:
        """Return the rows in Gymnasium's vector form, fresh; see :meth:`leaves`."""
        return self.form.codec.unflatten(self.leaves(), self.num_rows)

    def fields(self) -> list[NDArray[Any]]:
        """Return what row operations work on: decoded arrays, or bytes cut into rows.

        Raises:
            CodecError: A text leaf that does not fit its own header.
        """
        if self._raw is not None:
            return self._raw
        if self._value is None:
            return self._arrays or []
        form = self.form
        parts = zip(self._value.leaves, form.strides, form.codec.paths, strict=True)
        self._raw = [_split(data, stride, self.num_rows, path) for data, stride, path in parts]
        return self._raw

    def like(self, fields: list[NDArray[Any]], num_rows: int) -> Rows:
        """Make other rows of the same kind as these from the result of a row operation."""
        if self.is_decoded:
            return Rows(self.form, num_rows, arrays=fields)
        return Rows(self.form, num_rows, raw=fields)

    def take(self, rows: Sequence[int]) -> Rows:
        """Return some rows, in the order given; all of them in order are these rows themselves."""
        count = len(rows)
        if count == self.num_rows and list(rows) == list(range(count)):
            return self
        index = np.asarray(rows, dtype=np.intp)
        return self.like([field[index] for field in self.fields()], count)

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """Return all rows of at least one batch, back to back."""
        first = parts[0]
        if len(parts) == 1:
            return first
        count = sum(part.num_rows for part in parts)
        if any(part.is_decoded != first.is_decoded for part in parts):
            # One end in this process, one remote: the wire's form is what both can take.
            fields = [first.form.from_value(part.value(), part.num_rows).fields() for part in parts]
            return Rows(first.form, count, raw=_stack(fields))
        return first.like(_stack([part.fields() for part in parts]), count)


def _stack(parts: Sequence[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]


def _split(data: bytes, stride: int | None, num_rows: int, path: str) -> NDArray[Any]:
    if stride is not None:
        return np.frombuffer(data, np.uint8).reshape(num_rows, stride)
    start = 8 * (num_rows + 1)
    header = np.frombuffer(data, _U64, num_rows + 1).tolist() if len(data) >= start else None
    # Python integers, so that no length can wrap around.
    ends = list(accumulate(header[1:], initial=start)) if header else []
    if not header or header[0] != num_rows or ends[-1] != len(data):
        message = f"the text leaf does not hold {num_rows} texts, or not what its header says"
        raise CodecError(message, path=path)
    rows = np.empty(num_rows, object)
    rows[:] = [data[begin:end] for begin, end in pairwise(ends)]
    return rows


def _join(rows: NDArray[Any]) -> bytes:
    if rows.dtype != object:
        return rows.tobytes()
    bodies = rows.tolist()
    return np.array([len(bodies), *map(len, bodies)], _U64).tobytes() + b"".join(bodies)


class RowStore:
    """The latest row of each lane, wherever it came from; nothing is copied until it is gathered.

    Args:
        num_lanes: Number of lanes.
    """

    def __init__(self, num_lanes: int) -> None:
        self._sources: list[tuple[Rows, int] | None] = [None] * num_lanes
        # What all lanes were given at once; it stands in for the sources.
        self._whole: Rows | None = None

    def put(self, lanes: Sequence[int], rows: Rows) -> None:
        """Let the lanes' rows be those of ``rows``, in the same order, lanes ascending."""
        if len(lanes) == len(self._sources):
            self._whole = rows
            return
        if self._whole is not None:
            self._sources = [(self._whole, lane) for lane in range(len(self._sources))]
            self._whole = None
        for row, lane in enumerate(lanes):
            self._sources[lane] = rows, row

    def get(self, lane: int) -> tuple[Rows, int]:
        """Return where a lane's row is.

        Raises:
            StateError: The lane has none.
        """
        if self._whole is not None:
            return self._whole, lane
        source = self._sources[lane]
        if source is None:
            message = f"lane {lane} has no row yet"
            raise StateError(message)
        return source

    def gather(self, lanes: Sequence[int]) -> Rows:
        """Return the rows of some lanes, at least one, in the order given."""
        if self._whole is not None:
            return self._whole.take(lanes)
        return gather([self.get(lane) for lane in lanes])


def gather(sources: Sequence[tuple[Rows, int]]) -> Rows:
    """Bring rows of several batches together; a batch that is taken whole is not copied.

    Args:
        sources: Batch and row number of each wanted row; at least one.
    """
    first = sources[0][0]
    if len({id(rows) for rows, _ in sources}) == 1:
        return first.take([row for _, row in sources])
    runs: list[tuple[Rows, list[int]]] = []
    for rows, row in sources:
        if runs and runs[-1][0] is rows:
            runs[-1][1].append(row)
        else:
            runs.append((rows, [row]))
    return Rows.join([rows.take(taken) for rows, taken in runs])
