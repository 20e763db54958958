"""Hypothesis strategies for spaces, their values, free-form metadata and hostile messages."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from gymnasium import spaces as gym_spaces
from hypothesis import strategies as st

from rlmesh_gym._proto.spaces.v1 import spaces_pb2, value_pb2
from rlmesh_gym.codec import SpaceCodec
from tests.catalogue import DTYPES, ordered_dict_space

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves

__all__ = [
    "leaves_of",
    "metadata",
    "mutated",
    "parsed",
    "space_specs",
    "space_values",
    "spaces",
    "values_of",
]

_M = TypeVar("_M", bound=Message)

_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
_NON_EMPTY_SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
_KEYS = st.text(max_size=4)
_INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def boxes(draw: st.DrawFn) -> gym_spaces.Box:
    """Box spaces of every dtype and form of bounds."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(_SHAPES)
    size = int(np.prod(shape, dtype=np.int64))
    count = draw(st.sampled_from([1, size])) if size else 1
    if dtype.kind == "f":
        element = st.integers(0, 2 ** (8 * dtype.itemsize) - 1).map(
            lambda bits: np.nan_to_num(
                np.uint64(bits).astype(f"u{dtype.itemsize}").view(dtype),
                nan=0.0,
                posinf=np.inf,
                neginf=-np.inf,
            )
        )
    elif dtype.kind == "b":
        element = st.booleans()
    else:
        # 2**63 - 1 for uint64: older Gymnasium checks the bounds as int64.
        info = np.iinfo(dtype)
        element = st.integers(int(info.min), min(int(info.max), 2**63 - 1))
    bounds = st.lists(element, min_size=count, max_size=count)
    first, second = np.array(draw(bounds), dtype), np.array(draw(bounds), dtype)
    low, high = np.minimum(first, second), np.maximum(first, second)
    if dtype.kind == "f":
        # A box from inf to inf is legal for Gymnasium but cannot be sampled.
        low[np.isposinf(low)], high[np.isneginf(high)] = 0, 0
    return gym_spaces.Box(
        np.broadcast_to(low, size).reshape(shape).copy(),
        np.broadcast_to(high, size).reshape(shape).copy(),
        shape,
        dtype.type,
    )


@st.composite
def texts(draw: st.DrawFn) -> gym_spaces.Text:
    """Text spaces with and without a charset."""
    shortest = draw(st.integers(0, 3))
    longest = shortest + draw(st.integers(0, 5))
    charset = draw(st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=6))
    if charset is None:
        return gym_spaces.Text(longest, min_length=shortest)
    return gym_spaces.Text(longest, min_length=shortest, charset=frozenset(charset))


def _discretes() -> st.SearchStrategy[gym_spaces.Space[Any]]:
    starts = st.integers(-(2**40), 2**40)
    return st.builds(
        lambda n, start: gym_spaces.Discrete(n, start=start), st.integers(1, 2**40), starts
    )


def _multi_discretes() -> st.SearchStrategy[gym_spaces.Space[Any]]:
    return _NON_EMPTY_SHAPES.flatmap(
        lambda shape: st.lists(
            st.integers(1, 2**31), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
        ).map(lambda nvec: gym_spaces.MultiDiscrete(np.array(nvec).reshape(shape)))
    )


def _multi_binaries() -> st.SearchStrategy[gym_spaces.Space[Any]]:
    return _NON_EMPTY_SHAPES.map(
        lambda shape: gym_spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    )


def spaces() -> st.SearchStrategy[gym_spaces.Space[Any]]:
    """All spaces that the wire knows, nested."""
    fundamental = st.one_of(boxes(), texts(), _discretes(), _multi_discretes(), _multi_binaries())
    return st.recursive(
        fundamental,
        lambda inner: (
            st.lists(inner, max_size=3).map(gym_spaces.Tuple)
            | st.dictionaries(_KEYS, inner, max_size=3).map(ordered_dict_space)
        ),
        max_leaves=5,
    )


def values_of(space: gym_spaces.Space[Any]) -> st.SearchStrategy[Any]:
    """Legal single samples of a space; the space itself is left alone."""

    def sample(seed: int) -> Any:
        fresh = copy.deepcopy(space)
        fresh.seed(seed)
        return fresh.sample()

    return st.integers(0, 2**31 - 1).map(sample)


def leaves_of(codec: SpaceCodec, num_rows: int) -> st.SearchStrategy[Leaves]:
    """Leaves of any content that fits the layout: all bit patterns, NaN payloads included."""

    def rows_of(empty: np.ndarray[Any, np.dtype[Any]]) -> st.SearchStrategy[Any]:
        if empty.dtype == object:
            texts = st.lists(st.text(max_size=5), min_size=num_rows, max_size=num_rows)
            return texts.map(lambda rows: np.array(rows, object).reshape(num_rows))
        if empty.dtype in (np.bool_, np.int8):  # int8 may be MultiBinary; keep both in 0 and 1
            bits = st.binary(min_size=empty.nbytes, max_size=empty.nbytes)
            return bits.map(
                lambda data: (np.frombuffer(data, "u1") & 1).view(empty.dtype).reshape(empty.shape)
            )
        return st.binary(min_size=empty.nbytes, max_size=empty.nbytes).map(
            lambda data: np.frombuffer(data, empty.dtype).reshape(empty.shape).copy()
        )

    return st.tuples(*map(rows_of, codec.empty(num_rows))).map(list)


