"""Gymnasium spaces to ``SpaceSpec`` messages.

A ``Dict`` keeps the key order in which it is declared: that order is the order of the leaves.

Messages are made in the form of the capability ``rlmesh_gym.spaces``, which differs from that of
the released package in two places only: Discrete and MultiDiscrete name their own dtype (there
always INT64), and the ``nvec`` of a MultiDiscrete with a start other than 0 is followed by the
start. ``plain_integers`` makes the released form of it. Values are int64 in both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym._proto.spaces.v1 import spaces_pb2, types_pb2
from rlmesh_gym.codec.spaces.cast import describe
from rlmesh_gym.codec.spaces.dtypes import encode_dtype, wire_dtype
from rlmesh_gym.codec.spaces.limits import MAX_SPACE_DEPTH
from rlmesh_gym.codec.spaces.text import wire_charset
from rlmesh_gym.errors import UnsupportedSpaceError


def encode_space(space: spaces.Space[Any], path: str = "$") -> spaces_pb2.SpaceSpec:
    """Describe a space for the wire.

    The released ``rlmesh`` 0.1.0 has a form for all of these too, but its clients refuse a Box
    without axes or without elements, a Text that may be empty, and the empty string as a Dict key.

    Args:
        space: Box, Discrete, MultiBinary, MultiDiscrete, Text, or a Dict or Tuple of these.
        path: Where the space stands; prefix of the paths in errors.

    Returns:
        A new message. Bounds are little-endian bytes; the dtype of MultiBinary is always UINT8.

    Raises:
        UnsupportedSpaceError: The space, or one inside it, has no form on the wire: Graph,
            Sequence, OneOf, custom spaces, ``longdouble``, Dict keys that are not strings.
    """
    spec = spaces_pb2.SpaceSpec()
    _fill(space, spec, path, 0)
    return spec


def plain_integers(spec: spaces_pb2.SpaceSpec, path: str = "$") -> None:
    """Change a message of ``encode_space`` into the form that the released package reads."""
    kind = spec.WhichOneof("spec")
    if kind == "dict":
        for key, child in zip(spec.dict.keys, spec.dict.spaces, strict=True):
            plain_integers(child, f"{path}.{key}")
    elif kind == "tuple":
        for index, child in enumerate(spec.tuple.spaces):
            plain_integers(child, f"{path}[{index}]")
    elif kind in ("discrete", "multi_discrete"):
        spec.dtype = types_pb2.DATA_TYPE_INT64
        nvec = spec.multi_discrete.nvec
        if len(nvec) > math.prod(spec.shape):
            start = list(nvec[math.prod(spec.shape) :])
            message = (
                f"the other end does not know a MultiDiscrete with start {start}; let it start at "
                "0 and add the offset in the environment"
            )
            raise UnsupportedSpaceError(message, path=path)


def _fill(space: object, spec: spaces_pb2.SpaceSpec, path: str, depth: int) -> None:
    """Describe ``space`` in ``spec``."""
    match space:
        case spaces.Box():
            _fill_box(space, spec, path)
        case spaces.Discrete():
            spec.dtype = encode_dtype(space.dtype, path)
            spec.discrete.n = int(space.n)
            spec.discrete.start = int(space.start)
        case spaces.MultiBinary():
            spec.shape.extend(space.shape)
            spec.dtype = types_pb2.DATA_TYPE_UINT8
            spec.multi_binary.SetInParent()
        case spaces.MultiDiscrete():
            spec.shape.extend(space.shape)
            spec.dtype = encode_dtype(space.dtype, path)
            spec.multi_discrete.SetInParent()
            spec.multi_discrete.nvec.extend(space.nvec.ravel().tolist())
            if np.any(space.start):
                spec.multi_discrete.nvec.extend(space.start.ravel().tolist())
        case spaces.Text():
            _fill_text(space, spec, path)
        case spaces.Dict() | spaces.Tuple():
            _fill_members(space, spec, path, depth)
        case spaces.Space():
            message = (
                f"a {type(space).__name__} space has no form on the wire, which knows Box, "
                "Discrete, MultiBinary, MultiDiscrete, Text, Dict and Tuple"
            )
            raise UnsupportedSpaceError(message, path=path)
        case _:
            message = f"expected a gymnasium space, got a {type(space).__name__}"
            raise UnsupportedSpaceError(message, path=path)


def _fill_box(space: spaces.Box[Any], spec: spaces_pb2.SpaceSpec, path: str) -> None:
    spec.shape.extend(space.shape)
    spec.dtype = encode_dtype(space.dtype, path)
    low, high = space.low, space.high
    if space.dtype.kind == "f" and np.isneginf(low).all() and np.isposinf(high).all():
        spec.box.unbounded = True  # also without elements, of which all is true
        return
    all_low, all_high = (one.astype(wire_dtype(one.dtype)).tobytes() for one in (low, high))
    # Equal bytes count, not equal numbers: -0.0 next to 0.0 would come back changed.
    first_low, first_high = all_low[: low.itemsize], all_high[: high.itemsize]
    if low.size and first_low * low.size == all_low and first_high * high.size == all_high:
        spec.box.uniform.low = first_low
        spec.box.uniform.high = first_high
    else:
        spec.box.elementwise.low = all_low
        spec.box.elementwise.high = all_high


def _fill_text(space: spaces.Text, spec: spaces_pb2.SpaceSpec, path: str) -> None:
    spec.dtype = types_pb2.DATA_TYPE_UINT8
    spec.text.SetInParent()
    spec.text.min_length = space.min_length
    spec.text.max_length = space.max_length
    if not space.character_set and space.max_length > 0:
        message = "a Text without characters has no form on the wire: an empty charset means any"
        raise UnsupportedSpaceError(message, path=path)
    try:
        spec.text.charset = wire_charset(space)
    except ValueError as error:  # UnicodeEncodeError is one
        message = f"the charset is not Unicode text: {error}"
        raise UnsupportedSpaceError(message, path=path) from None


def _fill_members(
    space: spaces.Dict | spaces.Tuple[Any], spec: spaces_pb2.SpaceSpec, path: str, depth: int
) -> None:
    if depth >= MAX_SPACE_DEPTH:
        raise UnsupportedSpaceError(f"nested more than {MAX_SPACE_DEPTH} levels deep", path=path)
    if isinstance(space, spaces.Tuple):
        spec.tuple.SetInParent()
        for index, child in enumerate(space.spaces):
            _fill(child, spec.tuple.spaces.add(), f"{path}[{index}]", depth + 1)
        return
    spec.dict.SetInParent()
    for key, child in space.spaces.items():
        if not isinstance(key, str):
            message = f"expected str keys in a Dict, got {describe(key)}"
            raise UnsupportedSpaceError(message, path=path)
        try:
            spec.dict.keys.append(key)
        except ValueError as error:
            message = f"the Dict key {key!r} is not Unicode text: {error}"
            raise UnsupportedSpaceError(message, path=path) from None
        _fill(child, spec.dict.spaces.add(), f"{path}.{key}", depth + 1)


def same_space(first: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Return whether two spaces are the same in all that matters to their values.

    Stricter than ``==``: dtypes and bounds are the same to the last bit, and the keys of a Dict
    are in the same order.

    Raises:
        UnsupportedSpaceError: One of them has no form on the wire.
    """
    return first is other or encode_space(first) == encode_space(other)
