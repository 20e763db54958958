"""What a handler is given, what becomes of its answers, and how failures are answered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space

from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.model import CallableHandler
from rlmesh_gym.server import (
    HeldState,
    ModelHandler,
    ModelObservation,
    ModelRouteSetup,
    PredictFrames,
    RouteNeeds,
)
from rlmesh_gym.server.model.actions import detached
from tests.catalogue import SPACE_IDS, SPACES
from tests.model_client import (
    EchoHandler,
    encode,
    exchange,
    predict_request,
    request_of,
    resolve_request,
    service_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _answer(function: Callable[[Any], Any], rows: int = 2, **resolve: Any) -> pb.JoinResponse:
    """Ask a function once and return the answer, an error or not."""
    with service_of(CallableHandler(function)) as service:
        resolved, answer = exchange(
            service,
            resolve_request(**resolve),
            predict_request({f"e{row}": row for row in range(rows)}),
        )
    assert resolved.HasField("resolve_adapter"), resolved.error.message
    return answer


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_every_space_goes_in_and_out(space: spaces.Space[Any]) -> None:
    codec = SpaceCodec(space)
    space.seed(7)
    samples = [space.sample() for _ in range(3)]
    leaves = codec.flatten_rows(samples)
    if codec.out_of_domain(leaves):
        pytest.skip("a sample of this space holds what is never legal")
    given: list[Any] = []

    def echo(observation: Any) -> Any:
        given.append(observation)
        return observation

    request = predict_request({"a": 0, "b": 1, "c": 2})
    request.predict.observation.CopyFrom(codec.encode(leaves, 3))
    with service_of(CallableHandler(echo)) as service:
        resolved, answer = exchange(
            service, resolve_request(observation_space=space, action_space=space), request
        )
    assert resolved.HasField("resolve_adapter"), resolved.error.message
    assert answer.HasField("predict"), answer.error.message
    assert answer.predict.actions[0] == codec.encode(leaves, 3)
    assert data_equivalence(given[0], codec.unflatten(leaves, 3))


def test_the_handler_sees_the_request() -> None:
    handler = EchoHandler()
    with service_of(handler) as service:
        answers = exchange(
            service, resolve_request(horizon=4), predict_request({"a": 1.5, "b": 2.5})
        )
    (observation,) = handler.seen
    assert observation.env_id == "env"
    assert observation.episode_ids == ("a", "b")
    assert observation.seeds == (0, 1)
    assert observation.num_envs == 2
    assert observation.execution_horizon == 4
    assert observation.history == ()
    assert observation.step is None
    assert observation.observation.tolist() == [[1.5, -1.5], [2.5, -2.5]]
    assert observation.observation.flags.writeable
    route = observation.route
    assert route is not None
    assert route.single_action_space == route.single_observation_space
    assert route.contract.env_id == "Test-v0"
    assert route.metadata == {}
    assert answers[1].predict.context.env_id == "env"
    assert answers[1].request_id == "p"


@pytest.mark.parametrize(("horizon", "frames"), [(0, 1), (1, 1), (2, 2), (5, 5), (8, 6), (1024, 6)])
def test_never_more_frames_than_the_horizon(horizon: int, frames: int) -> None:
    with service_of(EchoHandler(chunk=6)) as service:
        _, answer = exchange(service, resolve_request(horizon=horizon), predict_request({"a": 1}))
    values = [np.frombuffer(value.leaves[0])[0] for value in answer.predict.actions]
    assert values == [1.0 + j for j in range(frames)]


def test_lists_and_other_dtypes_are_taken() -> None:
    def listed(observation: Any) -> Any:
        return [[1, 2] for _ in observation]

    def narrow(observation: Any) -> Any:
        return np.asarray(observation, np.float32)[:, ::-1]

    assert _answer(listed).predict.actions[0] == pb.PredictResponse().actions.add(
        leaves=[np.array([[1.0, 2.0]] * 2).tobytes()]
    )
    assert _answer(narrow).HasField("predict")
    discrete = _answer(lambda _: [2, 0], action_space=spaces.Discrete(3))
    assert np.frombuffer(discrete.predict.actions[0].leaves[0], "<i8").tolist() == [2, 0]


class Foreign:
    """An array of another library."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, np.float64)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, dtype)


