"""Legal members of spaces, and spaces compared."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym.codec import SpaceCodec, filler_action, same_space
from rlmesh_gym.codec.spaces.checks import legal_member
from tests.catalogue import SPACE_IDS, SPACES, ordered_dict_space


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_members_of_every_space(space: spaces.Space[Any]) -> None:
    member = legal_member(space)
    assert space.contains(member)
    codec = SpaceCodec(space)
    leaves = filler_action(codec)
    assert codec.out_of_domain(leaves) == codec.out_of_bounds(leaves) == []
    assert same_space(space, space)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(5, start=-2), 0),
        (spaces.Discrete(5, start=3), 3),
        (spaces.Discrete(2, start=-7), -6),
        (spaces.MultiDiscrete([3, 3, 3], start=[-1, 1, -9]), [0, 1, -7]),
        (spaces.Box(1.0, 2.0, (1,)), [1.0]),
        (spaces.Box(-2, -1, (1,), np.int8), [-1]),
        (spaces.Box(-np.inf, np.inf, (1,)), [0.0]),
        (spaces.Text(5, min_length=2, charset="xy"), "xx"),
    ],
)
def test_zeros_where_they_are_legal(space: Any, expected: Any) -> None:
    member = legal_member(space)
    assert space.contains(member)
    assert member == expected if isinstance(expected, str) else np.all(member == expected)


BOX = spaces.Box(0.0, 1.0, (2,), np.float32)
KEYS = {"b": spaces.Discrete(2), "a": BOX}


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (BOX, spaces.Box(0.0, 1.0, (2,), np.float64)),
        (BOX, spaces.Box(0.0, 1.0 + 1e-6, (2,), np.float32)),
        (BOX, spaces.Box(0.0, 1.0, (3,), np.float32)),
        (spaces.Discrete(3), spaces.Discrete(3, start=1)),
        (spaces.MultiDiscrete([2, 2]), spaces.MultiDiscrete([2, 2], dtype=np.int32)),
        (spaces.MultiDiscrete([2, 2]), spaces.MultiDiscrete([2, 2], start=[1, 0])),
        (spaces.Text(3), spaces.Text(3, charset="ab")),
        (ordered_dict_space(KEYS), ordered_dict_space(OrderedDict(reversed(KEYS.items())))),
        (spaces.Discrete(2), spaces.MultiBinary(1)),
    ],
)
def test_spaces_that_differ(first: Any, other: Any) -> None:
    assert not same_space(first, other)


def test_spaces_that_do_not() -> None:
    assert same_space(spaces.Dict(KEYS), spaces.Dict(KEYS))
    assert same_space(BOX, spaces.Box(np.zeros(2, np.float32), np.ones(2, np.float32)))
