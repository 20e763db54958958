"""Batches of values: nested, as leaves, and on the wire."""

from __future__ import annotations

import copy
import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec import SpaceCodec, decode_space, encode_space
from rlmesh_gym.errors import CodecError, UnsupportedSpaceError
from tests import strategies
from tests.catalogue import (
    DTYPES,
    MIXED_SPACE,
    SPACE_IDS,
    SPACES,
    UNSUPPORTED_SPACE_IDS,
    UNSUPPORTED_SPACES,
    ordered_dict_space,
)
from tests.lengths import shortened

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves

SpaceValue = value_pb2.SpaceValue
_CODECS = tuple(map(SpaceCodec, SPACES))
every_space = pytest.mark.parametrize("codec", _CODECS, ids=SPACE_IDS)


def samples_of(space: spaces.Space[Any], count: int) -> list[Any]:
    fresh = copy.deepcopy(space)
    fresh.seed(7)
    return [fresh.sample() for _ in range(count)]


def gymnasium_batch(space: spaces.Space[Any], samples: list[Any]) -> Any:
    out: Any = create_empty_array(space, len(samples))
    return concatenate(space, samples, out)


def assert_same_leaves(left: Leaves, right: Leaves) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype == object:
            assert one.tolist() == other.tolist()
        else:
            assert one.tobytes() == other.tobytes()  # NaN payloads and signs of zero too


def assert_same_nested(left: Any, right: Any) -> None:
    """Equal structure, key order, types, dtypes and values."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same_nested(left[key], right[key])
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same_nested(one, other)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right


def over_the_wire(codec: SpaceCodec, leaves: Leaves, num_rows: int) -> Leaves:
    message = SpaceValue.FromString(codec.encode(leaves, num_rows).SerializeToString())
    return codec.decode(message, num_rows)


class TestAgainstGymnasium:
    """The vector form is the one that Gymnasium's own vector environments build."""

    @every_space
    @pytest.mark.parametrize("num_rows", [1, 3])
    def test_rows_become_gymnasium_batches(self, codec: SpaceCodec, num_rows: int) -> None:
        space = codec.space
        samples = samples_of(space, num_rows)
        expected = gymnasium_batch(space, samples)
        leaves = over_the_wire(codec, codec.flatten_rows(samples), num_rows)
        batch = codec.unflatten(leaves, num_rows)
        assert_same_nested(batch, expected)
        assert batch_space(space, num_rows).contains(batch)

    @every_space
    def test_batches_are_taken_apart(self, codec: SpaceCodec) -> None:
        samples = samples_of(codec.space, 4)
        batch = gymnasium_batch(codec.space, samples)
        assert_same_leaves(codec.flatten(batch, 4), codec.flatten_rows(samples))

    @every_space
    def test_lanes_are_what_iterate_gives(self, codec: SpaceCodec) -> None:
        samples = samples_of(codec.space, 3)
        leaves = codec.flatten_rows(samples)
        batch = codec.unflatten(leaves, 3)
        if "Dict()" in repr(codec.space) or codec.space == spaces.Tuple(()):
            lanes = samples  # Gymnasium cannot count the lanes where there is nothing
        else:
            lanes = list(iterate(batch_space(codec.space, 3), batch))
        for row in range(3):
            lane = codec.unflatten_row(leaves, row)
            assert codec.space.contains(lane)
            assert_same_leaves(codec.flatten_row(lane), codec.flatten_row(lanes[row]))
            assert_same_leaves(codec.flatten_row(lane), codec.flatten_row(samples[row]))

    @every_space
    def test_batched_action_samples(self, codec: SpaceCodec) -> None:
        batched = batch_space(codec.space, 3)
        batched.seed(1)
        batch = batched.sample()
        again = codec.unflatten(codec.flatten(batch, 3), 3)
        assert batched.contains(again)
        assert data_equivalence(again, batch)

    def test_lane_types(self) -> None:
        """What ``sample()`` gives: numpy integers, arrays also when 0-d, str, dict, tuple."""
        codec = SpaceCodec(
            spaces.Dict(
                {
                    "d": spaces.Discrete(3),
                    "s": spaces.Box(-1, 1, ()),
                    "t": spaces.Text(3),
                    "u": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2]))),
                }
            )
        )
        lane = codec.unflatten_row(codec.empty(2), 1)
        assert type(lane["d"]) is np.int64
        assert type(lane["s"]) is np.ndarray
        assert lane["s"].shape == ()
        assert type(lane["t"]) is str
        assert type(lane["u"]) is tuple
        assert [part.dtype for part in lane["u"]] == [np.int8, np.int64]


