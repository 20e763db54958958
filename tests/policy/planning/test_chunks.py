from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.errors import ConfigurationError, StateError
from rlmesh_gym.policy.planning.chunks import ActionChunkReplay, lane_indices, stack_frames

TEMPLATE: list[Any] = [
    np.zeros((1, 2), np.float32),
    np.zeros(1, np.int64),
    np.array([""], dtype=object),
]


def chunk_of(rows: list[list[int]]) -> list[Any]:
    """One chunk per row, its frames numbered as given, for a Box, a Discrete and a Text leaf."""
    width = max(len(row) for row in rows)
    numbers = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    texts = np.empty(numbers.shape, dtype=object)
    for place in np.ndindex(numbers.shape):
        texts[place] = str(numbers[place])
    boxes = np.repeat(numbers[..., None], 2, axis=2).astype(np.float32)
    return [boxes, numbers, texts]


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        (None, [0, 1, 2]),
        (1, [1]),
        (np.int64(2), [2]),
        ([2, 0], [2, 0]),
        ((1,), [1]),
        (np.array([1, 2]), [1, 2]),
        ([], []),
        ([True, False, True], [0, 2]),
        (np.array([False, False, False]), []),
    ],
)
def test_lanes_are_an_index_a_list_or_a_mask(lanes: Any, expected: list[int]) -> None:
    assert lane_indices(lanes, 3).tolist() == expected


@pytest.mark.parametrize("lanes", [3, -1, [0, 0], [True, False], 1.5, [[0]], "x"])
def test_other_lanes_are_refused(lanes: Any) -> None:
    with pytest.raises(ConfigurationError):
        lane_indices(lanes, 3)


def test_frames_come_in_order_for_every_kind_of_leaf() -> None:
    replay = ActionChunkReplay(2, 3, TEMPLATE)
    replay.load(None, chunk_of([[1, 2, 3], [4, 5, 6]]))
    for expected in ([1, 4], [2, 5], [3, 6]):
        box, discrete, text = replay.pop()
        assert box.dtype == np.float32
        assert box.tolist() == [[n, n] for n in expected]
        assert discrete.tolist() == expected
        assert text.tolist() == [str(n) for n in expected]
    assert replay.empty_lanes().all()


def test_a_chunk_is_cut_at_the_horizon() -> None:
    replay = ActionChunkReplay(1, 2, TEMPLATE)
    replay.load(0, chunk_of([[1, 2, 3, 4, 5]]))
    assert replay.remaining.tolist() == [2]
    replay.load(0, chunk_of([[1, 2, 3, 4, 5]]), skip=1)
    assert replay.pop()[1].tolist() == [2]
    assert replay.empty_lanes().all()


def test_lanes_with_fewer_frames_are_empty_earlier() -> None:
    replay = ActionChunkReplay(3, 4, TEMPLATE)
    replay.load([2, 0], chunk_of([[1, 2, 3], [7]]), counts=[3, 1])
    assert replay.remaining.tolist() == [1, 0, 3]
    assert replay.pop([0, 2])[1].tolist() == [7, 1]
    assert replay.empty_lanes().tolist() == [True, True, False]


def test_skipped_frames_are_dropped_and_nothing_may_be_left() -> None:
    replay = ActionChunkReplay(2, 4, TEMPLATE)
    replay.load(None, chunk_of([[1, 2, 3], [4, 5, 6]]), skip=[2, 5])
    assert replay.remaining.tolist() == [1, 0]
    assert replay.pop(0)[1].tolist() == [3]


