"""Spaces to the wire and back."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym._proto.spaces.v1 import spaces_pb2, types_pb2
from rlmesh_gym.codec import UnrestrictedText, decode_space, encode_env_spec, encode_space
from rlmesh_gym.codec.spaces.limits import MAX_SPACE_DEPTH
from rlmesh_gym.codec.spaces.space_encoding import plain_integers
from rlmesh_gym.errors import CodecError, UnsupportedSpaceError
from tests import strategies
from tests.catalogue import (
    DTYPES,
    SPACE_IDS,
    SPACES,
    UNSUPPORTED_SPACE_IDS,
    UNSUPPORTED_SPACES,
    ordered_dict_space,
)
from tests.lengths import shortened

SpaceSpec = spaces_pb2.SpaceSpec
_INF = float("inf")


def over_the_wire(space: spaces.Space[Any]) -> spaces.Space[Any]:
    return decode_space(SpaceSpec.FromString(encode_space(space).SerializeToString()))


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_comes_back_equal(space: spaces.Space[Any]) -> None:
    decoded = over_the_wire(space)
    assert decoded == space
    assert encode_space(decoded) == encode_space(space)
    assert decoded.dtype == space.dtype
    assert decoded.shape == space.shape


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_decoded_space_works(space: spaces.Space[Any]) -> None:
    decoded = over_the_wire(space)
    decoded.seed(3)
    for _ in range(5):
        assert space.contains(decoded.sample())
        assert decoded.contains(space.sample())
    assert pickle.loads(pickle.dumps(decoded)) == space
    batched = batch_space(decoded, 2)
    assert batched.contains(batched.sample())


@given(strategies.spaces())
@settings(max_examples=shortened(200), deadline=None)
def test_generated_spaces_come_back_equal(space: spaces.Space[Any]) -> None:
    decoded = over_the_wire(space)
    assert decoded == space
    assert encode_space(decoded).SerializeToString() == encode_space(space).SerializeToString()


@pytest.mark.parametrize("space", UNSUPPORTED_SPACES, ids=UNSUPPORTED_SPACE_IDS)
def test_no_wire_form_names_the_path(space: spaces.Space[Any]) -> None:
    if np.dtype(np.longdouble) == np.dtype(np.float64) and space.dtype == np.float64:
        pytest.skip("longdouble is float64 on this platform")
    nested = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), space))})
    with pytest.raises(UnsupportedSpaceError) as caught:
        encode_space(nested)
    assert caught.value.path.startswith("$.a[1]")
    assert isinstance(caught.value, TypeError)


def test_no_space_at_all() -> None:
    with pytest.raises(UnsupportedSpaceError, match="expected a gymnasium space, got a int"):
        encode_space(3)  # type: ignore[arg-type]


def bool_box(length: int) -> spaces.Space[Any]:
    return spaces.Box(np.zeros(length, bool), np.ones(length, bool), dtype=np.bool_)


class TestBounds:
    """The choice between unbounded, uniform and elementwise."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_uniform_little_endian(self, dtype: np.dtype[Any]) -> None:
        spec = encode_space(spaces.Box(0, 1, (2, 3), dtype.type))
        assert list(spec.shape) == [2, 3]
        assert spec.box.WhichOneof("bounds") == "uniform"
        assert spec.box.uniform.low == np.array(0, dtype.newbyteorder("<")).tobytes()
        assert spec.box.uniform.high == np.array(1, dtype.newbyteorder("<")).tobytes()

    @pytest.mark.parametrize(
        ("low", "high", "shape", "dtype", "form"),
        [
            (-_INF, _INF, (3,), "f4", "unbounded"),
            (-_INF, _INF, (3,), "i8", "uniform"),
            (0.0, _INF, (3,), "f4", "uniform"),
            (-_INF, 0.0, (3,), "f8", "uniform"),
            (0, 255, (0,), "u1", "elementwise"),
            (0.0, 1.0, (2, 0), "f4", "unbounded"),
            (-1.0, 1.0, (), "f4", "uniform"),
            ([0.0, 0.0], [1.0, 2.0], (2,), "f4", "elementwise"),
            ([-_INF, 0.0], [_INF, _INF], (2,), "f4", "elementwise"),
            ([1.0, 1.0], [2.0, 2.0], (2,), "f4", "uniform"),
        ],
    )
    def test_form(self, low: Any, high: Any, shape: Any, dtype: str, form: str) -> None:
        if isinstance(low, list):
            low, high = np.array(low, dtype), np.array(high, dtype)
        spec = encode_space(spaces.Box(low, high, shape, np.dtype(dtype).type))
        assert spec.box.WhichOneof("bounds") == form

    def test_elementwise_holds_both_sides_in_full(self) -> None:
        box = spaces.Box(np.zeros((2, 2), "i2"), np.array([[1, 2], [3, 4]], "i2"), dtype=np.int16)
        spec = encode_space(box)
        assert spec.box.elementwise.low == bytes(8)
        assert spec.box.elementwise.high == np.array([1, 2, 3, 4], "<i2").tobytes()

    def test_negative_zero_is_kept(self) -> None:
        box = spaces.Box(np.array([-0.0, 0.0], "f4"), np.ones(2, "f4"))
        decoded = over_the_wire(box)
        assert isinstance(decoded, spaces.Box)
        assert np.signbit(decoded.low).tolist() == [True, False]

    def test_unbounded_of_an_integer_type_is_its_range(self) -> None:
        spec = SpaceSpec(shape=[2], dtype=types_pb2.DATA_TYPE_INT8)
        spec.box.unbounded = True
        assert decode_space(spec) == spaces.Box(-128, 127, (2,), np.int8)
        spec.dtype = types_pb2.DATA_TYPE_BOOL
        assert decode_space(spec) == bool_box(2)

    def test_bool_bounds_count_any_byte(self) -> None:
        spec = SpaceSpec(shape=[1], dtype=types_pb2.DATA_TYPE_BOOL)
        spec.box.uniform.low, spec.box.uniform.high = b"\0", b"\7"
        assert decode_space(spec) == bool_box(1)

    def test_full_uint64_range(self) -> None:
        """Gymnasium cannot sample this one, but it can stand in a contract."""
        high = np.full(2, 2**64 - 1, np.uint64)
        box = spaces.Box(np.array([0, 1], np.uint64), high, dtype=np.uint64)
        decoded = over_the_wire(box)
        assert isinstance(decoded, spaces.Box)
        assert decoded.high.tolist() == [2**64 - 1] * 2
        assert decoded == box

    def test_full_int64_range_samples_inside(self) -> None:
        box = over_the_wire(spaces.Box(-_INF, _INF, (4,), np.int64))
        box.seed(0)
        assert all(abs(int(value)) < 100 for value in box.sample())

    def test_foreign_byte_order(self) -> None:
        swapped = np.dtype("f4").newbyteorder()
        box = spaces.Box(-1.0, 2.0, (2,), np.float32)
        box.low, box.high = box.low.astype(swapped), box.high.astype(swapped)
        box.dtype = swapped
        assert encode_space(box) == encode_space(spaces.Box(-1.0, 2.0, (2,), np.float32))


