"""Rows cut out of bytes are the rows that decoding gives, for every space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
from rlmesh_gym.errors import CodecError, StateError
from rlmesh_gym.runtime.ends.rows import RowFormat, Rows, RowStore, gather
from tests.catalogue import SPACE_IDS, SPACES

ORDERS: tuple[list[int], ...] = ([0, 1, 2, 3, 4], [3], [4, 0, 2], [1, 1, 0], [])


def both_kinds(space: spaces.Space[Any], count: int) -> tuple[RowFormat, Rows, Rows]:
    space.seed(1)
    form = RowFormat(space)
    leaves = form.codec.flatten_rows([space.sample() for _ in range(count)])
    local = form.from_leaves(leaves, count)
    wire = form.from_value(form.codec.encode(leaves, count), count)
    return form, local, wire


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_taking_rows_of_bytes_equals_taking_rows_of_values(space: spaces.Space[Any]) -> None:
    form, local, wire = both_kinds(space, 5)
    for order in ORDERS:
        expected = [leaf[np.asarray(order, np.intp)] for leaf in local.leaves()]
        for rows in (local, wire):
            taken = rows.take(order)
            assert taken.num_rows == len(order)
            batch = form.codec.unflatten(expected, len(order))
            assert data_equivalence(taken.batch(), batch)
            assert taken.value() == form.codec.encode(expected, len(order))


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_joining_and_gathering(space: spaces.Space[Any]) -> None:
    form, local, wire = both_kinds(space, 3)
    twice = [np.concatenate([leaf, leaf]) for leaf in local.leaves()]
    expected = form.codec.encode(twice, 6)
    for left in (local, wire):
        for right in (local, wire):
            assert Rows.join([left, right]).value() == expected
    store = RowStore(4)
    store.put([0, 1, 2, 3], wire.take([2, 0, 1, 1]))
    store.put([1, 3], local.take([1, 0]))
    picked = [leaf[np.array([2, 1, 0, 1])] for leaf in local.leaves()]
    assert store.gather([0, 1, 3, 2]).value() == form.codec.encode(picked, 4)


def test_what_goes_through_whole_is_the_message_itself() -> None:
    _, _, wire = both_kinds(spaces.Box(0, 1, (3,)), 4)
    value = wire.value()
    rows = gather([(wire, row) for row in range(4)])
    assert rows is wire
    assert rows.value() is value


def test_bytes_that_do_not_fit_are_refused() -> None:
    form = RowFormat(spaces.Dict(a=spaces.Box(0, 1, (3,)), t=spaces.Text(5)))
    with pytest.raises(CodecError, match="expected 2 leaves"):
        form.from_value(SpaceValue(leaves=[b""]), 1)
    with pytest.raises(CodecError, match="12 bytes"):
        form.from_value(SpaceValue(leaves=[bytes(13), b""]), 1)
    for text in (b"", bytes(16), (1).to_bytes(8, "little") + b"\xff" * 8 + b"a"):
        rows = form.from_value(SpaceValue(leaves=[bytes(24), text]), 2)
        with pytest.raises(CodecError, match="text"):
            rows.take([0])


def test_a_lane_without_a_row_is_named() -> None:
    with pytest.raises(StateError, match="lane 1"):
        RowStore(2).gather([1])
