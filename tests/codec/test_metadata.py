"""Free-form dicts to the wire and back."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym._proto.spaces.v1 import meta_pb2
from rlmesh_gym.codec import (
    decode_meta_map,
    encode_meta_map,
)
from rlmesh_gym.codec.spaces.limits import MAX_META_DEPTH
from rlmesh_gym.errors import CodecError
from tests import strategies
from tests.lengths import shortened


class Point(NamedTuple):
    x: int
    y: float


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Tag(str, enum.Enum):
    A = "a"


@dataclasses.dataclass
class Pose:
    position: tuple[float, ...]
    name: str = "home"


class WithToList:
    def tolist(self) -> list[int]:
        return [1, 2]


VALUES: dict[str, tuple[Any, str | None, Any]] = {
    "none": (None, None, None),
    "true": (True, "bool", True),
    "np_bool": (np.bool_(False), "bool", False),
    "int": (-(2**63), "integer", -(2**63)),
    "zero": (0, "integer", 0),
    "np_int8": (np.int8(-3), "integer", -3),
    "np_uint64": (np.uint64(2**63 - 1), "integer", 2**63 - 1),
    "int_enum": (Level.HIGH, "integer", 3),
    "float": (0.5, "number", 0.5),
    "infinity": (-math.inf, "number", -math.inf),
    "np_float16": (np.float16(0.5), "number", 0.5),
    "np_float32": (np.float32(0.1), "number", float(np.float32(0.1))),
    "np_longdouble": (np.longdouble(0.5), "number", 0.5),
    "decimal": (decimal.Decimal("0.25"), "number", 0.25),
    "str": ("a☃\0", "text", "a☃\0"),
    "empty_str": ("", "text", ""),
    "np_str": (np.str_("ab"), "text", "ab"),
    "str_enum": (Tag.A, "text", "a"),
    "enum": (Colour.RED, "text", "red"),
    "path": (pathlib.PurePosixPath("/data/run 1"), "text", "/data/run 1"),
    "date": (dt.date(2020, 1, 2), "text", "2020-01-02"),
    "datetime": (dt.datetime(2020, 1, 2, 3, 4, 5), "text", "2020-01-02T03:04:05"),
    "np_datetime": (np.datetime64("2020-01-02"), "text", "2020-01-02"),
    "bytes": (b"\0\xff", "bytes", b"\0\xff"),
    "np_bytes": (np.bytes_(b"ab"), "bytes", b"ab"),
    "bytearray": (bytearray(b"ab"), "bytes", b"ab"),
    "list": ([1, "a", None], "list", [1, "a", None]),
    "empty_list": ([], "list", []),
    "tuple": ((1, 2.0), "list", [1, 2.0]),
    "range": (range(3), "list", [0, 1, 2]),
    "deque": (collections.deque([1, 2]), "list", [1, 2]),
    "set": ({3, 1, 20}, "list", [1, 3, 20]),
    "frozenset": (frozenset({"b", "a"}), "list", ["a", "b"]),
    "mixed_set": ({"a", 1}, "list", ["a", 1]),
    "memoryview": (memoryview(b"\1\2"), "list", [1, 2]),
    "array": (array.array("i", [1, 2]), "list", [1, 2]),
    "tolist": (WithToList(), "list", [1, 2]),
    "ndarray": (np.array([[1, 2], [3, 4]]), "list", [[1, 2], [3, 4]]),
    "ndarray_float": (np.array([0.5, np.inf], "f4"), "list", [0.5, math.inf]),
    "ndarray_uint8": (np.array([1, 255], "u1"), "list", [1, 255]),
    "ndarray_bool": (np.array([True, False]), "list", [True, False]),
    "ndarray_str": (np.array(["a", "bc"]), "list", ["a", "bc"]),
    "ndarray_bytes": (np.array([b"a", b"bc"]), "list", [b"a", b"bc"]),
    "ndarray_object": (np.array([None, {"k": 1}], object), "list", [None, {"k": 1}]),
    "ndarray_longdouble": (np.array([0.5], np.longdouble), "list", [0.5]),
    "ndarray_dates": (np.array(["2020-01-02"], "M8[D]"), "list", ["2020-01-02"]),
    "ndarray_0d": (np.array(3), "integer", 3),
    "ndarray_0d_bool": (np.array(True), "bool", True),
    "ndarray_empty": (np.zeros((0, 3)), "list", []),
    "ndarray_empty_rows": (np.zeros((2, 0)), "list", [[], []]),
    "ndarray_swapped": (np.array([1, 2], np.dtype("i4").newbyteorder()), "list", [1, 2]),
    "record": (np.array((1, 0.5), [("a", "i4"), ("b", "f8")])[()], "list", [1, 0.5]),
    "dict": ({"b": {"c": [1]}, "": 2}, "map", {"b": {"c": [1]}, "": 2}),
    "empty_dict": ({}, "map", {}),
    "ordered_dict": (collections.OrderedDict(a=1), "map", {"a": 1}),
    "defaultdict": (collections.defaultdict(int, a=1), "map", {"a": 1}),
    "mapping_proxy": (types.MappingProxyType({"a": 1}), "map", {"a": 1}),
    "np_str_key": ({np.str_("a"): 1}, "map", {"a": 1}),
    "named_tuple": (Point(1, 2.0), "map", {"x": 1, "y": 2.0}),
    "dataclass": (Pose((1.0, 2.0)), "map", {"position": [1.0, 2.0], "name": "home"}),
}


@pytest.mark.parametrize(("value", "kind", "back"), VALUES.values(), ids=VALUES.keys())
def test_values(value: Any, kind: str | None, back: Any) -> None:
    message = encode_meta_map({"k": value})
    assert message.entries["k"].WhichOneof("kind") == kind
    decoded = decode_meta_map(message)["k"]
    assert decoded == back
    assert type(decoded) is type(back)
    in_map = meta_pb2.MetaMap.FromString(encode_meta_map({"k": value}).SerializeToString())
    assert repr(decode_meta_map(in_map)) == repr(_sorted({"k": back}))


def test_nan() -> None:
    assert math.isnan(decode_meta_map(encode_meta_map({"k": np.float32("nan")}))["k"])


class _Endless:
    def tolist(self) -> _Endless:
        return self


class _Broken:
    def tolist(self) -> list[int]:
        raise RuntimeError("on another device")


_LOOP: dict[str, Any] = {}
_LOOP["again"] = [_LOOP]
_OBJECT_LOOP = np.empty((), object)
_OBJECT_LOOP[()] = _OBJECT_LOOP

REFUSED: dict[str, tuple[Any, str]] = {
    "large": (2**63, "expected an integer in int64, got the int 9223372036854775808"),
    "small": (-(2**63) - 1, "expected an integer in int64"),
    "enormous": (10**6000, "expected an integer in int64, got an int of"),
    "np_uint64": (np.uint64(2**63), "expected an integer in int64"),
    "array_uint64": (np.array([1, 2**63], np.uint64), "expected an integer in int64"),
    "complex": (1j, "a complex is not supported"),
    "np_complex": (np.complex64(1j), "a complex is not supported"),
    "timedelta": (dt.timedelta(1), "a timedelta is not supported"),
    "np_timedelta": (np.array([1], "m8[s]"), "dtype timedelta64.* is not supported"),
    "np_timedelta_scalar": (np.timedelta64(1, "s"), "dtype timedelta64.* is not supported"),
    "object": (object(), "a object is not supported"),
    "function": (len, "a builtin_function_or_method is not supported"),
    "type": (Pose, "a type is not supported"),
    "array_type": (np.ndarray, "a type is not supported"),
    "iterator": (iter(()), "a tuple_iterator is not supported"),
    "int_key": ({1: 2}, "expected str keys, got the int 1"),
    "none_key": ({None: 2}, "expected str keys, got a NoneType"),
    "surrogate": ("\ud800", "not Unicode"),
    "surrogate_key": ({"\ud800": 1}, "not Unicode"),
    "signalling_nan": (decimal.Decimal("sNaN"), "is not a number for float64"),
    "broken": (_Broken(), "the tolist of a _Broken failed: on another device"),
    "endless": (_Endless(), "nested more than"),
    "loop": (_LOOP, "nested more than"),
    "object_loop": (_OBJECT_LOOP, "nested more than"),
}


@pytest.mark.parametrize(("value", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(value: Any, match: str) -> None:
    with pytest.raises(CodecError, match=match) as caught:
        encode_meta_map({"fine": 1, "list": [0, value]}, "infos")
    assert caught.value.path.startswith("infos.list[1]")


def test_path_into_an_array() -> None:
    with pytest.raises(CodecError) as caught:
        encode_meta_map({"a": {"b": np.array([[1, 2], [3, 2**63]], np.uint64)}})
    assert caught.value.path == "$.a.b[1][1]"


@given(strategies.metadata())
@settings(max_examples=shortened(200), deadline=None)
def test_round_trip(mapping: dict[str, Any]) -> None:
    before = repr(mapping)
    message = encode_meta_map(mapping)
    assert repr(mapping) == before
    decoded = decode_meta_map(meta_pb2.MetaMap.FromString(message.SerializeToString()))
    assert list(decoded) == sorted(mapping)
    assert encode_meta_map(decoded) == message or "nan" in before
    assert repr(_sorted(decoded)) == repr(_sorted(mapping))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def test_decoded_values_are_plain_and_new() -> None:
    message = encode_meta_map({"a": [1], "b": {"c": b"x"}})
    first, second = decode_meta_map(message), decode_meta_map(message)
    first["a"].append(2)
    first["b"]["c"] = None
    assert second == {"a": [1], "b": {"c": b"x"}}


def test_same_bytes_each_time() -> None:
    mapping = {"z": {"b": 1, "a": 2}, "s": {"x", "y", "z", "w"}, "a": 0}
    encoded = {
        encode_meta_map(mapping).SerializeToString(deterministic=True),
        encode_meta_map(dict(reversed(mapping.items()))).SerializeToString(deterministic=True),
    }
    assert len(encoded) == 1


@pytest.mark.parametrize("kind", ["map", "list"])
def test_nesting(kind: str) -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = {"k": value} if kind == "map" else [value]
        return value

    deepest = {"k": nested(MAX_META_DEPTH - 1)}
    response = interaction_pb2.JoinResponse()
    episode = response.step.completed_episodes.add()
    episode.final_info.CopyFrom(encode_meta_map(deepest))
    parsed = interaction_pb2.JoinResponse.FromString(response.SerializeToString())
    assert decode_meta_map(parsed.step.completed_episodes[0].final_info) == deepest
    with pytest.raises(CodecError, match="nested more than"):
        encode_meta_map({"k": nested(MAX_META_DEPTH)})

    outermost = meta_pb2.MetaMap()
    value = outermost.entries["k"]
    for _ in range(3000):
        value = value.map.entries["k"] if kind == "map" else value.list.items.add()
    value.bool = True
    with pytest.raises(CodecError, match="nested more than"):
        decode_meta_map(outermost)


@given(st.data())
@settings(max_examples=shortened(200), deadline=None)
def test_arbitrary_messages(data: st.DataObject) -> None:
    valid = encode_meta_map({key: value for key, (value, _, _) in VALUES.items()})
    message = data.draw(strategies.parsed(meta_pb2.MetaMap) | strategies.mutated(valid))
    try:
        decoded = decode_meta_map(message)
    except CodecError:
        return
    assert set(decoded) == set(message.entries)
    encode_meta_map(decoded)
