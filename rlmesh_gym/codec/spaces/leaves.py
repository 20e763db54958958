"""The codec of one fundamental space: a batch of its values as one array and as one byte string."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from functools import singledispatch
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec.spaces.cast import as_array, describe, sequence_length
from rlmesh_gym.codec.spaces.checks import RowCheck, bounds_check, domain_check, text_check
from rlmesh_gym.codec.spaces.dtypes import encode_dtype, wire_dtype
from rlmesh_gym.codec.spaces.text import decode_text_slab, encode_text_slab
from rlmesh_gym.errors import CodecError, UnsupportedSpaceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["FixedLeaf", "Leaf", "TextLeaf", "TruthLeaf", "compile_leaf"]

_INT64 = np.dtype(np.int64)
_WHOLE = (int, np.int64)
_OBJECT = np.dtype(object)


class Leaf(ABC):
    """What a fundamental space does with a batch: its *rows*, an array with one row per lane.

    Attributes:
        path: Where the space stands, such as ``$.camera``.
        shape: Shape of one row.
        dtype: Native dtype of the rows, that of the space; ``object`` for Text.
        row_bytes: Bytes of one row on the wire; 0 if that depends on the row.
        domain: Check of what no policy may ever send, or None if every value is legal.
        bounds: Check of the declared range, or None if it cannot be left.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    row_bytes: int
    domain: RowCheck | None
    bounds: RowCheck | None

    @abstractmethod
    def encode(self, rows: NDArray[Any], num_rows: int) -> bytes:
        """Return the bytes of ``num_rows`` rows."""

    def buffer(self, rows: NDArray[Any], num_rows: int) -> bytes | memoryview:
        """Return what ``encode`` does, without a copy where the rows already lie so in memory."""
        return self.encode(rows, num_rows)

    @abstractmethod
    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return a new array of ``num_rows`` rows."""

    def view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return the rows for reading only, a view of ``data`` where it holds them as they are."""
        return self.decode(data, num_rows)

    @abstractmethod
    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        """Fill all rows of ``out``, a C-contiguous array of this leaf."""

    @abstractmethod
    def empty(self, num_rows: int) -> NDArray[Any]:
        """Return ``num_rows`` rows of zeros, or of empty strings."""

    @abstractmethod
    def batch(self, value: object, num_rows: int) -> NDArray[Any]:
        """Return the rows of a batch in Gymnasium's vector form; may be the value itself."""

    @abstractmethod
    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        """Return single samples as the rows of a new array."""

    @abstractmethod
    def unbatch(self, rows: NDArray[Any]) -> Any:
        """Return rows in Gymnasium's vector form; may be the rows themselves."""

    @abstractmethod
    def sample(self, rows: NDArray[Any], row: int) -> Any:
        """Return one row as ``space.sample()`` would give it, owning its memory."""

    def check_rows(self, rows: NDArray[Any], num_rows: int) -> None:
        """Refuse rows that are not exactly of this leaf.

        Raises:
            CodecError: Another shape or dtype.
        """
        shape = (num_rows, *self.shape)
        if rows.shape != shape or rows.dtype != self.dtype:
            message = f"expected shape {shape}, dtype {self.dtype}, got {describe(rows)}"
            raise CodecError(message, path=self.path)


class FixedLeaf(Leaf):
    """Rows of a fixed size: Box, Discrete, MultiDiscrete."""

    def __init__(
        self,
        space: spaces.Space[Any],
        path: str,
        *,
        dtype: np.dtype[Any],
        wire: np.dtype[Any],
    ) -> None:
        self.path = path
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.dtype = dtype
        self.wire = wire
        self.row_bytes: int = wire.itemsize * int(np.prod(self.shape, dtype=np.int64))
        self.domain: RowCheck | None = domain_check(space)
        self.bounds: RowCheck | None = bounds_check(space)
        # A Discrete space may count in int32 while the wire always counts in int64.
        self._narrow = wire.itemsize != dtype.itemsize

    def encode(self, rows: NDArray[Any], num_rows: int) -> bytes:
        """Return the rows back to back, little-endian."""
        self.check_rows(rows, num_rows)
        return rows.astype(self.wire, copy=False).tobytes()

    def buffer(self, rows: NDArray[Any], num_rows: int) -> bytes | memoryview:
        """Return the memory of contiguous rows themselves."""
        self.check_rows(rows, num_rows)
        flat = np.ascontiguousarray(rows.astype(self.wire, copy=False)).reshape(-1)
        return flat.view(np.uint8).data

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Copy the bytes into a new, writable array."""
        view = self._view(data, num_rows)
        if self._narrow:
            return as_array(view.astype(view.dtype.newbyteorder("=")), self.dtype, self.path)
        return view.astype(self.dtype)

    def view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return the bytes themselves as an array, unless the space counts in another dtype."""
        if self._narrow or self.wire != self.dtype:
            return self.decode(data, num_rows)
        return self._view(data, num_rows)

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        """Copy the bytes over ``out`` without a temporary."""
        view = self._view(data, len(out))
        out[...] = as_array(view, self.dtype, self.path) if self._narrow else view

    def _view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        if len(data) != num_rows * self.row_bytes:
            expected = f"{num_rows * self.row_bytes} bytes ({num_rows} rows of {self.row_bytes})"
            message = f"expected {expected}, got {len(data)}"
            raise CodecError(message, path=self.path)
        return np.ndarray((num_rows, *self.shape), self.wire, data)

    def empty(self, num_rows: int) -> NDArray[Any]:
        """Return rows of zeros."""
        return np.zeros((num_rows, *self.shape), self.dtype)

    def batch(self, value: object, num_rows: int) -> NDArray[Any]:
        """Return an array of shape ``(num_rows, *shape)``; the value itself if it already is."""
        array = as_array(value, self.dtype, self.path)
        if array.shape != (num_rows, *self.shape):
            message = f"expected shape {(num_rows, *self.shape)}, got {array.shape}"
            raise CodecError(message, path=self.path)
        return np.ascontiguousarray(array)

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        """Return the samples as rows; axes of length one may be missing or too many."""
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
            message = f"expected shape {self.shape}, got {array.shape}"
            raise CodecError(message, path=self.path)
        return array.reshape(self.shape)

    def unbatch(self, rows: NDArray[Any]) -> Any:
        """Return the rows themselves."""
        return rows

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        """Return a copy of one row, an array also when 0-d."""
        return rows[row, ...].copy()