class TestWire:
    """Bytes of the leaves."""

    @every_space
    @pytest.mark.parametrize("num_rows", [0, 1, 3])
    def test_round_trip(self, codec: SpaceCodec, num_rows: int) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, num_rows))
        assert_same_leaves(over_the_wire(codec, leaves, num_rows), leaves)
        assert len(codec.paths) == len(leaves)

    @given(st.data())
    @settings(max_examples=shortened(200), deadline=None)
    def test_every_bit_pattern(self, data: st.DataObject) -> None:
        space = data.draw(strategies.spaces() | st.sampled_from(SPACES))
        num_rows = data.draw(st.integers(0, 4))
        codec = SpaceCodec(space)
        leaves = data.draw(strategies.leaves_of(codec, num_rows))
        before = copy.deepcopy(leaves)
        decoded = over_the_wire(codec, leaves, num_rows)
        assert_same_leaves(leaves, before)
        assert_same_leaves(decoded, leaves)
        peer = SpaceCodec(decode_space(encode_space(space)))
        assert_same_leaves(peer.decode(codec.encode(leaves, num_rows), num_rows), leaves)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_little_endian(self, dtype: np.dtype[Any]) -> None:
        codec = SpaceCodec(spaces.Box(0, 1, (2,), dtype.type))
        rows = np.array([[0, 1], [1, 0]], dtype)
        (data,) = codec.encode([rows], 2).leaves
        assert data == rows.astype(dtype.newbyteorder("<")).tobytes()

    def test_discrete_is_a_signed_64_bit_value_with_its_start(self) -> None:
        codec = SpaceCodec(spaces.Discrete(3, start=-2))
        (data,) = codec.encode(codec.flatten([-2, 0], 2), 2).leaves
        assert data == struct.pack("<qq", -2, 0)

    def test_text_slab(self) -> None:
        codec = SpaceCodec(spaces.Text(9))
        (data,) = codec.encode(codec.flatten(("ab", "", "☃"), 3), 3).leaves
        assert data == struct.pack("<4Q", 3, 2, 0, 3) + "ab☃".encode()

    def test_text_slab_of_one_row(self) -> None:
        codec = SpaceCodec(spaces.Text(9))
        assert list(codec.encode(codec.flatten(("ab",), 1), 1).leaves) == [
            struct.pack("<2Q", 1, 2) + b"ab"
        ]

    def test_empty_leaf_is_there(self) -> None:
        codec = SpaceCodec(spaces.Box(0, 1, (0,)))
        assert list(codec.encode(codec.empty(3), 3).leaves) == [b""]

    def test_no_leaves(self) -> None:
        codec = SpaceCodec(spaces.Dict({}))
        assert list(codec.encode(codec.empty(3), 3).leaves) == []
        assert codec.unflatten(codec.decode(SpaceValue(), 3), 3) == {}

    @pytest.mark.parametrize("space", [SPACES[0], spaces.MultiBinary((2, 3))])
    def test_any_byte_but_zero_is_true(self, space: spaces.Space[Any]) -> None:
        codec = SpaceCodec(space)
        message = SpaceValue(leaves=[b"\0\2\xff\0\1\x80"])
        (rows,) = codec.decode(message, 1)
        assert rows.view(np.uint8).tolist() == [[[0, 1, 1], [0, 1, 1]]]
        assert rows.dtype == space.dtype
        out = codec.empty(2)
        codec.decode_into(message, out, 1, 1)
        assert out[0].view(np.uint8).tolist() == [[[0] * 3] * 2, [[0, 1, 1], [0, 1, 1]]]

    def test_narrow_discrete(self) -> None:
        """A server's own space may count in int32; the wire counts in int64."""
        space = spaces.MultiDiscrete([300, 3], dtype=np.int32)
        codec = SpaceCodec(space)
        leaves = codec.flatten([[299, 2], [0, 1]], 2)
        assert leaves[0].dtype == np.int32
        message = codec.encode(leaves, 2)
        assert message.leaves[0] == struct.pack("<4q", 299, 2, 0, 1)
        assert_same_leaves(codec.decode(message, 2), leaves)
        out = codec.empty(3)
        codec.decode_into(message, out, 1, 2)
        assert out[0].tolist() == [[0, 0], [299, 2], [0, 1]]
        overflow = SpaceValue(leaves=[struct.pack("<2q", 2**40, 0)])
        with pytest.raises(CodecError, match="expected int32 values, got 1099511627776"):
            codec.decode(overflow, 1)
        with pytest.raises(CodecError, match="expected int32 values"):
            codec.decode_into(overflow, out, 0, 1)