def metadata() -> st.SearchStrategy[dict[str, Any]]:
    """Dicts of plain values that come back from the wire equal."""
    plain = st.one_of(
        st.none(), st.booleans(), _INT64, st.floats(), st.text(max_size=8), st.binary(max_size=8)
    )
    nested = st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
        max_leaves=8,
    )
    return st.dictionaries(_KEYS, nested, max_size=4)


def parsed(message_type: type[_M]) -> st.SearchStrategy[_M]:
    """Whatever messages of a type arbitrary bytes parse to."""
    return st.binary(max_size=200).map(lambda data: _parse(message_type, data))


def mutated(message: _M) -> st.SearchStrategy[_M]:
    """Messages that differ from a valid one in a few bytes."""
    valid = message.SerializeToString(deterministic=True)
    edits = st.lists(
        st.tuples(st.integers(0, max(0, len(valid) - 1)), st.binary(max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    )

    def apply(edits: list[tuple[int, bytes, int]]) -> _M:
        data = valid
        for at, inserted, removed in edits:
            data = data[:at] + inserted + data[at + removed :]
        return _parse(type(message), data)

    return edits.map(apply)


def space_values() -> st.SearchStrategy[value_pb2.SpaceValue]:
    """Values of arbitrary leaves."""
    leaves = st.lists(st.binary(max_size=64), max_size=6)
    return leaves.map(lambda data: value_pb2.SpaceValue(leaves=data))


def space_specs() -> st.SearchStrategy[spaces_pb2.SpaceSpec]:
    """Well-formed messages of arbitrary content, most of them no valid space."""
    small = st.integers(-2, 9)
    any_int = small | st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)])
    raw = st.binary(max_size=16)
    box = st.one_of(
        st.just(spaces_pb2.BoxSpec()),
        st.booleans().map(lambda flag: spaces_pb2.BoxSpec(unbounded=flag)),
        st.builds(
            lambda low, high: spaces_pb2.BoxSpec(
                uniform=spaces_pb2.UniformBounds(low=low, high=high)
            ),
            raw,
            raw,
        ),
        st.builds(
            lambda low, high: spaces_pb2.BoxSpec(
                elementwise=spaces_pb2.ElementwiseBounds(low=low, high=high)
            ),
            raw,
            raw,
        ),
    )
    kinds = st.one_of(
        st.just({}),
        box.map(lambda spec: {"box": spec}),
        st.builds(
            lambda n, start: {"discrete": spaces_pb2.DiscreteSpec(n=n, start=start)},
            any_int,
            any_int,
        ),
        st.just({"multi_binary": spaces_pb2.MultiBinarySpec()}),
        st.lists(any_int, max_size=6).map(
            lambda nvec: {"multi_discrete": spaces_pb2.MultiDiscreteSpec(nvec=nvec)}
        ),
        st.builds(
            lambda low, high, charset: {
                "text": spaces_pb2.TextSpec(min_length=low, max_length=high, charset=charset)
            },
            any_int,
            any_int,
            st.text(max_size=4),
        ),
    )
    dtypes = st.integers(0, 13) | st.sampled_from([99, -1, 2**31 - 1])

    def spec(shape: list[int], dtype: int, kind: dict[str, Any]) -> spaces_pb2.SpaceSpec:
        return spaces_pb2.SpaceSpec(shape=shape, dtype=dtype, **kind)  # type: ignore[arg-type]

    shapes = st.lists(any_int, max_size=3) | st.lists(st.just(1), min_size=30, max_size=70)
    flat = st.builds(spec, shapes, dtypes, kinds)
    return st.recursive(
        flat,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(
                lambda members: spaces_pb2.SpaceSpec(tuple=spaces_pb2.TupleSpec(spaces=members))
            ),
            st.builds(
                lambda keys, members: spaces_pb2.SpaceSpec(
                    dict=spaces_pb2.DictSpec(keys=keys, spaces=members)
                ),
                st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
                st.lists(inner, max_size=3),
            ),
        ),
        max_leaves=6,
    )


def _parse(message_type: type[_M], data: bytes) -> _M:
    """Parse the longest prefix that is a message; arbitrary bytes mostly are none."""
    for end in range(len(data), 0, -1):
        # protobuf's pure Python parser says of text that is no UTF-8 what Python says of it.
        with contextlib.suppress(DecodeError, UnicodeDecodeError):
            return message_type.FromString(data[:end])
    return message_type()