class TruthLeaf(FixedLeaf):
    """One byte per element, any byte but 0 counting as 1: bool Box and MultiBinary."""

    def view(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return a new array: bytes other than 0 and 1 are told apart from truth values."""
        return self.decode(data, num_rows)

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return a new array of False and True, or 0 and 1."""
        truth: NDArray[np.bool_] = self._view(data, num_rows) != 0
        return truth.view(self.dtype)

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        """Fill ``out`` with False and True, or 0 and 1."""
        np.not_equal(self._view(data, len(out)), 0, out=out.view(np.bool_))


class ScalarLeaf(FixedLeaf):
    """Discrete: rows are numbers."""

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        """Return the numbers as a new array; an array of one element counts as a number."""
        if self.dtype == _INT64 and all(type(sample) in _WHOLE for sample in samples):
            with contextlib.suppress(OverflowError):  # beyond int64: told apart below
                return np.array(samples, _INT64)
        return super().stack(samples)

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        """Return a numpy integer."""
        return rows[row]


class TextLeaf(Leaf):
    """Rows are Python strings in an object array of shape ``(num_rows,)``."""

    def __init__(self, space: spaces.Text, path: str) -> None:
        self.path = path
        self.shape: tuple[()] = ()
        self.dtype = _OBJECT
        self.row_bytes = 0
        self.domain: RowCheck | None = None
        self.bounds: RowCheck = text_check(space)

    def encode(self, rows: NDArray[Any], num_rows: int) -> bytes:
        """Return the text slab."""
        self.check_rows(rows, num_rows)
        return encode_text_slab(rows.tolist(), self.path)

    def decode(self, data: bytes, num_rows: int) -> NDArray[Any]:
        """Return an object array of new strings."""
        rows = np.empty(num_rows, _OBJECT)
        rows[:] = decode_text_slab(bytes(data), num_rows, self.path)
        return rows

    def decode_into(self, data: bytes, out: NDArray[Any]) -> None:
        """Fill ``out`` with new strings."""
        out[:] = decode_text_slab(bytes(data), len(out), self.path)

    def empty(self, num_rows: int) -> NDArray[Any]:
        """Return rows of empty strings."""
        return np.full(num_rows, "", _OBJECT)

    def batch(self, value: object, num_rows: int) -> NDArray[Any]:
        """Return the strings of a tuple, list or array of ``num_rows`` of them."""
        # A str is a sequence of str too; taking it apart would never be meant.
        if sequence_length(value) != num_rows:
            message = f"expected a tuple of {num_rows} str, got {describe(value)}"
            raise CodecError(message, path=self.path)
        return self.stack(cast("Sequence[object]", value))

    def stack(self, samples: Sequence[object]) -> NDArray[Any]:
        """Return the strings as an object array."""
        rows = np.empty(len(samples), _OBJECT)
        for row, sample in enumerate(samples):
            if not isinstance(sample, str):
                message = f"expected a str in row {row}, got {describe(sample)}"
                raise CodecError(message, path=self.path)
            rows[row] = str(sample)
        return rows

    def unbatch(self, rows: NDArray[Any]) -> Any:
        """Return a tuple of ``str``."""
        return tuple(rows.tolist())

    def sample(self, rows: NDArray[Any], row: int) -> Any:
        """Return the ``str``."""
        return rows[row]


@singledispatch
def compile_leaf(space: object, path: str) -> Leaf:
    """Return the codec of a fundamental space; one registered function per class.

    Raises:
        UnsupportedSpaceError: The space, or its dtype, has no form on the wire.
    """
    raise UnsupportedSpaceError(f"no codec for a {type(space).__name__} space", path=path)


@compile_leaf.register(spaces.Box)
def _box(space: spaces.Box[Any], path: str) -> Leaf:
    encode_dtype(space.dtype, path)
    dtype: np.dtype[Any] = space.dtype.newbyteorder("=")
    if dtype.kind == "b":
        return TruthLeaf(space, path, dtype=dtype, wire=np.dtype(np.uint8))
    return FixedLeaf(space, path, dtype=dtype, wire=wire_dtype(dtype))


@compile_leaf.register(spaces.Discrete)
def _discrete(space: spaces.Discrete[Any], path: str) -> Leaf:
    dtype = np.dtype(space.dtype).newbyteorder("=")
    return ScalarLeaf(space, path, dtype=dtype, wire=wire_dtype(_INT64))


@compile_leaf.register(spaces.MultiBinary)
def _multi_binary(space: spaces.MultiBinary, path: str) -> Leaf:
    return TruthLeaf(space, path, dtype=np.dtype(np.int8), wire=np.dtype(np.uint8))


@compile_leaf.register(spaces.MultiDiscrete)
def _multi_discrete(space: spaces.MultiDiscrete[Any], path: str) -> Leaf:
    dtype = np.dtype(space.dtype).newbyteorder("=")
    return FixedLeaf(space, path, dtype=dtype, wire=wire_dtype(_INT64))


@compile_leaf.register(spaces.Text)
def _text(space: spaces.Text, path: str) -> Leaf:
    return TextLeaf(space, path)