class TestOwnership:
    """Nothing that comes out shares memory with what went in."""

    @every_space
    def test_decoded_arrays_are_the_callers(self, codec: SpaceCodec) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, 2))
        message = codec.encode(leaves, 2)
        before = message.SerializeToString()
        first, second = codec.decode(message, 2), codec.decode(message, 2)
        for rows, twin in zip(first, second, strict=True):
            assert rows.flags.writeable
            assert rows.flags.c_contiguous
            assert rows.dtype.isnative
            assert not np.shares_memory(rows, twin)
            rows.fill("x" if rows.dtype == object else 1)
        assert message.SerializeToString() == before
        assert_same_leaves(second, leaves)

    @every_space
    def test_message_does_not_follow_the_arrays(self, codec: SpaceCodec) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, 2))
        message = codec.encode(leaves, 2)
        before = message.SerializeToString()
        for rows in leaves:
            rows.fill("x" if rows.dtype == object else 1)
        assert message.SerializeToString() == before

    @every_space
    def test_lane_does_not_follow_the_batch(self, codec: SpaceCodec) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, 2))
        lane = codec.unflatten_row(leaves, 1)
        before = copy.deepcopy(codec.flatten_row(lane))
        for rows in leaves:
            rows.fill("x" if rows.dtype == object else 0)
        assert_same_leaves(codec.flatten_row(lane), before)

    @every_space
    def test_rows_are_copied(self, codec: SpaceCodec) -> None:
        samples = samples_of(codec.space, 2)
        before = copy.deepcopy(samples)
        for rows in codec.flatten_rows(samples):
            rows.fill("x" if rows.dtype == object else 1)
        for sample, copied in zip(samples, before, strict=True):
            assert_same_nested(sample, copied)

    def test_flatten_passes_fitting_arrays_through(self) -> None:
        codec = SpaceCodec(MIXED_SPACE)
        leaves = codec.empty(2)
        passed = codec.flatten(codec.unflatten(leaves, 2), 2)
        for rows, same in zip(leaves, passed, strict=True):
            assert rows is same or rows.dtype == object


class TestBuffers:
    """The leaves of the message without the message."""

    @every_space
    @pytest.mark.parametrize("num_rows", [0, 1, 3])
    def test_same_bytes(self, codec: SpaceCodec, num_rows: int) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, num_rows))
        buffers = codec.buffers(leaves, num_rows)
        assert [bytes(buffer) for buffer in buffers] == list(codec.encode(leaves, num_rows).leaves)
        assert all(memoryview(buffer).contiguous for buffer in buffers)

    def test_rows_out_of_order(self) -> None:
        codec = SpaceCodec(spaces.Box(-1, 1, (3,)))
        rows = np.arange(12, dtype="f4").reshape(4, 3)
        (buffer,) = codec.buffers([rows[::-2]], 2)
        assert bytes(buffer) == rows[::-2].tobytes()

    def test_contiguous_rows_are_not_copied(self) -> None:
        codec = SpaceCodec(spaces.Box(0, 255, (4,), np.uint8))
        rows = np.zeros((2, 4), np.uint8)
        (buffer,) = codec.buffers([rows], 2)
        rows[0, 0] = 7
        assert bytes(buffer)[0] == 7

    def test_wrong_leaves(self) -> None:
        codec = SpaceCodec(spaces.Box(-1, 1, (3,)))
        with pytest.raises(CodecError, match="expected shape"):
            codec.buffers([np.zeros((2, 3))], 2)