class TestText:
    """A Text without charset on the wire takes every character."""

    def test_default_charset_is_the_empty_one(self) -> None:
        spec = encode_space(spaces.Text(7))
        assert (spec.text.min_length, spec.text.max_length, spec.text.charset) == (1, 7, "")
        assert spec.dtype == types_pb2.DATA_TYPE_UINT8

    def test_charset_is_sorted(self) -> None:
        assert encode_space(spaces.Text(7, charset="zaß0")).text.charset == "0azß"

    def test_unrestricted_contains_what_the_wire_carries(self) -> None:
        decoded = over_the_wire(spaces.Text(7))
        assert isinstance(decoded, UnrestrictedText)
        assert decoded.contains("open ☃!")
        assert not decoded.contains("")
        assert not decoded.contains("too long")
        assert not decoded.contains(3)

    def test_unrestricted_equals_what_was_declared(self) -> None:
        decoded = over_the_wire(spaces.Text(7))
        assert decoded == spaces.Text(7)
        assert spaces.Text(7) == decoded
        assert decoded != spaces.Text(8)
        assert decoded != spaces.Text(7, charset="ab")
        assert pickle.loads(pickle.dumps(decoded)).contains("☃")
        assert repr(decoded) == "UnrestrictedText(1, 7)"

    def test_empty_text_only(self) -> None:
        space = spaces.Text(0, min_length=0, charset="")
        assert over_the_wire(space).contains("")

    def test_lone_surrogate(self) -> None:
        with pytest.raises(UnsupportedSpaceError, match="not Unicode"):
            encode_space(spaces.Text(3, charset="a\ud800"))


