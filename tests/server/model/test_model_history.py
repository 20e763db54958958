"""Steps of episodes: gaps, repeats and disorder are refused whole, and a corrected retry works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import ModelError
from rlmesh_gym.server import (
    HistoryNeeds,
    ModelObservation,
    ModelRouteSetup,
    ResolveOptions,
    RouteNeeds,
)
from rlmesh_gym.server.model.routes import StepTracker
from tests.model_client import (
    EchoHandler,
    exchange,
    frame,
    predict_request,
    request_of,
    resolve_request,
    service_of,
)


class HistorySetup(ModelRouteSetup):
    def __init__(self) -> None:
        self.options: list[ResolveOptions] = []

    def resolve_adapter(self, env_id: str, contract: Any, options: ResolveOptions) -> RouteNeeds:
        self.options.append(options)
        return RouteNeeds(history=HistoryNeeds(("image",)))


class HistoryHandler(EchoHandler):
    def __init__(self, chunk: int = 1) -> None:
        super().__init__(chunk)
        self.setup = HistorySetup()

    def route_setup(self) -> ModelRouteSetup:
        return self.setup


def _sequence(observation: ModelObservation) -> list[tuple[int, dict[str, float]]]:
    rows = [
        (f.step, dict(zip(f.episode_ids, f.observation[:, 0].tolist(), strict=True)))
        for f in observation.history
    ]
    assert observation.step is not None
    last = dict(zip(observation.episode_ids, observation.observation[:, 0].tolist(), strict=True))
    return [*rows, (observation.step, last)]


def test_rows_arrive_in_order_with_their_steps() -> None:
    handler = HistoryHandler(chunk=3)
    history = [frame(1, {"a": 1, "b": 10}), frame(2, {"a": 2, "b": 20})]
    with service_of(handler) as service:
        resolved, first, second = exchange(
            service,
            resolve_request(request_id="0", horizon=3, delivers_history=True),
            predict_request({"a": 0, "b": 0}, request_id="1", step=0),
            predict_request({"b": 30, "a": 3}, request_id="2", step=3, history=history),
        )
    assert list(resolved.resolve_adapter.history.keys) == ["image"]
    assert not resolved.resolve_adapter.history.prunable
    assert len(first.predict.actions) == len(second.predict.actions) == 3
    assert [_sequence(observation) for observation in handler.seen] == [
        [(0, {"a": 0, "b": 0})],
        [(1, {"a": 1, "b": 10}), (2, {"a": 2, "b": 20}), (3, {"a": 3, "b": 30})],
    ]
    assert handler.setup.options == [ResolveOptions(3, delivers_history=True)]


def test_needs_are_not_stated_to_clients_that_do_not_deliver() -> None:
    handler = HistoryHandler()
    with service_of(handler) as service:
        short, long, predicted = exchange(
            service,
            resolve_request(request_id="0", horizon=1),
            resolve_request("other", request_id="1", horizon=2),
            predict_request({"a": 0}, request_id="2"),  # No step: nothing was agreed on.
        )
    assert not short.resolve_adapter.HasField("history")
    assert "delivers_history" in long.error.message
    assert long.error.is_recoverable
    assert predicted.HasField("predict")


@pytest.mark.parametrize(
    ("step", "history", "expected"),
    [
        pytest.param(2, [], "expected 1", id="gap"),
        pytest.param(0, [], "expected 1", id="repeat"),
        pytest.param(3, [frame(1, {"a": 1})], "expected 2", id="gap after history"),
        pytest.param(3, [frame(2, {"a": 1}), frame(1, {"a": 1})], "expected 1", id="unsorted"),
        pytest.param(2, [frame(1, {"a": 1}), frame(1, {"a": 1})], "expected 2", id="twice"),
        pytest.param(None, [], "step is missing", id="no step"),
        pytest.param(
            2, [frame(1, {"a": 1, "b": 1}), frame(3, {"b": 1})], "expected 2", id="other episode"
        ),
    ],
)
def test_a_refused_request_absorbs_nothing(step: Any, history: Any, expected: str) -> None:
    handler = HistoryHandler()
    with service_of(handler) as service:
        _, _, refused, right = exchange(
            service,
            resolve_request(request_id="0", delivers_history=True),
            predict_request({"a": 0, "b": 0}, request_id="1", step=0),
            predict_request({"a": 9}, request_id="2", step=step, history=history),
            predict_request(
                {"a": 2, "b": 2}, request_id="3", step=2, history=[frame(1, {"a": 1, "b": 1})]
            ),
        )
    assert expected in refused.error.message
    assert refused.error.code == 2
    assert refused.error.is_recoverable
    assert right.HasField("predict"), right.error.message
    assert len(handler.seen) == 2


def test_malformed_history_is_refused() -> None:
    empty = frame(1, {"a": 1})
    del empty.episode_info[:]
    narrow = frame(1, {"a": 1})
    narrow.episode_info.add(episode_id="b")
    bare = frame(1, {"a": 1})
    bare.ClearField("observation")
    handler = HistoryHandler()
    with service_of(handler) as service:
        answers = exchange(
            service,
            resolve_request(request_id="0", delivers_history=True),
            *(
                predict_request({"a": 2}, request_id=str(index), step=2, history=[bad])
                for index, bad in enumerate(
                    (empty, narrow, bare, frame(1, {"a": float("nan")})), start=1
                )
            ),
        )
    messages = [answer.error.message for answer in answers[1:]]
    assert "episode_info is empty" in messages[0]
    assert "2 rows do not fit" in messages[1]
    assert "no observation" in messages[2]
    assert "nan" in messages[3]
    assert handler.seen == []


@pytest.mark.parametrize("prunable", [True, False])
def test_rows_may_be_pruned_where_the_route_allows_it(prunable: bool) -> None:
    class Pruning(HistorySetup):
        def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
            return RouteNeeds(history=HistoryNeeds(("image",), prunable=prunable))

    handler = HistoryHandler()
    handler.setup = Pruning()
    space = spaces.Dict(image=spaces.Box(0, 255, (2,), np.uint8), words=spaces.Text(5))
    codec = SpaceCodec(space)
    batch = {"image": np.array([[7, 8]], np.uint8), "words": ("hello",)}
    full = codec.encode(codec.flatten(batch, 1), 1)
    row = frame(1, {"a": 0})
    row.observation.CopyFrom(full)
    row.observation.leaves[1] = b""
    request = predict_request({"a": 0}, request_id="1", step=2, history=[row])
    request.predict.observation.CopyFrom(full)
    with service_of(handler) as service:
        resolved, answer = exchange(
            service,
            resolve_request(
                request_id="0", delivers_history=True, observation_space=space, action_space=space
            ),
            request,
        )
    assert resolved.resolve_adapter.history.prunable is prunable
    if prunable:
        assert answer.HasField("predict"), answer.error.message
        (delivered,) = handler.seen[0].history
        assert delivered.observation["image"].tolist() == [[7, 8]]
        assert delivered.observation["words"] == ("",)
        assert handler.seen[0].observation["words"] == ("hello",)
    else:
        assert "do not fit" in answer.error.message


def test_history_that_nobody_asked_for_is_refused_and_a_step_is_passed_on() -> None:
    handler = EchoHandler()
    with service_of(handler) as service:
        _, refused, stepped, again = exchange(
            service,
            resolve_request(request_id="0", delivers_history=True),
            predict_request({"a": 2}, request_id="1", step=2, history=[frame(1, {"a": 1})]),
            predict_request({"a": 2}, request_id="2", step=2),
            predict_request({"a": 2}, request_id="3", step=2),
        )
    assert "did not ask" in refused.error.message
    assert stepped.HasField("predict")
    assert again.HasField("predict")
    assert [observation.step for observation in handler.seen] == [2, 2]


def test_resolving_again_and_resetting_start_over() -> None:
    with service_of(HistoryHandler()) as service:
        answers = exchange(
            service,
            resolve_request(request_id="0", delivers_history=True),
            predict_request({"a": 0, "b": 0}, request_id="1", step=5),
            request_of("reset_adapter", request_id="2", episode_ids=["a"]),
            predict_request({"a": 0}, request_id="3", step=0),
            predict_request({"b": 0}, request_id="4", step=0),
            request_of("reset_adapter", request_id="5"),
            predict_request({"a": 0, "b": 0}, request_id="6", step=3),
            resolve_request(request_id="7", delivers_history=True),
            predict_request({"a": 0, "b": 0}, request_id="8", step=1),
        )
        route = service.routes.find("env")
        assert route is not None
        assert route.tracker is not None
        assert len(route.tracker) == 2
        exchange(service, request_of("reset_adapter", episode_ids=["a", "b", "never seen"]))
        assert len(route.tracker) == 0
    kinds = [answer.WhichOneof("kind") for answer in answers]
    assert kinds == [
        "resolve_adapter",
        "predict",
        "reset_adapter",
        "predict",
        "error",
        "reset_adapter",
        "predict",
        "resolve_adapter",
        "predict",
    ]


def test_a_request_that_the_model_failed_may_come_again() -> None:
    class Flaky(HistoryHandler):
        failures = 1

        def predict(self, observation: ModelObservation) -> Any:
            if observation.step == 2 and self.failures:
                self.failures -= 1
                raise ValueError("out of memory")
            return super().predict(observation)

    with service_of(Flaky()) as service:
        step_2: dict[str, Any] = {"step": 2, "history": [frame(1, {"a": 1})]}
        answers = exchange(
            service,
            resolve_request(request_id="0", delivers_history=True),
            predict_request({"a": 0}, request_id="1", step=0),
            predict_request({"a": 2}, request_id="2", **step_2),
            predict_request({"a": 2}, request_id="3", **step_2),
            predict_request({"a": 2}, request_id="4", **step_2),
        )
    assert [answer.WhichOneof("kind") for answer in answers[1:]] == [
        "predict",
        "error",
        "predict",
        "error",
    ]
    assert "out of memory" in answers[2].error.message
    assert "step 1 came after step 2" in answers[4].error.message


def test_groups_of_one_environment_follow_on_each_other() -> None:
    handler = HistoryHandler()
    with service_of(handler) as service:
        exchange(service, resolve_request(delivers_history=True))
        groups = [
            predict_request({"a": 0}, step=0).predict,
            predict_request({"a": 2}, step=2).predict,
            predict_request({"a": 1}, step=1).predict,
        ]
        (answer,) = exchange(service, request_of("grouped_predict", groups=groups))
        outcomes = [result.WhichOneof("outcome") for result in answer.grouped_predict.results]
        assert outcomes == ["response", "error", "response"]
        (next_one,) = exchange(service, predict_request({"a": 2}, step=2))
        assert next_one.HasField("predict")


# The tracker by itself


class NaiveTracker:
    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}

    def take(self, history: Any, step: int, episode_ids: Any) -> bool:
        grown = {name: list(steps) for name, steps in self.steps.items()}
        for at, names in [*history, (step, episode_ids)]:
            for name in names:
                steps = grown.setdefault(name, [])
                if steps and at != steps[-1] + 1:
                    return False
                steps.append(at)
        self.steps = grown
        return True


_names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
_frames = st.lists(st.tuples(st.integers(0, 4), _names), max_size=3)


@given(requests=st.lists(st.tuples(_frames, st.integers(0, 5), _names, st.booleans()), max_size=12))
def test_tracker_equals_a_naive_one(requests: list[Any]) -> None:
    tracker, naive = StepTracker(), NaiveTracker()
    for history, step, names, reset in requests:
        if reset:
            tracker.forget(names)
            for name in names:
                naive.steps.pop(name, None)
        if naive.take(history, step, names):
            tracker.commit(tracker.check([*history, (step, names)]))
        else:
            with pytest.raises(ModelError, match="expected") as caught:
                tracker.check([*history, (step, names)])
            assert caught.value.code == "INVALID_REQUEST"
            assert caught.value.is_recoverable
        assert len(tracker) == len(naive.steps)


def test_tracker_is_bounded() -> None:
    tracker = StepTracker(max_episodes=3)
    for index in range(10):
        tracker.commit(tracker.check([(index, [f"e{index}"])]))
    assert len(tracker) == 3
    tracker.commit(tracker.check([(8, ["e7"])]))  # Known still, and now the youngest.
    tracker.commit(tracker.check([(0, ["new"])]))
    with pytest.raises(ModelError, match="came after step 8"):
        tracker.check([(100, ["e7"])])
    tracker.check([(100, ["e8"])])  # Forgotten: it counts as new.
    wide = [f"w{index}" for index in range(8)]
    tracker.commit(tracker.check([(1, wide)]))
    assert len(tracker) == 8  # One request is never forgotten in part.
    with pytest.raises(ModelError, match="expected 2"):
        tracker.check([(5, ["w0"])])
