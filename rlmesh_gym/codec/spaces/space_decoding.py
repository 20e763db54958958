"""``SpaceSpec`` messages to Gymnasium spaces.

Nothing in a message is trusted: what Gymnasium would refuse, or what no message could carry a value
of, is a ``CodecError`` before memory is spent on it.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym._proto.spaces.v1 import spaces_pb2, types_pb2
from rlmesh_gym.codec.spaces.dtypes import data_type_name, decode_dtype, wire_dtype
from rlmesh_gym.codec.spaces.limits import (
    MAX_MESSAGE_BYTES,
    MAX_SPACE_DEPTH,
    MAX_SPACE_MEMBERS,
    max_space_bytes,
)
from rlmesh_gym.codec.spaces.text import UnrestrictedText
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


# Gymnasium sorts the keys of a plain dict unless told otherwise, which it can be since 1.4.
_CAN_KEEP_ORDER = "sort_keys" in inspect.signature(spaces.Dict.__init__).parameters

_DISCRETE_HAS_DTYPE = "dtype" in inspect.signature(spaces.Discrete.__init__).parameters
_INT64_MAX = np.iinfo(np.int64).max

_MAX_RANK = 31  # numpy 1.x stops at 32 axes, and a batch has one more


def decode_space(spec: spaces_pb2.SpaceSpec, path: str = "$") -> spaces.Space[Any]:
    """Build the space that a message describes.

    Args:
        spec: The description.
        path: Where the space stands; prefix of the paths in errors.

    Returns:
        A new, unseeded space. Dict keys are in the order of the message. A Text without charset
        becomes an ``UnrestrictedText``, which accepts every character.

    Raises:
        CodecError: No kind or dtype set, bounds missing or of the wrong length, shapes that are
            negative or too large for any message, empty ranges, duplicate keys, nesting too deep.
    """
    return _Decoder().decode(spec, path, 0)


class _Decoder:
    """One decoding run; counts the bytes of a row, since each must fit in a message."""

    def __init__(self) -> None:
        self._row_bytes = 0
        self._bounds_bytes = 0
        self._members = 0
        self._max_bounds_bytes = max_space_bytes()

    def decode(self, spec: spaces_pb2.SpaceSpec, path: str, depth: int) -> spaces.Space[Any]:
        kind = spec.WhichOneof("spec")
        self._members += 1
        if self._members > MAX_SPACE_MEMBERS:
            raise CodecError(f"more than {MAX_SPACE_MEMBERS} spaces in one", path=path)
        if kind is None:
            raise CodecError("the space has no kind", path=path)
        has_members = kind in ("dict", "tuple")
        if has_members and depth >= MAX_SPACE_DEPTH:
            raise CodecError(f"nested more than {MAX_SPACE_DEPTH} levels deep", path=path)
        build: Callable[..., spaces.Space[Any]] = getattr(self, f"_{kind}")
        try:
            return build(spec, path, depth + 1) if has_members else build(spec, path)
        except CodecError:
            raise
        except (AssertionError, OverflowError, TypeError, ValueError) as error:
            # What Gymnasium's own constructors refuse, such as low above high or NaN bounds.
            raise CodecError(f"not a valid {kind} space: {error}", path=path) from error

    def _box(self, spec: spaces_pb2.SpaceSpec, path: str) -> spaces.Space[Any]:
        dtype = decode_dtype(spec.dtype, path)
        # Two bounds, and whether there are any; those that came one by one have been paid for.
        kept = 0 if spec.box.HasField("elementwise") else 2 * dtype.itemsize + 2
        shape = self._shape(spec, dtype.itemsize, path, kept=kept)
        low, high = _bounds(spec.box, shape, dtype, path)
        space = spaces.Box(low, high, shape, dtype)  # type: ignore[arg-type,unused-ignore]
        if dtype == np.int64:
            # Box(-inf, inf, dtype=int64) comes as the full range. Sampling that uniformly
            # overflows in Gymnasium; marked as unbounded it samples as the original does.
            info = np.iinfo(dtype)
            space.bounded_below &= space.low != info.min
            space.bounded_above &= space.high != info.max
        return space

    def _discrete(self, spec: spaces_pb2.SpaceSpec, path: str) -> spaces.Space[Any]:
        dtype = self._integers(spec, path)
        self._expect_scalar(spec, path)
        n, start = spec.discrete.n, spec.discrete.start
        info = np.iinfo(dtype)  # type: ignore[type-var,unused-ignore]
        if n < 1 or start < info.min or start + n - 1 > min(info.max, _INT64_MAX):
            raise CodecError(f"expected a range in {dtype}, got n={n}, start={start}", path=path)
        if _DISCRETE_HAS_DTYPE:
            return spaces.Discrete(n, start=start, dtype=dtype)  # type: ignore[arg-type,unused-ignore]
        return spaces.Discrete(n, start=start)

    def _multi_binary(self, spec: spaces_pb2.SpaceSpec, path: str) -> spaces.Space[Any]:
        self._expect_uint8(spec, path)
        shape = self._shape(spec, 1, path)
        # MultiBinary(5) and MultiBinary((5,)) have equal values but do not compare equal.
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)

    def _multi_discrete(self, spec: spaces_pb2.SpaceSpec, path: str) -> spaces.Space[Any]:
        dtype = self._integers(spec, path)
        shape = self._shape(spec, 8, path)
        size = math.prod(shape)
        numbers: NDArray[np.int64] = np.array(spec.multi_discrete.nvec, dtype=np.int64)
        if numbers.size not in {size, 2 * size}:
            message = f"expected {size} entries in nvec for shape {shape}, got {numbers.size}"
            raise CodecError(message, path=path)
        nvec, start = numbers[:size].reshape(shape), numbers[size:]
        info = np.iinfo(dtype)  # type: ignore[type-var,unused-ignore]
        highest = min(info.max, _INT64_MAX)
        last = np.maximum(nvec.ravel(), 1) - 1
        is_outside = (nvec > highest).any() or (start < info.min).any()
        if is_outside or (start.size and (start > highest - last).any()):
            raise CodecError(f"expected ranges in {dtype}", path=path)
        return spaces.MultiDiscrete(
            nvec,
            dtype=dtype,  # type: ignore[arg-type,unused-ignore]
            start=start.reshape(shape) if start.size else None,
        )

    def _text(self, spec: spaces_pb2.SpaceSpec, path: str) -> spaces.Space[Any]:
        self._expect_uint8(spec, path)
        self._expect_scalar(spec, path)
        text = spec.text
        self._count(max(text.min_length, 0), f"min_length {text.min_length}", path)
        if not text.charset:
            return UnrestrictedText(text.max_length, min_length=text.min_length)
        charset = "".join(sorted(set(text.charset)))
        return spaces.Text(text.max_length, min_length=text.min_length, charset=charset)

    def _dict(self, spec: spaces_pb2.SpaceSpec, path: str, depth: int) -> spaces.Space[Any]:
        keys, children = list(spec.dict.keys), spec.dict.spaces
        if len(keys) != len(children):
            message = f"expected one space per key, got {len(keys)} keys and {len(children)} spaces"
            raise CodecError(message, path=path)
        if len(set(keys)) != len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise CodecError(f"duplicate key {twice!r}", path=path)
        members = {
            key: self.decode(child, f"{path}.{key}", depth)
            for key, child in zip(keys, children, strict=True)
        }
        if _CAN_KEEP_ORDER:
            return spaces.Dict(members, sort_keys=False)
        return spaces.Dict(OrderedDict(members))

    def _tuple(self, spec: spaces_pb2.SpaceSpec, path: str, depth: int) -> spaces.Space[Any]:
        members = enumerate(spec.tuple.spaces)
        return spaces.Tuple([self.decode(child, f"{path}[{at}]", depth) for at, child in members])

    def _shape(
        self, spec: spaces_pb2.SpaceSpec, itemsize: int, path: str, *, kept: int = 0
    ) -> tuple[int, ...]:
        shape = tuple(spec.shape)
        if len(shape) > _MAX_RANK:
            raise CodecError(f"expected at most {_MAX_RANK} axes, got {len(shape)}", path=path)
        if any(length < 0 for length in shape):
            raise CodecError(f"expected a shape, got {shape}", path=path)
        # Without its zeros: numpy refuses (0, 2**62) although it has no elements.
        size = math.prod(length or 1 for length in shape)
        self._count(itemsize * size, f"shape {shape}", path)
        self._bounds_bytes += kept * size
        if self._bounds_bytes > self._max_bounds_bytes:
            raise CodecError(
                f"with shape {shape}, its bounds take more than {self._max_bounds_bytes} bytes; if "
                "this space is meant, raise RLMESH_GYM_MAX_SPACE_BYTES",
                path=path,
            )
        return shape

    def _count(self, num_bytes: int, what: str, path: str) -> None:
        self._row_bytes += num_bytes
        if self._row_bytes > MAX_MESSAGE_BYTES:
            message = f"with {what}, one row takes more than {MAX_MESSAGE_BYTES} bytes"
            raise CodecError(message, path=path)

    @staticmethod
    def _integers(spec: spaces_pb2.SpaceSpec, path: str) -> np.dtype[Any]:
        dtype = decode_dtype(spec.dtype, path)
        if dtype.kind not in "iu":
            name = data_type_name(spec.dtype)
            raise CodecError(f"expected INT64 or another integer type, got {name}", path=path)
        return dtype

    @staticmethod
    def _expect_uint8(spec: spaces_pb2.SpaceSpec, path: str) -> None:
        if spec.dtype != types_pb2.DATA_TYPE_UINT8:
            raise CodecError(f"expected UINT8, got {data_type_name(spec.dtype)}", path=path)

    @staticmethod
    def _expect_scalar(spec: spaces_pb2.SpaceSpec, path: str) -> None:
        if spec.shape:
            raise CodecError(f"expected no shape, got {tuple(spec.shape)}", path=path)


def _bounds(
    box: spaces_pb2.BoxSpec, shape: tuple[int, ...], dtype: np.dtype[Any], path: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    kind = box.WhichOneof("bounds")
    if kind == "elementwise":
        size = math.prod(shape)
        low = _bound(box.elementwise.low, size, dtype, f"{path}.low").reshape(shape)
        high = _bound(box.elementwise.high, size, dtype, f"{path}.high").reshape(shape)
        return low, high
    ends: tuple[Any, Any]
    if kind == "uniform":
        low = _bound(box.uniform.low, 1, dtype, f"{path}.low")
        high = _bound(box.uniform.high, 1, dtype, f"{path}.high")
        ends = low[0], high[0]
    elif kind == "unbounded" and box.unbounded and dtype.kind == "f":
        ends = -np.inf, np.inf
    elif kind == "unbounded" and box.unbounded:
        ends = (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    else:
        raise CodecError("the box has no bounds", path=path)
    low, high = (np.asarray(end, dtype) for end in ends)
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)  # The space makes copies.


def _bound(data: bytes, size: int, dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    if len(data) != size * dtype.itemsize:
        message = f"expected {size * dtype.itemsize} bytes ({size} {dtype}), got {len(data)}"
        raise CodecError(message, path=path)
    if dtype.kind == "b":
        truth: NDArray[np.bool_] = np.frombuffer(data, np.uint8) != 0
        return truth
    return np.frombuffer(data, wire_dtype(dtype)).astype(dtype)