def test_answers_are_detached_from_the_models_buffers() -> None:
    buffer = np.zeros((2, 2))
    answer = PredictFrames(
        {"a": buffer, "b": (buffer[0], "text"), "c": [1, np.int64(2)]}, [buffer, Foreign(buffer)]
    )
    copy = detached(answer)
    buffer[:] = 1
    assert copy.actions["a"].tolist() == [[0, 0], [0, 0]]
    assert copy.actions["b"][0].tolist() == [0, 0]
    assert copy.actions["b"][1] == "text"
    assert copy.actions["c"] == [1, 2]
    assert isinstance(copy.actions["b"], tuple)
    assert [np.asarray(batch).tolist() for batch in copy.replay] == [[[0, 0], [0, 0]]] * 2


def test_values_outside_a_box_pass() -> None:
    box = spaces.Box(-1, 1, (2,), np.float64)
    answer = _answer(lambda observation: np.full_like(observation, 5.0), action_space=box)
    assert answer.HasField("predict")


@pytest.mark.parametrize(
    ("function", "space", "parts"),
    [
        pytest.param(lambda _: np.zeros((3, 2)), None, ["2", "3"], id="wrong rows"),
        pytest.param(lambda _: np.zeros((2, 5)), None, ["2", "5"], id="wrong shape"),
        pytest.param(lambda _: None, None, ["action"], id="nothing"),
        pytest.param(
            lambda _: np.array([[0.0, 0.0], [np.nan, 0.0]]), None, ["e1", "nan"], id="NaN"
        ),
        pytest.param(
            lambda _: np.array([0, 9]), spaces.Discrete(3), ["e1", "9", "[0, 3)"], id="domain"
        ),
        pytest.param(
            lambda _: {"x": np.zeros(2)},
            spaces.Dict(y=spaces.Discrete(2)),
            ["'y'"],
            id="missing key",
        ),
        pytest.param(lambda _: "no", None, ["action"], id="text"),
    ],
)
def test_actions_that_do_not_fit_are_refused(function: Any, space: Any, parts: list[str]) -> None:
    answer = _answer(function, **({} if space is None else {"action_space": space}))
    assert answer.error.code == pb.MODEL_ERROR_CODE_INTERNAL
    assert answer.error.is_recoverable
    for part in parts:
        assert part in answer.error.message
    assert "'env'" in answer.error.message


def test_a_bad_replay_frame_is_refused_too() -> None:
    def plan(observation: Any) -> PredictFrames:
        return PredictFrames(observation, [observation, observation[:1]])

    assert "action frame 2" in _answer(plan, horizon=3).error.message
    assert _answer(plan, horizon=2).HasField("predict")  # Beyond the horizon nobody looks.


class NativeSetup(ModelRouteSetup):
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.released: list[str] = []

    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> Any:
        return self.answer

    def release_adapter(self, env_id: str) -> None:
        self.released.append(env_id)


class WithSetup(EchoHandler):
    def __init__(self, setup: ModelRouteSetup, chunk: int = 1) -> None:
        super().__init__(chunk)
        self.setup = setup

    def route_setup(self) -> ModelRouteSetup:
        return self.setup


def test_a_native_chunk_is_reported_and_bounds_the_horizon() -> None:
    setup = NativeSetup(RouteNeeds(native_chunk=4))
    with service_of(WithSetup(setup, chunk=4)) as service:
        short, refused, full, answer = exchange(
            service,
            resolve_request("short", request_id="0", horizon=1),
            resolve_request("long", request_id="1", horizon=5),
            resolve_request(request_id="2", horizon=4),
            predict_request({"a": 1}, request_id="3"),
        )
    assert short.resolve_adapter.native_chunk == full.resolve_adapter.native_chunk == 4
    assert "5" in refused.error.message
    assert "4 frames" in refused.error.message
    assert setup.released == ["long"]  # What was set up in vain is torn down.
    assert len(answer.predict.actions) == 4


