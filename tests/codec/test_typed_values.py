"""Arrays, scalars, tuples and sets inside free-form dicts, between two ends of this package."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlmesh_gym._proto.spaces.v1 import meta_pb2
from rlmesh_gym.codec import decode_meta_map, encode_meta_map
from rlmesh_gym.codec.typed_values import RESERVED_KEY
from rlmesh_gym.errors import CodecError
from tests.env.comparison import equal


class Point(NamedTuple):
    x: int
    y: Any


class Tensor:
    """What has ``__array__`` and is no array."""

    def __init__(self, array: Any, *, is_elsewhere: bool = False) -> None:
        self.array = array
        self.is_elsewhere = is_elsewhere

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.is_elsewhere:
            raise TypeError("on another device")
        return self.array

    def tolist(self) -> Any:
        return self.array.tolist()


def carried(value: Any) -> Any:
    message = encode_meta_map({"k": value}, typed=True)
    return decode_meta_map(meta_pb2.MetaMap.FromString(message.SerializeToString()), typed=True)[
        "k"
    ]


def objects(*items: Any) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array


SAME: dict[str, Any] = {
    "int8": np.array([1, 0, 1], np.int8),
    "image": np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3),
    "empty": np.zeros((0, 3), np.float32),
    "empty_list": [],
    "zero_d": np.array(2.5, np.float32),
    "bools": np.array([[True], [False]]),
    "float16": np.array([0.5], np.float16),
    "uint64": np.array([2**64 - 1], np.uint64),
    "complex": np.array([1j]),
    "text": np.array(["a", "b\u2603"]),
    "no_text": np.array([], dtype=str),
    "bytes": np.array([b"a", b"bc"]),
    "dates": np.array(["2020-01-02"], "M8[D]"),
    "spans": np.array([1, 2], "m8[ms]"),
    "objects": objects(None, "x", {"a": np.arange(2)}, [1], (1, 2)),
    "no_objects": np.zeros((2, 0), object),
    "scalar": np.float32(0.1),
    "wide": np.uint64(2**64 - 1),
    "truth": np.bool_(True),
    "int": 3,
    "float": 0.5,
    "bool": True,
    "none": None,
    "list": [1, 2.5, "x", [np.int8(3)]],
    "tuple": (1, (), (np.arange(2, dtype=np.int16),)),
    "set": {3, 1, "a"},
    "frozenset": frozenset({1.5}),
    "nested": {"a": {"b": np.zeros(2, np.int8)}, "": ()},
    "reserved": {RESERVED_KEY: 1},
    "reserved_deep": {RESERVED_KEY: {"tuple": [1]}, "b": np.arange(1)},
}


@pytest.mark.parametrize("value", SAME.values(), ids=SAME.keys())
def test_values_come_back_as_what_they_are(value: Any) -> None:
    back = carried(value)
    assert type(back) is type(value)
    assert equal(back, value) or (isinstance(value, (set, frozenset)) and back == value)
    if isinstance(value, (np.ndarray, np.generic)):
        assert back.dtype == value.dtype
    if isinstance(back, np.ndarray):
        assert back.flags.writeable


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (np.array([1, 2], np.dtype("i4").newbyteorder()), np.array([1, 2], np.int32)),
        (np.arange(6).reshape(2, 3).T[::2], np.array([[0, 3], [2, 5]])),
        (np.array([0.5], np.longdouble), np.array([0.5])),
        (np.ma.masked_array([1, 2], [True, False]), np.array([1, 2])),
        (Tensor(np.array([1, 2], np.int16)), np.array([1, 2], np.int16)),
        (Tensor(np.array([1, 2]), is_elsewhere=True), [1, 2]),
        (np.array((1, 0.5), [("a", "i4"), ("b", "f8")])[()], [1, 0.5]),
        (Point(1, np.zeros(1, np.int8)), {"x": 1, "y": np.zeros(1, np.int8)}),
        (collections.OrderedDict(a=(1,)), {"a": (1,)}),
        (np.str_("ab"), "ab"),
        (range(3), [0, 1, 2]),
    ],
)
def test_values_that_have_a_nearest(value: Any, back: Any) -> None:
    assert equal(carried(value), back)


def test_arrays_go_as_bytes() -> None:
    frame = np.zeros((128, 128, 3), np.uint8)
    assert encode_meta_map({"rgb": frame}, typed=True).ByteSize() < frame.nbytes + 100


def test_peers_without_it_get_what_they_always_got() -> None:
    infos = {"mask": np.array([1], np.int8), "pair": (1, 2), RESERVED_KEY: b"a<i4 1\n"}
    plain = decode_meta_map(encode_meta_map(infos))
    assert plain == {"mask": [1], "pair": [1, 2], RESERVED_KEY: b"a<i4 1\n"}


_LOOP: list[Any] = []
_LOOP.append(_LOOP)


@pytest.mark.parametrize("value", [_LOOP, object(), {1: 2}, 2**63])
def test_what_has_no_form_is_still_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        carried(value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a<f4 2",
        b"a<f4 2\n1234",
        b"a<f4 1\n12345",
        b"aO 1\n12345678",
        b"a|O8 1\n12345678",
        b"a<i4,<f8 1\n123456789012",
        b"a<f3 1\n123",
        b"a<f4 -1\n1234",
        b"a<U1 1\n\xff\xff\xff\xff",
        b"a<U0 1\n",
        b"a<i4 99999999999999999 99999999999999999 0\n",
        b"a|i1" + b" 1" * 40 + b"\n1",
        b"x<f4 1\n1234",
        b"a<M8[xx] 1\n12345678",
        7,
        None,
        "text",
        [],
        {},
        {"tuple": 1},
        {"tuple": [], "set": []},
        {"list": []},
        {"set": [[]]},
        {"dict": 1},
        {"objects": []},
        {"objects": {"items": [1], "shape": [2]}},
        {"objects": {"items": [], "shape": ["x"]}},
    ],
    ids=str,
)
def test_malformed(content: Any) -> None:
    message = encode_meta_map({"k": [{RESERVED_KEY: content}]})
    with pytest.raises(CodecError):
        decode_meta_map(message, typed=True)


def test_a_whole_that_is_no_dict() -> None:
    with pytest.raises(CodecError, match="expected a dict"):
        decode_meta_map(encode_meta_map({RESERVED_KEY: {"tuple": []}}), typed=True)


def test_bools_of_any_byte_are_bools() -> None:
    message = encode_meta_map({"k": {RESERVED_KEY: b"a|b1 2\n\x02\x00"}})
    array = decode_meta_map(message, typed=True)["k"]
    assert array.tobytes() == b"\1\0"
