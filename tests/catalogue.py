"""Spaces that the tests run over: every fundamental kind, every dtype, every form of bounds."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = [
    "DTYPES",
    "MIXED_SPACE",
    "SPACES",
    "SPACE_IDS",
    "UNSUPPORTED_SPACES",
    "UNSUPPORTED_SPACE_IDS",
    "ordered_dict_space",
]

DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name)
    for name in (
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    )
)
"""The element types of the wire, in the order of their numbers there."""


def ordered_dict_space(members: dict[str, spaces.Space[Any]]) -> spaces.Dict:
    """Return a Dict space that keeps the order of ``members`` on every Gymnasium."""
    if "sort_keys" in inspect.signature(spaces.Dict.__init__).parameters:
        return spaces.Dict(members, sort_keys=False)
    return spaces.Dict(OrderedDict(members))


def _box(low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: Any = "f4") -> Any:
    if isinstance(low, list):
        low, high = np.array(low, dtype), np.array(high, dtype)
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def _every_dtype() -> dict[str, spaces.Space[Any]]:
    return {f"box_{dtype}": _box(0, 1, (2, 3), dtype) for dtype in DTYPES}


_INF = float("inf")

MIXED_SPACE = spaces.Dict(
    {
        "camera": _box(0, 255, (4, 5, 3), "u1"),
        "joints": _box([-1.0, -2.0, -_INF], [1.0, 2.0, _INF]),
        "gripper": spaces.Discrete(3, start=-1),
        "contacts": spaces.MultiBinary([2, 2]),
        "buttons": spaces.MultiDiscrete([2, 3, 4]),
        "instruction": spaces.Text(12),
        "pair": spaces.Tuple((spaces.Text(3, charset="aé☃"), spaces.Discrete(2))),
    }
)
"""One of everything that an observation can be made of."""

_NAMED: dict[str, spaces.Space[Any]] = {
    **_every_dtype(),
    "box_unbounded": _box(-_INF, _INF, (3,)),
    "box_unbounded_float64": _box(-_INF, _INF, (2, 2), "f8"),
    "box_half_infinite": _box(0.0, _INF, (3,)),
    "box_upper_only": _box(-_INF, 1.5, (2,), "f8"),
    "box_elementwise": _box([-1.0, -2.0], [3.0, 4.0]),
    "box_one_side_varies": _box([0.0, 0.0], [3.0, 4.0]),
    "box_mixed_infinite": _box([-_INF, 0.0], [_INF, _INF]),
    "box_elementwise_int16": _box([-300, 0], [300, 7], dtype="i2"),
    "box_int64_full": _box(np.iinfo("i8").min, np.iinfo("i8").max, (2,), "i8"),
    "box_scalar": _box(-1.0, 1.0, ()),
    "box_scalar_float64": _box(-3.0, _INF, (), "f8"),
    "box_one": _box(-1.0, 1.0, (1,)),
    "box_empty": _box(-1.0, 1.0, (0,)),
    "box_empty_2d": _box(0, 255, (2, 0), "u1"),
    "box_image": _box(0, 255, (8, 6, 3), "u1"),
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(3, start=5),
    "discrete_negative_start": spaces.Discrete(5, start=-2),
    "multi_binary": spaces.MultiBinary(5),
    "multi_binary_2d": spaces.MultiBinary([2, 3]),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 5]),
    "multi_discrete_2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "text": spaces.Text(6),
    "text_maybe_empty": spaces.Text(6, min_length=0),
    "text_charset": spaces.Text(6, min_length=2, charset="ab01"),
    "text_unicode": spaces.Text(5, charset="aß☃😀"),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": _box(-1.0, 1.0, (2,))}),
    "dict_declared_order": ordered_dict_space(
        {"z": spaces.Discrete(2), "a": spaces.Discrete(3), "m.n/o": _box(0, 1, (2,))}
    ),
    "dict_empty": spaces.Dict({}),
    "tuple": spaces.Tuple((spaces.Discrete(2), _box(-1.0, 1.0, (2,)), spaces.Text(3))),
    "tuple_empty": spaces.Tuple(()),
    "nested": spaces.Tuple(
        (
            spaces.Dict({"x": spaces.Tuple((spaces.Discrete(2), spaces.Dict({})))}),
            spaces.Tuple((spaces.Tuple((_box(0, 1, (1,)),)), spaces.MultiBinary(2))),
        )
    ),
    "mixed": MIXED_SPACE,
}

SPACES: tuple[spaces.Space[Any], ...] = tuple(_NAMED.values())
SPACE_IDS: tuple[str, ...] = tuple(_NAMED)


class _CustomSpace(spaces.Space[Any]):
    """A space of the user's own."""


_UNSUPPORTED: dict[str, spaces.Space[Any]] = {
    "graph": spaces.Graph(_box(0, 1, (2,)), None),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
    "one_of": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    "custom": _CustomSpace(),
    "longdouble": _box(-1.0, 1.0, (2,), np.longdouble),
    "text_no_characters": spaces.Text(3, min_length=0, charset=""),
    "int_key": spaces.Dict({1: spaces.Discrete(2)}),  # type: ignore[dict-item]
}

UNSUPPORTED_SPACES: tuple[spaces.Space[Any], ...] = tuple(_UNSUPPORTED.values())
UNSUPPORTED_SPACE_IDS: tuple[str, ...] = tuple(_UNSUPPORTED)