def test_a_declared_chunk_must_come() -> None:
    setup = NativeSetup(RouteNeeds(native_chunk=4))
    with service_of(WithSetup(setup, chunk=2)) as service:
        _, answer = exchange(service, resolve_request(horizon=3), predict_request({"a": 1}))
    assert "returned 2 frames, expected at least 3" in answer.error.message


@pytest.mark.parametrize("needs", [RouteNeeds(native_chunk=0), "history", 3])
def test_what_a_setup_may_not_answer(needs: Any) -> None:
    with service_of(WithSetup(NativeSetup(needs))) as service:
        (answer,) = exchange(service, resolve_request())
    assert answer.error.code == pb.MODEL_ERROR_CODE_INTERNAL
    assert answer.error.is_recoverable


def test_a_model_that_raises_is_answered_and_asked_again() -> None:
    calls: list[Any] = []

    def third_time_unlucky(observation: Any) -> Any:
        calls.append(observation)
        if len(calls) == 3:
            raise ZeroDivisionError("the third call")
        return observation

    with service_of(CallableHandler(third_time_unlucky)) as service:
        answers = exchange(
            service,
            resolve_request(request_id="0"),
            *(predict_request({"a": n, "b": n}, request_id=str(n)) for n in range(1, 5)),
        )
    kinds = [answer.WhichOneof("kind") for answer in answers[1:]]
    assert kinds == ["predict", "predict", "error", "predict"]
    error = answers[3].error
    assert error.code == pb.MODEL_ERROR_CODE_INTERNAL
    assert error.is_recoverable
    for part in ("ZeroDivisionError", "the third call", "float64 (2, 2)", "a, b", "'env'"):
        assert part in error.message
    assert "third_time_unlucky" in error.debug_info
    assert answers[3].user_ns > 0


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        UnprintableError(),
        ValueError("x" * 100_000),
        ValueError("\ud800"),
        StopIteration(),
    ],
    ids=["exit", "unprintable", "long", "surrogate", "stop"],
)
def test_nothing_that_a_model_raises_ends_the_server(error: BaseException) -> None:
    def fail(observation: Any) -> Any:
        if observation[0, 0] == 1:
            raise error
        return observation

    with service_of(CallableHandler(fail)) as service:
        _, failed, fine = exchange(
            service,
            resolve_request(request_id="0"),
            predict_request({"a": 1}, request_id="1"),
            predict_request({"a": 2}, request_id="2"),
        )
    assert type(error).__name__ in failed.error.message
    assert failed.ByteSize() < 100_000
    assert fine.HasField("predict")


def test_arrays_that_fail_when_they_are_read() -> None:
    class Lazy:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise MemoryError("cannot be loaded")

        def __len__(self) -> int:
            raise SystemExit

    answer = _answer(lambda _: Lazy())
    assert answer.error.code == pb.MODEL_ERROR_CODE_INTERNAL


def _bad(change: Callable[[pb.PredictRequest], Any]) -> pb.JoinRequest:
    request = predict_request({"a": 1, "b": 2}, request_id="1")
    change(request.predict)
    return request


