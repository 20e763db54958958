"""The codec of one fundamental space: a batch of its values as one array and as one byte string."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec.spaces.cast import as_array, describe, sequence_length
from rlmesh_gym.codec.spaces.checks import bounds_check, domain_check, text_check
from rlmesh_gym.codec.spaces.dtypes import wire_dtype
from rlmesh_gym.codec.spaces.text import decode_text_slab, encode_text_slab
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec.spaces.checks import RowCheck


_INT64 = np.dtype(np.int64)
_WHOLE = (int, np.int64)
_OBJECT = np.dtype(object)


class Leaf:
    """What a fundamental space does with a batch: its *rows*, an array with one row per lane.

    As it stands it serves rows of a fixed size: Box, MultiDiscrete and, but for little, the rest.
    ``dtype`` is native, ``object`` for Text; ``row_bytes`` are those on the wire, 0 if that depends
    on the row. ``domain`` checks for what no policy may ever send, ``bounds`` for the declared
    range; None where every value passes.
    """

    domain: RowCheck | None
    bounds: RowCheck | None

    def __init__(
        self, space: spaces.Space[Any], path: str, dtype: np.dtype[Any], wire: np.dtype[Any]
    ) -> None:
        self.path = path
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.dtype: np.dtype[Any] = dtype.newbyteorder("=")
        self.wire: np.dtype[Any] = wire_dtype(wire)
        self.row_bytes: int = wire.itemsize * int(np.prod(self.shape, dtype=np.int64))
        self.domain = domain_check(space)
        self.bounds = bounds_check(space)
        self._is_wire: bool = self.wire == self.dtype
        # A Discrete space may count in int32 while the wire always counts in int64.
        self._narrow = wire.itemsize != dtype.itemsize

    def encode(self, rows: NDArray[Any], num_rows: int) -> bytes:
        """Return the bytes of ``num_rows`` rows, back to back, little-endian."""
        self.check_rows(rows, num_rows)
        return rows.astype(self.wire, copy=False).tobytes()

    def buffer(self, rows: NDArray[Any], num_rows: int) -> bytes | memoryview:
        """Return what ``encode`` does, without a copy where the rows already lie so in memory."""
        self.check_rows(rows, num_rows)
        if self._is_wire and rows.flags.c_contiguous and rows.size:
            return rows.data.cast("B")
        flat = np.ascontiguousarray(rows.astype(self.wire, copy=False)).reshape(-1)
        return flat.view(np.uint8).data

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return a new array of ``num_rows`` rows."""
        view = self._view(data, num_rows)
        if self._narrow:
            return as_array(view.astype(view.dtype.newbyteorder("=")), self.dtype, self.path)
        return view.astype(self.dtype)

    def view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return the rows for reading only, a view of ``data`` where it holds them as they are."""
        return self._view(data, num_rows) if self._is_wire else self.decode(data, num_rows)

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        """Fill all rows of ``out``, a C-contiguous array of this leaf, without a temporary."""
        view = self._view(data, len(out))
        out[...] = as_array(view, self.dtype, self.path) if self._narrow else view

    def _view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        if len(data) != num_rows * self.row_bytes:
            expected = f"{num_rows * self.row_bytes} bytes ({num_rows} rows of {self.row_bytes})"
            raise CodecError(f"expected {expected}, got {len(data)}", path=self.path)
        return np.ndarray((num_rows, *self.shape), self.wire, data)

    def empty(self, num_rows: int) -> NDArray[Any]:
        """Return ``num_rows`` rows of zeros, or of empty strings."""
        return np.zeros((num_rows, *self.shape), self.dtype)

    def batch(self, value: object, num_rows: int) -> NDArray[Any]:
        """Return the rows of a batch in Gymnasium's vector form; may be the value itself."""
        array = as_array(value, self.dtype, self.path)
        if array.shape != (num_rows, *self.shape):
            message = f"expected shape {(num_rows, *self.shape)}, got {array.shape}"
            raise CodecError(message, path=self.path)
        return np.ascontiguousarray(array)

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        """Return single samples as rows; axes of length one may be missing or too many."""
        dtype, shape = self.dtype, self.shape
        rows = np.empty((len(samples), *shape), dtype)
        for row, sample in enumerate(samples):
            # The usual case first: it is the whole cost of a server with many small lanes.
            if type(sample) is np.ndarray and sample.dtype == dtype and sample.shape == shape:
                rows[row] = sample
            else:
                rows[row] = self._fit(sample)
        return rows

    def _fit(self, sample: object) -> NDArray[Any]:
        array = as_array(sample, self.dtype, self.path)
        if [n for n in array.shape if n != 1] != [n for n in self.shape if n != 1]:
            raise CodecError(f"expected shape {self.shape}, got {array.shape}", path=self.path)
        return array.reshape(self.shape)

    def unbatch(self, rows: NDArray[Any]) -> Any:
        """Return rows in Gymnasium's vector form; may be the rows themselves."""
        return rows

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        """Return one row as ``space.sample()`` would give it, owning its memory."""
        return rows[row, ...].copy()

    def check_rows(self, rows: NDArray[Any], num_rows: int) -> None:
        """Refuse, with a CodecError, rows of another shape or dtype."""
        shape = (num_rows, *self.shape)
        if rows.shape != shape or rows.dtype != self.dtype:
            message = f"expected shape {shape}, dtype {self.dtype}, got {describe(rows)}"
            raise CodecError(message, path=self.path)