@pytest.mark.parametrize("lanes", [1, [1], [False, True, False]])
def test_an_ended_lane_is_flushed_and_the_others_go_on(lanes: Any) -> None:
    replay = ActionChunkReplay(3, 3, TEMPLATE)
    replay.load(None, chunk_of([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
    replay.pop()
    replay.flush(lanes)
    assert replay.remaining.tolist() == [2, 0, 2]
    replay.load(lanes, chunk_of([[40, 50, 60]]))
    assert replay.pop()[1].tolist() == [2, 40, 8]


def test_popping_an_empty_lane_names_it_and_takes_nothing() -> None:
    replay = ActionChunkReplay(2, 3, TEMPLATE)
    replay.load(0, chunk_of([[1, 2, 3]]))
    with pytest.raises(StateError, match=r"\[1\]"):
        replay.pop()
    assert replay.remaining.tolist() == [3, 0]


def test_what_comes_out_is_the_callers_own() -> None:
    replay = ActionChunkReplay(1, 2, TEMPLATE)
    chunk = chunk_of([[1, 2]])
    replay.load(0, chunk)
    chunk[0][:] = 99
    first = replay.pop()
    first[0][:] = 77
    assert replay.pop()[0].tolist() == [[2, 2]]


@pytest.mark.parametrize(
    "bad",
    [
        [np.zeros((1, 2, 2), np.float32)],
        [np.zeros((2, 2, 2), np.float32), np.zeros((2, 2), np.int64), np.empty((2, 2), object)],
        [np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), np.int64), np.empty((1, 2), object)],
        [np.zeros((1, 2, 2), np.float64), np.zeros((1, 2), np.int64), np.empty((1, 2), object)],
        [np.zeros((1, 2, 2), np.float32), np.zeros((1, 3), np.int64), np.empty((1, 2), object)],
    ],
    ids=["leaves", "rows", "shape", "dtype", "frames"],
)
def test_a_chunk_of_another_form_is_refused(bad: list[Any]) -> None:
    replay = ActionChunkReplay(1, 2, TEMPLATE)
    with pytest.raises(ConfigurationError):
        replay.load(0, bad)
    assert replay.empty_lanes().all()


@pytest.mark.parametrize("options", [{"counts": 4}, {"counts": -1}, {"skip": -1}])
def test_impossible_counts_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="counts must be in"):
        ActionChunkReplay(1, 8, TEMPLATE).load(0, chunk_of([[1, 2, 3]]), **options)


@pytest.mark.parametrize(("lanes", "horizon"), [(0, 1), (1, 0)])
def test_numbers_below_one_are_refused(lanes: int, horizon: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        ActionChunkReplay(lanes, horizon, TEMPLATE)


def test_an_action_without_leaves_still_counts_its_frames() -> None:
    replay = ActionChunkReplay(2, 3, [])
    replay.load(None, [], counts=[2, 1])
    assert replay.pop() == []
    assert replay.remaining.tolist() == [1, 0]


def test_frames_of_successive_steps_become_a_chunk() -> None:
    frames = [[np.full((2, 1), step, np.float32)] for step in range(3)]
    assert stack_frames(frames)[0][:, :, 0].tolist() == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(ConfigurationError, match="at least one frame"):
        stack_frames([])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_replay_equals_a_list_per_lane(data: st.DataObject) -> None:
    """Any order of loads, pops and flushes gives what one Python list per lane gives."""
    num_lanes = data.draw(st.integers(1, 5), label="lanes")
    horizon = data.draw(st.integers(1, 6), label="horizon")
    some_lanes = st.lists(st.integers(0, num_lanes - 1), unique=True)
    replay = ActionChunkReplay(num_lanes, horizon, TEMPLATE)
    naive: list[list[int]] = [[] for _ in range(num_lanes)]
    number = 0
    for _ in range(data.draw(st.integers(1, 25), label="operations")):
        lanes = data.draw(some_lanes, label="of")
        operation = data.draw(st.sampled_from(["load", "flush", "pop"]))
        if operation == "load" and lanes:
            frames = data.draw(st.integers(1, 8))
            counts = [data.draw(st.integers(0, frames)) for _ in lanes]
            skip = [data.draw(st.integers(0, 3)) for _ in lanes]
            rows = []
            for lane, count, dropped in zip(lanes, counts, skip, strict=True):
                rows.append([number := number + 1 for _ in range(frames)])
                naive[lane] = rows[-1][: min(count, horizon)][dropped:]
            replay.load(lanes, chunk_of(rows), counts=counts, skip=skip)
        elif operation == "flush":
            replay.flush(lanes)
            for lane in lanes:
                naive[lane] = []
        else:
            full = [lane for lane in lanes if naive[lane]]
            assert replay.pop(full)[1].tolist() == [naive[lane].pop(0) for lane in full]
        assert replay.remaining.tolist() == [len(frames_left) for frames_left in naive]