class TestDict:
    """Keys, and their order."""

    def test_declared_order(self) -> None:
        space = ordered_dict_space({"z": spaces.Discrete(2), "a": spaces.Discrete(3)})
        spec = encode_space(space)
        assert list(spec.dict.keys) == ["z", "a"]
        decoded = decode_space(spec)
        assert isinstance(decoded, spaces.Dict)
        assert list(decoded.spaces) == ["z", "a"]

    def test_odd_keys(self) -> None:
        space = spaces.Dict(
            {"a/b": spaces.Discrete(2), ".": spaces.Discrete(2), "": spaces.Text(1)}
        )
        assert over_the_wire(space) == space

    def test_lone_surrogate(self) -> None:
        with pytest.raises(UnsupportedSpaceError, match="not Unicode"):
            encode_space(spaces.Dict({"\ud800": spaces.Discrete(2)}))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integers_keep_dtype_and_start(dtype: Any) -> None:
    narrow = spaces.MultiDiscrete(np.array([[3, 4]]), dtype=dtype, start=np.array([[2, 1]]))
    decoded: Any = over_the_wire(narrow)
    assert decoded == narrow
    assert (decoded.dtype, decoded.start.tolist()) == (dtype, [[2, 1]])
    plain: Any = over_the_wire(spaces.MultiDiscrete([3, 4], dtype=dtype))
    assert plain.start.tolist() == [0, 0]
    if "dtype" in inspect.signature(spaces.Discrete.__init__).parameters:
        discrete = spaces.Discrete(3, start=1, dtype=dtype)
        decoded = over_the_wire(discrete)
        assert decoded == discrete
        assert decoded.sample().dtype == dtype


def test_the_released_form_of_integers() -> None:
    narrow = spaces.MultiDiscrete([3, 4], dtype=np.int8)
    nested = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(3, start=-1), narrow))})
    spec = encode_space(nested)
    plain_integers(spec)
    assert decode_space(spec)["a"][1].dtype == np.int64  # type: ignore[index]
    assert decode_space(spec)["a"][0].start == -1  # type: ignore[index]
    offset = encode_space(spaces.Tuple([spaces.MultiDiscrete([3, 4], start=[0, 1])]))
    with pytest.raises(UnsupportedSpaceError, match=r"start \[0, 1\]") as caught:
        plain_integers(offset)
    assert caught.value.path == "$[0]"


def _spec(**fields: Any) -> SpaceSpec:
    return SpaceSpec(**fields)


def _box(low: bytes, high: bytes, shape: tuple[int, ...] = (2,), dtype: int = 11) -> SpaceSpec:
    bounds = spaces_pb2.UniformBounds(low=low, high=high)
    return _spec(shape=shape, dtype=dtype, box=spaces_pb2.BoxSpec(uniform=bounds))


def _elementwise(low: bytes, high: bytes, shape: tuple[int, ...]) -> SpaceSpec:
    bounds = spaces_pb2.ElementwiseBounds(low=low, high=high)
    return _spec(shape=shape, dtype=11, box=spaces_pb2.BoxSpec(elementwise=bounds))


def _unbounded(*shape: int, dtype: int = 11) -> SpaceSpec:
    return _spec(shape=shape, dtype=dtype, box=spaces_pb2.BoxSpec(unbounded=True))


def _discrete(**fields: Any) -> SpaceSpec:
    spec = {"dtype": 9, "discrete": spaces_pb2.DiscreteSpec(n=3), **fields}
    return _spec(**spec)