class _TruthLeaf(Leaf):
    """One byte per element, any byte but 0 counting as 1: bool Box and MultiBinary."""

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        truth: NDArray[np.bool_] = self._view(data, num_rows) != 0
        return truth.view(self.dtype)

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        np.not_equal(self._view(data, len(out)), 0, out=out.view(np.bool_))


class _ScalarLeaf(Leaf):
    """Discrete: rows are numbers, and an array of one element counts as one."""

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        if self.dtype == _INT64 and all(type(sample) in _WHOLE for sample in samples):
            with contextlib.suppress(OverflowError):  # beyond int64: told apart below
                return np.array(samples, _INT64)
        return super().stack(samples)

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        return rows[row]


class _TextLeaf(Leaf):
    """Rows are Python strings in an object array of shape ``(num_rows,)``."""

    def __init__(self, space: spaces.Text, path: str) -> None:
        self.path = path
        self.shape: tuple[()] = ()
        self.dtype = _OBJECT
        self.row_bytes = 0
        self.domain: RowCheck | None = None
        self.bounds: RowCheck = text_check(space)

    def encode(self, rows: NDArray[Any], num_rows: int) -> bytes:
        self.check_rows(rows, num_rows)
        return encode_text_slab(rows.tolist(), self.path)

    buffer = encode

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        rows = np.empty(num_rows, _OBJECT)
        self.decode_into(data, rows)
        return rows

    view = decode

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        out[:] = decode_text_slab(bytes(data), len(out), self.path)

    def empty(self, num_rows: int) -> NDArray[Any]:
        return np.full(num_rows, "", _OBJECT)

    def batch(self, value: object, num_rows: int) -> NDArray[Any]:
        # A str is a sequence of str too; taking it apart would never be meant.
        if sequence_length(value) != num_rows:
            message = f"expected a tuple of {num_rows} str, got {describe(value)}"
            raise CodecError(message, path=self.path)
        return self.stack(cast("Sequence[object]", value))

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        rows = np.empty(len(samples), _OBJECT)
        for row, sample in enumerate(samples):
            if not isinstance(sample, str):
                message = f"expected a str in row {row}, got {describe(sample)}"
                raise CodecError(message, path=self.path)
            rows[row] = str(sample)
        return rows

    def unbatch(self, rows: NDArray[Any]) -> Any:
        return tuple(rows.tolist())

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        return rows[row]


def compile_leaf(space: spaces.Space[Any], path: str) -> Leaf:
    """Return the codec of a fundamental space that has a form on the wire."""
    dtype = np.dtype(space.dtype)
    if isinstance(space, spaces.Text):
        return _TextLeaf(space, path)
    if isinstance(space, spaces.MultiBinary) or dtype.kind == "b":
        return _TruthLeaf(space, path, dtype, np.dtype(np.uint8))
    if isinstance(space, spaces.Box):
        return Leaf(space, path, dtype, dtype)
    kind = _ScalarLeaf if isinstance(space, spaces.Discrete) else Leaf
    return kind(space, path, dtype, _INT64)