@pytest.mark.parametrize(
    ("change", "part", "code"),
    [
        pytest.param(lambda p: p.ClearField("context"), "env_id is empty", 2, id="no context"),
        pytest.param(
            lambda p: p.context.ClearField("request_id"), "request_id", 2, id="no request id"
        ),
        pytest.param(
            lambda p: setattr(p.context, "env_id", "zz"), "'zz' has no adapter", 3, id="unresolved"
        ),
        pytest.param(lambda p: p.ClearField("observation"), "no observation", 2, id="nothing"),
        pytest.param(lambda p: p.ClearField("episode_info"), "is empty", 2, id="no episodes"),
        pytest.param(lambda p: p.episode_info.pop(), "1 rows do not fit", 2, id="fewer ids"),
        pytest.param(
            lambda p: p.episode_info.add(episode_id="c"), "3 rows do not fit", 2, id="more ids"
        ),
        pytest.param(
            lambda p: p.episode_info[1].ClearField("episode_id"), "row 1", 2, id="empty id"
        ),
        pytest.param(
            lambda p: setattr(p.episode_info[1], "episode_id", "a"),
            "'a' has more than one row",
            2,
            id="same id",
        ),
        pytest.param(
            lambda p: p.observation.leaves.append(b""), "expected 1 leaves", 2, id="leaves"
        ),
        pytest.param(
            lambda p: p.observation.CopyFrom(encode([1, float("nan")])),
            "episode 'b'",
            2,
            id="NaN",
        ),
    ],
)
def test_requests_that_do_not_fit_are_refused(change: Any, part: str, code: int) -> None:
    handler = EchoHandler()
    with service_of(handler) as service:
        _, answer, fine = exchange(
            service,
            resolve_request(request_id="0"),
            _bad(change),
            predict_request({"a": 3}, request_id="2"),
        )
    assert part in answer.error.message
    assert answer.error.code == code
    assert fine.HasField("predict")
    assert len(handler.seen) == 1


def test_observations_outside_their_space() -> None:
    for value, fits in ((2, True), (3, False)):
        request = predict_request({"a": 0})
        request.predict.observation.leaves[0] = np.array([value], "<i8").tobytes()
        with service_of(CallableHandler(lambda _: np.zeros((1, 2)))) as service:
            _, answer = exchange(
                service, resolve_request(observation_space=spaces.Discrete(3)), request
            )
        assert answer.HasField("predict") is fits


# Groups


class Fused(EchoHandler):
    def __init__(self, answer: Callable[[list[ModelObservation]], Any]) -> None:
        super().__init__()
        self.answer = answer
        self.groups: list[list[str]] = []

    def predict_grouped(self, observations: Any) -> Any:
        self.groups.append([observation.env_id for observation in observations])
        return self.answer(list(observations))


def _grouped(handler: ModelHandler) -> pb.JoinResponse:
    groups = [
        predict_request({"a": 1}, "left").predict,
        predict_request({"a": 2}, "unknown").predict,
        predict_request({"b": 3, "c": 4}, "right").predict,
        predict_request({"d": float("nan")}, "right").predict,
        predict_request({"d": 5}, "left").predict,
    ]
    with service_of(handler) as service:
        *_, answer = exchange(
            service,
            resolve_request("left", request_id="0"),
            resolve_request("right", request_id="1"),
            request_of("grouped_predict", request_id="2", groups=groups),
        )
    return answer


def _outcomes(answer: pb.JoinResponse) -> list[Any]:
    return [
        result.error.code
        if result.HasField("error")
        else [np.frombuffer(value.leaves[0])[::2].tolist() for value in result.response.actions]
        for result in answer.grouped_predict.results
    ]


def test_groups_answer_each_for_itself() -> None:
    answer = _grouped(EchoHandler())
    assert _outcomes(answer) == [[[1.0]], 3, [[3.0, 4.0]], 2, [[5.0]]]
    contexts = [result.response.context.env_id for result in answer.grouped_predict.results]
    assert contexts == ["left", "", "right", "", "left"]
    assert answer.user_ns > 0


def test_a_fused_model_sees_all_good_groups_at_once() -> None:
    def fused(observations: list[ModelObservation]) -> Any:
        plain, failed, framed = observations
        del failed
        return [plain.observation, ValueError("only this"), PredictFrames(framed.observation)]

    handler = Fused(fused)
    answer = _grouped(handler)
    assert handler.groups == [["left", "right", "left"]]
    assert _outcomes(answer) == [[[1.0]], 3, 10, 2, [[5.0]]]
    assert "only this" in answer.grouped_predict.results[2].error.message
    assert "float64 (2, 2)" in answer.grouped_predict.results[2].error.message


def _explode(_: Any) -> Any:
    raise SystemExit("all of them")