_NAN = np.float32("nan").tobytes()
_ONE = np.float32(1).tobytes()
_TWO = np.float32(2).tobytes()

MALFORMED: dict[str, tuple[SpaceSpec, str]] = {
    "nothing": (_spec(), "no kind"),
    "no_kind": (_spec(shape=[3], dtype=11), "no kind"),
    "no_dtype": (_unbounded(3, dtype=0), "UNSPECIFIED is not an element type"),
    "unknown_dtype": (_unbounded(3, dtype=77), "dtype 77 is not an element type"),
    "no_bounds": (_spec(shape=[3], dtype=11, box=spaces_pb2.BoxSpec()), "no bounds"),
    "unbounded_false": (
        _spec(shape=[3], dtype=11, box=spaces_pb2.BoxSpec(unbounded=False)),
        "no bounds",
    ),
    "short_low": (_box(b"\0" * 3, _ONE), r"expected 4 bytes \(1 float32\), got 3"),
    "long_high": (_box(_ONE, _ONE * 2), "expected 4 bytes"),
    "short_elementwise": (_elementwise(_ONE * 2, _ONE, (2,)), "expected 8 bytes"),
    "low_above_high": (_box(_TWO, _ONE), "not a valid box"),
    "nan_bound": (_box(_NAN, _ONE), "not a valid box"),
    "nan_elementwise": (_elementwise(_ONE + _NAN, _TWO * 2, (2,)), "not a valid box"),
    "negative_shape": (_unbounded(3, -1), "expected a shape"),
    "huge_shape": (_unbounded(2**40), "takes more than"),
    "huge_product": (_unbounded(2**62, 2**62, 2**62), "takes more than"),
    "huge_beside_zero": (_unbounded(0, 2**62), "takes more than"),
    "too_many_axes": (_unbounded(*[1] * 40), "at most 31 axes"),
    "just_too_large": (_unbounded(2**26 + 1), "takes more than"),
    "discrete_no_n": (_discrete(discrete=spaces_pb2.DiscreteSpec()), "expected a range"),
    "discrete_negative": (_discrete(discrete=spaces_pb2.DiscreteSpec(n=-1)), "expected a range"),
    "discrete_overflow": (
        _discrete(discrete=spaces_pb2.DiscreteSpec(n=2, start=2**63 - 1)),
        "expected a range",
    ),
    "discrete_dtype": (_discrete(dtype=11), "expected INT64 or another integer type, got FLOAT32"),
    "discrete_below": (
        _discrete(dtype=6, discrete=spaces_pb2.DiscreteSpec(n=3, start=-129)),
        "expected a range in int8",
    ),
    "nvec_above": (
        _spec(shape=[2], dtype=2, multi_discrete=spaces_pb2.MultiDiscreteSpec(nvec=[2, 257])),
        "expected ranges in uint8",
    ),
    "start_below": (
        _spec(shape=[1], dtype=2, multi_discrete=spaces_pb2.MultiDiscreteSpec(nvec=[2, -1])),
        "expected ranges in uint8",
    ),
    "start_overflow": (
        _spec(shape=[1], dtype=9, multi_discrete=spaces_pb2.MultiDiscreteSpec(nvec=[2, 2**63 - 1])),
        "expected ranges in int64",
    ),
    "discrete_shape": (_discrete(shape=[1]), "expected no shape"),
    "multi_binary_dtype": (
        _spec(shape=[2], dtype=1, multi_binary=spaces_pb2.MultiBinarySpec()),
        "expected UINT8, got BOOL",
    ),
    "multi_binary_zero": (
        _spec(shape=[0], dtype=2, multi_binary=spaces_pb2.MultiBinarySpec()),
        "not a valid multi_binary",
    ),
    "multi_binary_huge": (
        _spec(shape=[2**50], dtype=2, multi_binary=spaces_pb2.MultiBinarySpec()),
        "takes more than",
    ),
    "nvec_count": (
        _spec(shape=[3], dtype=9, multi_discrete=spaces_pb2.MultiDiscreteSpec(nvec=[2, 2])),
        "expected 3 entries",
    ),
    "nvec_zero": (
        _spec(shape=[2], dtype=9, multi_discrete=spaces_pb2.MultiDiscreteSpec(nvec=[2, 0])),
        "not a valid multi_discrete",
    ),
    "text_negative": (
        _spec(dtype=2, text=spaces_pb2.TextSpec(min_length=-1, max_length=3)),
        "not a valid text",
    ),
    "text_too_long_for_any_message": (
        _spec(dtype=2, text=spaces_pb2.TextSpec(min_length=2**40, max_length=2**40)),
        "one row takes more",
    ),
    "text_reversed": (
        _spec(dtype=2, text=spaces_pb2.TextSpec(min_length=4, max_length=3, charset="a")),
        "not a valid text",
    ),
    "dict_counts": (
        _spec(dict=spaces_pb2.DictSpec(keys=["a", "b"], spaces=[_discrete()])),
        "2 keys and 1 spaces",
    ),
    "dict_twice": (
        _spec(dict=spaces_pb2.DictSpec(keys=["a", "a"], spaces=[_discrete()] * 2)),
        "duplicate key 'a'",
    ),
}


