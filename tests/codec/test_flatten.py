"""What a batch or a sample may look like, and what the error says when it does not."""

from __future__ import annotations

import array
import collections
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError

_FLOATS = SpaceCodec(spaces.Box(-1, 1, (2,)))
_BYTES = SpaceCodec(spaces.Box(0, 255, (2,), np.uint8))
_DISCRETE = SpaceCodec(spaces.Discrete(3))
_BITS = SpaceCodec(spaces.MultiBinary(2))
_BOOLS = SpaceCodec(spaces.Box(np.zeros(2, bool), np.ones(2, bool), dtype=np.bool_))
_UINT64 = SpaceCodec(
    spaces.Box(np.zeros(2, np.uint64), np.full(2, 2**64 - 1, np.uint64), dtype=np.uint64)
)
_TEXT = SpaceCodec(spaces.Text(5))
_TREE = SpaceCodec(
    spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(3),) * 2)})
)


class _Tensor:
    """Stands for torch and jax arrays, which numpy reads through ``__array__``."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)


class _NeedsGradient:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


_SWAPPED = np.array([[0.5, -1], [1, 0]]).astype(np.dtype("f4").newbyteorder())

ACCEPTED: dict[str, tuple[SpaceCodec, Any, list[Any]]] = {
    "array": (_FLOATS, np.array([[0.5, -1], [1, 0]], "f4"), [[0.5, -1], [1, 0]]),
    "float64": (_FLOATS, np.array([[0.5, -1], [1, 0]]), [[0.5, -1], [1, 0]]),
    "other_byte_order": (_FLOATS, _SWAPPED, [[0.5, -1], [1, 0]]),
    "not_contiguous": (_FLOATS, np.arange(8, dtype="f4").reshape(2, 4)[:, ::2], [[0, 2], [4, 6]]),
    "fortran_order": (_FLOATS, np.array([[0, 1], [2, 3]], "f4", order="F"), [[0, 1], [2, 3]]),
    "lists": (_FLOATS, [[0.5, -1], (1, 0)], [[0.5, -1], [1, 0]]),
    "integers_for_floats": (_FLOATS, np.array([[1, 0], [0, 1]]), [[1, 0], [0, 1]]),
    "bools_for_floats": (_FLOATS, [[True, False], [False, True]], [[1, 0], [0, 1]]),
    "list_of_arrays": (_FLOATS, [np.zeros(2), np.ones(2)], [[0, 0], [1, 1]]),
    "tensor": (_FLOATS, _Tensor([[0.5, -1], [1, 0]]), [[0.5, -1], [1, 0]]),
    "too_large_for_float32": (_FLOATS, [[1e300, 0], [0, 0]], [[np.inf, 0], [0, 0]]),
    "int64_for_uint8": (_BYTES, [[0, 255], [1, 2]], [[0, 255], [1, 2]]),
    "whole_floats_for_uint8": (_BYTES, np.array([[0.0, 255.0], [1, 2]]), [[0, 255], [1, 2]]),
    "numpy_scalars": (_DISCRETE, [np.int8(1), np.int64(2)], [1, 2]),
    "tuple_of_ints": (_DISCRETE, (1, 2), [1, 2]),
    "whole_floats_for_discrete": (_DISCRETE, [1.0, 2.0], [1, 2]),
    "bools_for_discrete": (_DISCRETE, [True, False], [1, 0]),
    "uint64_for_discrete": (_DISCRETE, np.array([1, 2], np.uint64), [1, 2]),
    "int32_for_discrete": (_DISCRETE, np.array([1, 2], np.int32), [1, 2]),
    "out_of_domain": (_DISCRETE, [7, -1], [7, -1]),
    "bools_for_bits": (_BITS, np.array([[True, False], [False, True]]), [[1, 0], [0, 1]]),
    "uint8_for_bits": (_BITS, np.array([[1, 0], [0, 1]], np.uint8), [[1, 0], [0, 1]]),
    "ints_for_bools": (_BOOLS, [[1, 0], [0, 1]], [[True, False], [False, True]]),
    "large_int_list": (_UINT64, [[1, 2**64 - 1], [0, 2**63 + 1]], [[1, 2**64 - 1], [0, 2**63 + 1]]),
    "text_tuple": (_TEXT, ("ab", ""), ["ab", ""]),
    "text_list": (_TEXT, [np.str_("ab"), ""], ["ab", ""]),
    "text_array": (_TEXT, np.array(["ab", "c"]), ["ab", "c"]),
    "text_object_array": (_TEXT, np.array(["ab", "c"], object), ["ab", "c"]),
}


@pytest.mark.parametrize(("codec", "batch", "rows"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted_batches(codec: SpaceCodec, batch: Any, rows: list[Any]) -> None:
    (leaf,) = codec.flatten(batch, 2)
    assert leaf.dtype == codec.empty(1)[0].dtype
    assert leaf.flags.c_contiguous
    assert leaf.dtype.isnative
    assert leaf.tolist() == rows


REFUSED: dict[str, tuple[SpaceCodec, Any, str]] = {
    "short": (_FLOATS, np.zeros((1, 2)), r"expected shape \(2, 2\), got \(1, 2\)"),
    "long": (_FLOATS, np.zeros((3, 2)), r"expected shape \(2, 2\), got \(3, 2\)"),
    "one_row_bare": (_FLOATS, np.zeros(2), r"expected shape \(2, 2\), got \(2,\)"),
    "scalar": (_FLOATS, 0.0, r"expected shape \(2, 2\), got \(\)"),
    "columns_for_discrete": (_DISCRETE, [[1], [2]], r"expected shape \(2,\), got \(2, 1\)"),
    "scalar_for_discrete": (_DISCRETE, 1, r"expected shape \(2,\), got \(\)"),
    "short_discrete": (_DISCRETE, [1], r"expected shape \(2,\), got \(1,\)"),
    "fraction": (_DISCRETE, [1.0, 1.5], r"expected int64 values, got 1.5 \(float64\)"),
    "nan_for_discrete": (_DISCRETE, [1.0, np.nan], "expected int64 values, got nan"),
    "inf_for_discrete": (_DISCRETE, [np.inf, 1.0], "expected int64 values, got inf"),
    "beyond_int64": (_DISCRETE, [2.0**63, 1.0], "expected int64 values, got 9.22"),
    "beyond_int64_list": (_DISCRETE, [2**63, 1], "expected int64 values, got 9223372036854775808"),
    "beyond_all_integers": (
        _DISCRETE,
        [2**70, 1],
        "dtype int64, got dtype object",
    ),
    "beyond_uint64": (_UINT64, [[2.0**64, 0], [0, 0]], "expected uint64 values, got 1.84"),
    "negative_uint64": (_UINT64, [[-1, 0], [0, 0]], "expected uint64 values, got -1"),
    "beyond_uint8": (_BYTES, [[0, 256], [0, 0]], r"expected uint8 values, got 256 \(int64\)"),
    "negative_uint8": (_BYTES, np.array([[0, -1], [0, 0]], "i1"), "expected uint8 values, got -1"),
    "two_for_bool": (_BOOLS, [[2, 0], [0, 0]], "expected bool values, got 2"),
    "strings": (_FLOATS, [["a", "b"]] * 2, "expected numbers of dtype float32, got dtype <U1"),
    "none": (_FLOATS, None, "expected numbers of dtype float32, got dtype object"),
    "complex": (_FLOATS, np.zeros((2, 2), complex), "got dtype complex128"),
    "dates": (_DISCRETE, np.zeros(2, "M8[s]"), "got dtype datetime64"),
    "ragged": (_FLOATS, [[1.0], [1.0, 2.0]], "expected numbers of dtype float32, got a list of"),
    "needs_gradient": (_FLOATS, _NeedsGradient(), "requires grad"),
    "dict_for_array": (_FLOATS, {"a": 1}, "got dtype object"),
    "bare_text": (_TEXT, "ab", "expected a tuple of 2 str, got a str of length 2"),
    "short_text": (_TEXT, ("ab",), "expected a tuple of 2 str, got a tuple of length 1"),
    "text_scalar_array": (_TEXT, np.array("ab"), r"got an array of shape \(\)"),
    "number_for_text": (_TEXT, ("ab", 3), "expected a str in row 1, got the int 3"),
    "bytes_for_text": (_TEXT, ("ab", b"c"), "expected a str in row 1, got a bytes"),
}


@pytest.mark.parametrize(("codec", "batch", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_batches(codec: SpaceCodec, batch: Any, match: str) -> None:
    with pytest.raises(CodecError, match=match) as caught:
        codec.flatten(batch, 2)
    assert caught.value.path == "$"
    assert isinstance(caught.value, ValueError)


class TestStructure:
    """Dicts and tuples."""

    good: dict[str, Any] = {"a": np.zeros((2, 2)), "b": ([0, 1], [1, 2])}  # noqa: RUF012

    def test_extra_keys_are_dropped(self) -> None:
        leaves = _TREE.flatten({"x": object(), **self.good}, 2)
        assert [leaf.tolist() for leaf in leaves] == [[[0, 0], [0, 0]], [0, 1], [1, 2]]

    def test_other_mappings_and_lists(self) -> None:
        batch = collections.OrderedDict(b=[[0, 1], [1, 2]], a=np.zeros((2, 2)))
        assert _TREE.flatten(batch, 2)[2].tolist() == [1, 2]
        rows = np.array([[0, 1], [1, 2]])
        assert _TREE.flatten({**self.good, "b": rows}, 2)[1].tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("batch", "path", "match"),
        [
            ({"a": [[0, 0]] * 2}, "$", r"the key 'b' is missing, got \['a'\]"),
            (np.zeros((2, 2)), "$", "expected a dict, got an array"),
            (None, "$", "expected a dict, got a NoneType"),
            (
                {**good, "b": ([0, 1],)},
                "$.b",
                "expected a tuple of length 2, got a tuple of length 1",
            ),
            (
                {**good, "b": {"0": 1}},
                "$.b",
                "expected a tuple of length 2, got a dict of length 1",
            ),
            ({**good, "b": "ab"}, "$.b", "expected a tuple of length 2, got a str of length 2"),
            ({**good, "b": 7}, "$.b", "expected a tuple of length 2, got the int 7"),
            ({**good, "b": np.array(7)}, "$.b", r"got an array of shape \(\), dtype int64"),
            ({**good, "b": 2**20000}, "$.b", "got an int of 20001 bits"),
            ({**good, "b": ([0, 1], [1])}, "$.b[1]", r"expected shape \(2,\), got \(1,\)"),
            ({**good, "a": "x"}, "$.a", "expected numbers of dtype float32"),
        ],
    )
    def test_path(self, batch: Any, path: str, match: str) -> None:
        with pytest.raises(CodecError, match=match) as caught:
            _TREE.flatten(batch, 2)
        assert caught.value.path == path


class TestRows:
    """Single samples, as environments return them."""

    @pytest.mark.parametrize(
        ("codec", "sample", "row"),
        [
            (_FLOATS, [0.5, 1], [0.5, 1.0]),
            (_FLOATS, np.array([[0.5, 1]]), [0.5, 1.0]),
            (_FLOATS, np.array([0.5, 1], np.dtype("f8").newbyteorder()), [0.5, 1.0]),
            (_FLOATS, array.array("d", [0.5, 1]), [0.5, 1.0]),
            (_DISCRETE, 2, 2),
            (_DISCRETE, np.int64(2), 2),
            (_DISCRETE, np.array([2]), 2),
            (_DISCRETE, True, 1),
            (_DISCRETE, 2.0, 2),
            (_BITS, [True, False], [1, 0]),
            (_TEXT, "ab", "ab"),
            (SpaceCodec(spaces.Box(-1, 1, ())), 0.5, 0.5),
            (SpaceCodec(spaces.Box(-1, 1, (1,))), 0.5, [0.5]),
            (SpaceCodec(spaces.Box(0, 1, (0,))), [], []),
        ],
    )
    def test_accepted(self, codec: SpaceCodec, sample: Any, row: Any) -> None:
        (leaf,) = codec.flatten_row(sample)
        assert leaf.tolist() == [row]
        assert leaf.dtype == codec.empty(1)[0].dtype

    @pytest.mark.parametrize(
        ("codec", "sample", "match"),
        [
            (_FLOATS, [0.5], r"expected shape \(2,\), got \(1,\)"),
            (_FLOATS, [[0.5], [1]][0], r"expected shape \(2,\)"),
            (SpaceCodec(spaces.Box(0, 1, (2, 3))), np.zeros((3, 2)), r"expected shape \(2, 3\)"),
            (SpaceCodec(spaces.Box(0, 1, (2, 3))), np.zeros(6), r"expected shape \(2, 3\)"),
            (_FLOATS, None, "got dtype object"),
            (_DISCRETE, 1.5, "expected int64 values, got 1.5"),
            (_TEXT, 3, "expected a str in row 0, got the int 3"),
            (_TEXT, None, "got a NoneType"),
        ],
    )
    def test_refused(self, codec: SpaceCodec, sample: Any, match: str) -> None:
        with pytest.raises(CodecError, match=match):
            codec.flatten_row(sample)

    def test_missing_key(self) -> None:
        with pytest.raises(CodecError, match="the key 'b' is missing"):
            _TREE.flatten_rows([{"a": [0, 0], "b": (0, 1)}, {"a": [0, 0]}])

    def test_no_rows(self) -> None:
        leaves = _TREE.flatten_rows([])
        assert [leaf.shape for leaf in leaves] == [(0, 2), (0,), (0,)]


class TestChecks:
    """Values that do not belong to the space, found for all lanes at once."""

    codec = SpaceCodec(
        spaces.Dict(
            {
                "box": spaces.Box(np.array([-1, -np.inf], "f4"), np.array([1, 5], "f4")),
                "bytes": spaces.Box(0, 9, (2, 2), np.uint8),
                "choice": spaces.Discrete(3, start=-1),
                "many": spaces.MultiDiscrete([2, 3]),
                "bits": spaces.MultiBinary(2),
                "image": spaces.Box(0, 255, (2,), np.uint8),
                "free": spaces.Box(-np.inf, np.inf, ()),
                "flags": spaces.Box(np.zeros(1, bool), np.ones(1, bool), dtype=np.bool_),
                "empty": spaces.Box(0, 1, (0,)),
                "word": spaces.Text(3, min_length=1, charset="ab"),
                "any": spaces.Text(3),
            }
        )
    )

    def rows(self, **values: Any) -> list[Any]:
        batch: dict[str, Any] = {
            "box": [[0, 0], [1, -9e9], [-1, 5]],
            "bytes": [[[0, 9], [1, 2]]] * 3,
            "choice": [-1, 0, 1],
            "many": [[0, 0], [1, 2], [0, 1]],
            "bits": [[0, 1]] * 3,
            "image": [[0, 255]] * 3,
            "free": [0, np.inf, -np.inf],
            "flags": [[True], [False], [True]],
            "empty": np.zeros((3, 0)),
            "word": ("a", "bb", "aba"),
            "any": ("é", "ab", "☃☃☃"),
        }
        return self.codec.flatten({**batch, **values}, 3)

    def test_all_well(self) -> None:
        assert self.codec.out_of_domain(self.rows()) == []
        assert self.codec.out_of_bounds(self.rows()) == []

    def test_domain(self) -> None:
        leaves = self.rows(
            box=[[np.nan, 0], [0, np.nan], [0, 0]],
            choice=[-2, 2, 0],
            many=[[0, 0], [2, 3], [0, -1]],
            free=[0, 0, np.nan],
        )
        assert self.codec.out_of_domain(leaves) == [
            (0, "$.box", "value nan at [0]"),
            (1, "$.box", "value nan at [1]"),
            (0, "$.choice", "value -2 not in range [-1, 2)"),
            (1, "$.choice", "value 2 not in range [-1, 2)"),
            (2, "$.free", "value nan"),
            (1, "$.many", "value 2 at [0] not in range [0, 2)"),
            (2, "$.many", "value -1 at [1] not in range [0, 3)"),
        ]
        assert self.codec.out_of_bounds(leaves) == []

    def test_bounds(self) -> None:
        leaves = self.rows(
            box=[[2, 9], [0, 5.5], [0, np.inf]],
            bytes=[[[0, 1], [2, 10]]] + [[[0, 0]] * 2] * 2,
            bits=[[0, 2], [-1, 0], [0, 0]],
            word=("", "abab", "acb"),
            any=("", "abcd", "☃☃☃"),
        )
        assert self.codec.out_of_bounds(leaves) == [
            (0, "$.any", "text of length 0 not in [1, 3]"),
            (1, "$.any", "text of length 4 not in [1, 3]"),
            (0, "$.bits", "value 2 at [1] not in [0, 1]"),
            (1, "$.bits", "value -1 at [0] not in [0, 1]"),
            (0, "$.box", "value 2.0 at [0] not in [-1.0, 1.0]"),
            (1, "$.box", "value 5.5 at [1] not in [-inf, 5.0]"),
            (2, "$.box", "value inf at [1] not in [-inf, 5.0]"),
            (0, "$.bytes", "value 10 at [1, 1] not in [0, 9]"),
            (0, "$.word", "text of length 0 not in [1, 3]"),
            (1, "$.word", "text of length 4 not in [1, 3]"),
            (2, "$.word", "character 'c' not in the charset"),
        ]
        assert self.codec.out_of_domain(leaves) == []

    def test_extreme_ranges(self) -> None:
        top = SpaceCodec(spaces.Discrete(2, start=2**63 - 2))
        assert top.out_of_domain(top.flatten([2**63 - 1, 2**63 - 2], 2)) == []
        assert len(top.out_of_domain(top.flatten([0, 2**63 - 3], 2))) == 2
        bottom = SpaceCodec(spaces.Discrete(2, start=-(2**63)))
        assert bottom.out_of_domain(bottom.flatten([-(2**63), 1 - 2**63], 2)) == []

    def test_agrees_with_contains(self) -> None:
        space = spaces.Box(np.array([-1, 0], "f4"), np.array([1, 2], "f4"))
        codec = SpaceCodec(space)
        rows = np.random.default_rng(0).uniform(-2, 3, (200, 2)).astype("f4")
        outside = {row for row, _, _ in codec.out_of_bounds([rows])}
        assert outside == {row for row in range(200) if not space.contains(rows[row])}
