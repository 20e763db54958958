from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.errors import ConfigurationError, StateError
from rlmesh_gym.policy.planning.chunks import ActionChunkReplay
from rlmesh_gym.policy.planning.ensemble import EXPONENTIAL_DECAY, EnsembleReplay, make_replay

BOX = [np.zeros((1, 2), np.float64)]


def oldest_third(predictions: Any, ages: Any) -> Any:
    """A rule that no average resembles, and that depends on the ages."""
    return predictions[len(predictions) // 3] + ages.sum()


class NaiveEnsemble:
    """One lane, one Python list of (step of the observation, frames)."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        self.chunks: list[tuple[int, Any]] = []
        self.step = 0

    def load(self, frames: Any, skip: int) -> None:
        self.chunks.append((self.step - skip, frames))

    def pop(self) -> Any:
        live = [(s, f) for s, f in self.chunks if s <= self.step < s + len(f)]
        live.sort(key=lambda chunk: chunk[0])
        predictions = np.array([f[self.step - s] for s, f in live])
        ages = np.array([self.step - s for s, _ in live])
        self.step += 1
        if callable(self.rule):
            return self.rule(predictions, ages)
        if self.rule == "newest":
            return predictions[-1]
        decay = EXPONENTIAL_DECAY if self.rule == "exponential" else 0.0
        weights = np.exp(-decay * np.arange(len(predictions)))
        return (weights / weights.sum()) @ predictions


@pytest.mark.parametrize("rule", ["newest", "mean", "exponential", oldest_third])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_every_rule_equals_the_naive_one(rule: Any, data: st.DataObject) -> None:
    num_lanes = data.draw(st.integers(1, 4), label="lanes")
    horizon = data.draw(st.integers(1, 6), label="horizon")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    replay = EnsembleReplay(num_lanes, horizon, BOX, rule)
    naive = [NaiveEnsemble(rule) for _ in range(num_lanes)]
    last_load = [-1] * num_lanes
    for step in range(30):
        for lane in np.flatnonzero(random.random(num_lanes) < 0.1):
            replay.flush(int(lane))
            naive[lane] = NaiveEnsemble(rule)
        loaded = np.flatnonzero(replay.empty_lanes() | (random.random(num_lanes) < 0.4))
        frames = int(random.integers(1, horizon + 3))
        chunk = random.normal(size=(len(loaded), frames, 2))
        # At most as old as the last load, and never older than the episode.
        skip = [
            int(random.integers(0, max(1, min(naive[n].step, frames, step - last_load[n]))))
            if frames > 1
            else 0
            for n in loaded
        ]
        skip = [min(s, min(frames, horizon) - 1) for s in skip]
        replay.load(loaded, [chunk], skip=skip)
        for row, lane in enumerate(loaded):
            naive[lane].load(chunk[row, :horizon], skip[row])
            last_load[lane] = step
        expected = np.array([lane.pop() for lane in naive])
        np.testing.assert_allclose(replay.pop()[0], expected, rtol=1e-12)


def test_acts_weights_favour_the_oldest() -> None:
    replay = EnsembleReplay(1, 2, [np.zeros((1, 1))], "exponential")
    replay.load(0, [np.array([[[0.0], [0.0]]])])
    replay.pop()
    replay.load(0, [np.array([[[1.0], [1.0]]])])
    weight = np.exp(-0.01)
    assert replay.pop()[0][0, 0] == pytest.approx(weight / (1 + weight))


def test_one_prediction_comes_back_bit_for_bit() -> None:
    values = np.array([[[0.1], [1e-45], [3.4e38]]], np.float32)
    replay = EnsembleReplay(1, 3, [np.zeros((1, 1), np.float32)], "mean")
    replay.load(0, [values])
    assert [replay.pop()[0][0, 0] for _ in range(3)] == values[0, :, 0].tolist()


@pytest.mark.parametrize("rule", ["mean", "exponential"])
def test_leaves_without_a_mean_take_the_newest(rule: Any) -> None:
    template = [np.zeros(1, np.int64), np.array([""], dtype=object), np.zeros((1, 1), np.bool_)]
    replay = EnsembleReplay(1, 2, template, rule)
    old = [np.array([[3, 3]]), np.array([["a", "b"]], object), np.array([[[True], [True]]])]
    new = [np.array([[8, 8]]), np.array([["c", "d"]], object), np.array([[[False], [False]]])]
    replay.load(0, old)
    replay.pop()
    replay.load(0, new)
    number, text, flag = replay.pop()
    assert (number[0], text[0], flag[0, 0]) == (8, "c", False)


def test_a_callable_sees_integer_and_text_leaves_too() -> None:
    def vote(predictions: Any, ages: Any) -> Any:
        return max(set(predictions.tolist()), key=predictions.tolist().count)

    replay = EnsembleReplay(1, 3, [np.zeros(1, np.int64), np.array([""], dtype=object)], vote)
    for number, text in ((4, "x"), (5, "y"), (4, "x")):
        replay.load(0, [np.full((1, 3), number), np.full((1, 3), text, dtype=object)])
        numbers, texts = replay.pop()
    assert (numbers[0], texts[0]) == (4, "x")


def test_a_callable_that_returns_another_form_is_told() -> None:
    replay = EnsembleReplay(1, 2, BOX, lambda predictions, ages: predictions)
    replay.load(0, [np.zeros((1, 2, 2))])
    with pytest.raises(ConfigurationError, match=r"the ensemble rule returned float64\[1, 2\]"):
        replay.pop()


def test_a_flushed_lane_forgets_its_predictions() -> None:
    replay = EnsembleReplay(2, 4, [np.zeros((1, 1))], "mean")
    replay.load(None, [np.full((2, 4, 1), 100.0)])
    replay.pop()
    replay.flush(1)
    replay.load(1, [np.zeros((1, 4, 1))])
    assert replay.pop()[0].ravel().tolist() == [100.0, 0.0]


def test_a_short_new_chunk_empties_the_lane_though_an_old_one_reaches_further() -> None:
    replay = EnsembleReplay(1, 4, [np.zeros((1, 1))], "mean")
    replay.load(0, [np.zeros((1, 4, 1))])
    replay.pop()
    replay.load(0, [np.zeros((1, 1, 1))])
    replay.pop()
    assert replay.empty_lanes().tolist() == [True]
    with pytest.raises(StateError, match="no frame left"):
        replay.pop()


def test_a_leftover_of_a_dead_chunk_never_spoils_the_mean() -> None:
    replay = EnsembleReplay(2, 3, [np.zeros((1, 1))], "mean")
    replay.load(None, [np.full((2, 3, 1), np.inf)])
    replay.flush(0)
    replay.load(0, [np.ones((1, 3, 1))])
    assert replay.pop()[0].ravel().tolist() == [1.0, np.inf]


def test_newest_needs_only_the_plain_replay() -> None:
    assert isinstance(make_replay(1, 2, BOX, "newest"), ActionChunkReplay)
    assert isinstance(make_replay(1, 2, BOX, "mean"), EnsembleReplay)
    unknown: Any = "median"
    with pytest.raises(ConfigurationError, match="median"):
        make_replay(1, 2, BOX, unknown)