@pytest.mark.parametrize(
    ("function", "part"),
    [(lambda _: [], "0 results for 3 groups"), (lambda _: None, "NoneType"), (_explode, "all of")],
    ids=["too few", "none", "raises"],
)
def test_a_fused_model_that_fails_fails_all_its_groups(function: Any, part: str) -> None:
    answer = _grouped(Fused(function))
    assert _outcomes(answer) == [10, 3, 10, 2, 10]
    assert part in answer.grouped_predict.results[0].error.message


def test_empty_groups() -> None:
    handler = Fused(lambda _: [])
    with service_of(handler) as service:
        (answer,) = exchange(service, request_of("grouped_predict"))
    assert answer.HasField("grouped_predict")
    assert len(answer.grouped_predict.results) == 0
    assert handler.groups == []


# What a response tells


class Telling(EchoHandler):
    def __init__(self) -> None:
        super().__init__()
        self.adapter_ns = 0
        self.live: set[str] = set()
        self.threads: set[int] = set()

    def predict(self, observation: ModelObservation) -> Any:
        self.threads.add(threading.get_ident())
        self.adapter_ns += 500
        self.live.update(observation.episode_ids)
        return super().predict(observation)

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        self.threads.add(threading.get_ident())
        self.live.difference_update(episode_ids or tuple(self.live))

    def take_adapter_ns(self) -> int:
        taken, self.adapter_ns = self.adapter_ns, 0
        return taken

    def held_state(self) -> HeldState:
        return HeldState(len(self.live), 8 * len(self.live))


def test_responses_tell_times_and_held_state() -> None:
    handler = Telling()
    with service_of(handler) as service:
        _, first, second, reset, third = exchange(
            service,
            resolve_request(request_id="0"),
            predict_request({"a": 1}, request_id="1"),
            predict_request({"b": 1, "c": 1}, request_id="2"),
            request_of("reset_adapter", request_id="3", episode_ids=["a", "b"]),
            predict_request({"c": 1}, request_id="4"),
        )
    assert [answer.held_episodes for answer in (first, second, reset, third)] == [1, 3, 1, 1]
    assert second.held_state_bytes == 24
    assert [answer.adapter_ns for answer in (first, second, reset, third)] == [500, 500, 0, 500]
    for answer in (first, second, third):
        phases = answer.decode_ns + answer.user_ns + answer.encode_ns + answer.queue_ns
        assert 0 < phases <= answer.endpoint_total_ns
        assert answer.in_flight >= 1
    assert len(handler.threads) == 1


def test_silent_handlers_leave_the_fields_unset() -> None:
    with service_of(EchoHandler()) as service:
        _, answer = exchange(service, resolve_request(), predict_request({"a": 1}))
    set_fields = {field.name for field, _ in answer.ListFields()}
    assert not set_fields & {"adapter_ns", "held_episodes", "held_state_bytes"}
    for name in ("endpoint_total_ns", "decode_ns", "user_ns", "encode_ns", "queue_ns", "in_flight"):
        assert name in set_fields


def test_telemetry_that_fails_fails_no_prediction(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(EchoHandler):
        def held_state(self) -> HeldState:
            raise RuntimeError("cannot count")

    with service_of(Broken()) as service:
        _, answer = exchange(service, resolve_request(), predict_request({"a": 1}))
    assert answer.HasField("predict")
    assert "cannot count" in caplog.text


def test_observations_are_the_batch_space_of_the_env() -> None:
    space = spaces.Dict(camera=spaces.Box(0, 255, (4, 4, 3), np.uint8), words=spaces.Text(8))
    seen: list[Any] = []
    codec = SpaceCodec(space)
    request = predict_request({"a": 0, "b": 1})
    rows = codec.flatten_rows([space.sample() for _ in range(2)])
    request.predict.observation.CopyFrom(codec.encode(rows, 2))

    def look(observation: Any) -> Any:
        seen.append(observation)
        return np.zeros((2, 2))

    with service_of(CallableHandler(look)) as service:
        _, answer = exchange(service, resolve_request(observation_space=space), request)
    assert answer.HasField("predict"), answer.error.message
    assert seen[0] in batch_space(space, 2)