class TestDecodeInto:
    """Rows of several messages side by side in one array."""

    @every_space
    def test_rows(self, codec: SpaceCodec) -> None:
        leaves = codec.flatten_rows(samples_of(codec.space, 5))
        parts = [(0, 2), (2, 1), (3, 2)]
        out = codec.empty(5)
        for start, count in parts:
            rows = [leaf[start : start + count] for leaf in leaves]
            codec.decode_into(codec.encode(rows, count), out, start, count)
        assert_same_leaves(out, leaves)

    def test_only_those_rows(self) -> None:
        codec = SpaceCodec(spaces.Tuple((spaces.Discrete(9), spaces.Text(3))))
        out = codec.flatten(([5, 5, 5], ("a", "b", "c")), 3)
        codec.decode_into(codec.encode(codec.flatten(([7], ("z",)), 1), 1), out, 1, 1)
        assert out[0].tolist() == [5, 7, 5]
        assert out[1].tolist() == ["a", "z", "c"]

    def test_out_is_too_short(self) -> None:
        codec = SpaceCodec(spaces.Discrete(9))
        with pytest.raises(CodecError, match=r"expected shape \(2,\), dtype int64"):
            codec.decode_into(codec.encode(codec.empty(2), 2), codec.empty(3), 2, 2)


def _text(*header: int, body: bytes = b"") -> bytes:
    return struct.pack(f"<{len(header)}Q", *header) + body


_PAIR = SpaceCodec(spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "t": spaces.Text(3)}))
_GOOD_TEXT = _text(2, 1, 1, body=b"xy")

MALFORMED: dict[str, tuple[list[bytes], str, str]] = {
    "no_leaves": ([], "$", "expected 2 leaves, got 0"),
    "one_leaf": ([bytes(16)], "$", "expected 2 leaves, got 1"),
    "three_leaves": ([bytes(16), _GOOD_TEXT, b""], "$", "expected 2 leaves, got 3"),
    "short": ([bytes(15), _GOOD_TEXT], "$.a", r"expected 16 bytes \(2 rows of 8\), got 15"),
    "long": ([bytes(17), _GOOD_TEXT], "$.a", "expected 16 bytes"),
    "one_row": ([bytes(8), _GOOD_TEXT], "$.a", "expected 16 bytes"),
    "empty": ([b"", _GOOD_TEXT], "$.a", "got 0"),
    "text_empty": ([bytes(16), b""], "$.t", "expected a text header of 24 bytes"),
    "text_short_header": ([bytes(16), _text(2, 1)], "$.t", "expected a text header of 24 bytes"),
    "text_count": ([bytes(16), _text(3, 1, 1, 0, body=b"xy")], "$.t", "expected 2 texts, got 3"),
    "text_huge_count": ([bytes(16), _text(2**64 - 1, 1, 1)], "$.t", "expected 2 texts, got 18"),
    "text_missing": ([bytes(16), _text(2, 1, 9, body=b"xy")], "$.t", "expected 10 bytes of text"),
    "text_trailing": ([bytes(16), _text(2, 1, 0, body=b"xy")], "$.t", "expected 1 bytes of text"),
    "text_huge_length": (
        [bytes(16), _text(2, 2**64 - 1, 3, body=b"xy")],
        "$.t",
        "bytes of text, got 2",
    ),
    "text_not_utf8": ([bytes(16), _text(2, 1, 1, body=b"x\xff")], "$.t", "not valid UTF-8"),
    "text_split_character": (
        [bytes(16), _text(2, 1, 1, body="ß".encode())],
        "$.t",
        "not valid UTF-8",
    ),
    "text_surrogate": (
        [bytes(16), _text(2, 3, 0, body=b"\xed\xa0\x80")],
        "$.t",
        "not valid UTF-8",
    ),
}