@pytest.mark.parametrize(("spec", "match"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_specs(spec: SpaceSpec, match: str) -> None:
    nested = _spec(dict=spaces_pb2.DictSpec(keys=["k"], spaces=[spec]))
    nested = _spec(tuple=spaces_pb2.TupleSpec(spaces=[_discrete(), nested]))
    with pytest.raises(CodecError, match=match) as caught:
        decode_space(nested, "observation")
    assert caught.value.path.startswith("observation[1].k")


def test_many_large_spaces_count_together() -> None:
    """Each would fit in a message, one row of all of them would not."""
    members = [_unbounded(2**20), _unbounded(2**26)]
    with pytest.raises(CodecError, match="takes more than"):
        decode_space(_spec(tuple=spaces_pb2.TupleSpec(spaces=members)))


def _deep(kind: str, depth: int) -> SpaceSpec:
    # Filled from the outside: protobuf refuses to copy what is too deep, as it does to parse it.
    outermost = spec = SpaceSpec()
    for _ in range(depth):
        if kind == "tuple":
            spec = spec.tuple.spaces.add()
        else:
            spec.dict.keys.append("k")
            spec = spec.dict.spaces.add()
    spec.CopyFrom(_box(_ONE, _TWO))
    return outermost


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_nesting(kind: str) -> None:
    space = decode_space(_deep(kind, MAX_SPACE_DEPTH))
    # The deepest space that is allowed passes a parser inside the largest envelope.
    request = interaction_pb2.JoinRequest()
    request.resolve_adapter.env_spec.CopyFrom(encode_env_spec("", None, space))
    assert interaction_pb2.JoinRequest.FromString(request.SerializeToString()) == request
    for depth in (MAX_SPACE_DEPTH + 1, 2000):
        with pytest.raises(CodecError, match="nested more than"):
            decode_space(_deep(kind, depth))
    too_deep = spaces.Tuple([space]) if kind == "tuple" else spaces.Dict({"k": space})
    with pytest.raises(UnsupportedSpaceError, match="nested more than"):
        encode_space(too_deep)


def _decodes_or_codec_error(spec: SpaceSpec) -> None:
    try:
        space = decode_space(spec)
    except CodecError:
        return
    assert decode_space(encode_space(space)) == space


@given(strategies.space_specs())
@settings(max_examples=shortened(300), deadline=None)
def test_arbitrary_specs(spec: SpaceSpec) -> None:
    _decodes_or_codec_error(spec)


@given(strategies.parsed(SpaceSpec))
@settings(max_examples=shortened(200), deadline=None)
def test_arbitrary_bytes(spec: SpaceSpec) -> None:
    _decodes_or_codec_error(spec)


@given(st.data())
@settings(max_examples=shortened(300), deadline=None)
def test_mutated_specs(data: st.DataObject) -> None:
    space = data.draw(st.sampled_from(SPACES))
    _decodes_or_codec_error(data.draw(strategies.mutated(encode_space(space))))