@pytest.mark.parametrize(("leaves", "path", "match"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_values(leaves: list[bytes], path: str, match: str) -> None:
    message = SpaceValue(leaves=leaves)
    for decode in (
        lambda: _PAIR.decode(message, 2),
        lambda: _PAIR.decode_into(message, _PAIR.empty(4), 1, 2),
    ):
        with pytest.raises(CodecError, match=match) as caught:
            decode()
        assert caught.value.path == path


@given(st.data())
@settings(max_examples=shortened(300), deadline=None)
def test_arbitrary_values(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(_CODECS))
    num_rows = data.draw(st.integers(0, 3))
    valid = codec.encode(codec.flatten_rows(samples_of(codec.space, num_rows)), num_rows)
    message = data.draw(
        strategies.space_values()
        | strategies.parsed(SpaceValue)
        | strategies.mutated(valid)
        | st.just(valid)
    )
    out = codec.empty(num_rows + 1)
    try:
        leaves = codec.decode(message, num_rows)
    except CodecError:
        with pytest.raises(CodecError):
            codec.decode_into(message, out, 1, num_rows)
        return
    codec.decode_into(message, out, 1, num_rows)
    assert_same_leaves([rows[1:] for rows in out], leaves)
    assert_same_leaves(over_the_wire(codec, leaves, num_rows), leaves)
    codec.out_of_domain(leaves)
    codec.out_of_bounds(leaves)


@pytest.mark.parametrize("space", UNSUPPORTED_SPACES, ids=UNSUPPORTED_SPACE_IDS)
def test_unsupported_spaces(space: spaces.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpaceError) as caught:
        SpaceCodec(spaces.Dict({"k": space}), "action")
    assert caught.value.path.startswith("action.k")


class TestWrongLeaves:
    """Leaves that are not of the space are a mistake of the caller."""

    @pytest.mark.parametrize(
        ("rows", "match"),
        [
            (np.zeros((2, 3), "f8"), r"expected shape \(2, 3\), dtype float32, got an array of"),
            (np.zeros((3, 3), "f4"), r"got an array of shape \(3, 3\), dtype float32"),
            (np.zeros((2, 3), np.dtype("f4").newbyteorder()), "expected shape"),
        ],
    )
    def test_encode(self, rows: NDArray[Any], match: str) -> None:
        codec = SpaceCodec(spaces.Box(-1, 1, (3,)))
        with pytest.raises(CodecError, match=match):
            codec.encode([rows], 2)
        with pytest.raises(CodecError, match=match):
            codec.unflatten([rows], 2)

    def test_count(self) -> None:
        codec = SpaceCodec(spaces.Box(-1, 1, (3,)))
        with pytest.raises(CodecError, match="expected 1 leaves, got 0"):
            codec.encode([], 2)
        with pytest.raises(CodecError, match="expected 1 leaves, got 2"):
            codec.unflatten(codec.empty(2) * 2, 2)

    def test_lone_surrogate(self) -> None:
        codec = SpaceCodec(spaces.Tuple((spaces.Text(3),)))
        with pytest.raises(CodecError, match="row 1 is not Unicode") as caught:
            codec.encode(codec.flatten((("a", "\ud800"),), 2), 2)
        assert caught.value.path == "$[0]"

    def test_rows_out_of_order_are_fine(self) -> None:
        codec = SpaceCodec(spaces.Box(-1, 1, (3,)))
        rows = np.arange(12, dtype="f4").reshape(4, 3)
        assert_same_leaves(over_the_wire(codec, [rows[::-2]], 2), [rows[::-2].copy()])
        assert_same_leaves(over_the_wire(codec, [rows.T[:, :3].T], 3), [rows[:3]])


class TestDeclaredOrder:
    """Leaves follow the keys as the peer declares them."""

    def test_unsorted_dict(self) -> None:
        space = ordered_dict_space({"z": spaces.Discrete(9), "a": spaces.Discrete(9)})
        codec = SpaceCodec(decode_space(encode_space(space)))
        assert codec.paths == ("$.z", "$.a")
        (z, a) = codec.encode(codec.flatten({"a": [1], "z": [2]}, 1), 1).leaves
        assert (z, a) == (struct.pack("<q", 2), struct.pack("<q", 1))
        assert list(codec.unflatten(codec.empty(1), 1)) == ["z", "a"]
        assert list(codec.unflatten_row(codec.empty(1), 0)) == ["z", "a"]

    def test_paths(self) -> None:
        assert SpaceCodec(MIXED_SPACE, "obs").paths == (
            "obs.buttons",
            "obs.camera",
            "obs.contacts",
            "obs.gripper",
            "obs.instruction",
            "obs.joints",
            "obs.pair[0]",
            "obs.pair[1]",
        )

    def test_pickle(self) -> None:
        codec = pickle.loads(pickle.dumps(SpaceCodec(MIXED_SPACE, "obs")))
        assert codec.paths[0] == "obs.buttons"
        assert codec.space == MIXED_SPACE

    def test_repr(self) -> None:
        assert repr(SpaceCodec(spaces.Discrete(2))) == "SpaceCodec(Discrete(2))"
