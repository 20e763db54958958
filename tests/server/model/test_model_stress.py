"""Many clients at once, and requests that no client of ours would send."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.server import (
    HistoryNeeds,
    ModelHandler,
    ModelObservation,
    ModelRouteSetup,
    PredictFrames,
    RouteNeeds,
)
from tests.model_client import (
    TIMEOUT,
    EchoHandler,
    connected,
    exchange,
    frame,
    predict_request,
    request_of,
    resolve_request,
    service_of,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Exclusive(EchoHandler):
    """Counts calls that begin while another one runs, whichever methods they are of."""

    def __init__(self) -> None:
        super().__init__(chunk=2)
        self.inside = threading.Lock()
        self.overlaps = 0
        self.calls = 0
        self.order: dict[str, list[float]] = {}

    def _enter(self) -> bool:
        if self.inside.acquire(blocking=False):
            self.calls += 1
            return True
        self.overlaps += 1
        return False

    def predict_chunked(self, observation: ModelObservation) -> PredictFrames:
        if self._enter():
            values = self.order.setdefault(observation.env_id, [])
            values.append(float(observation.observation[0, 0]))
            self.inside.release()
        return PredictFrames(observation.observation, [observation.observation + 0.25])

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        if self._enter():
            self.inside.release()


CLIENTS, PREDICTS = 50, 30


def test_every_answer_reaches_its_asker_and_no_calls_overlap(socket_dir: Path) -> None:
    handler = Exclusive()
    failures: list[BaseException] = []
    start = threading.Barrier(CLIENTS)

    def drive(number: int) -> None:
        try:
            with connected(server) as client:
                env_id = f"env {number}"
                client.resolve(env_id, horizon=2)
                start.wait(TIMEOUT)
                for turn in range(PREDICTS):
                    value = number * 1000.0 + turn
                    rows = {f"{number} {lane}": value for lane in range(1 + turn % 3)}
                    answer = client.predict(rows, env_id)
                    assert answer == [[value] * len(rows), [value + 0.25] * len(rows)]
                    if turn % 10 == 9:
                        client.session.reset_adapter(env_id, list(rows)).result(TIMEOUT)
                client.session.release_adapter(env_id).result(TIMEOUT)
        except BaseException as error:
            failures.append(error)
            start.abort()

    with serving(handler, socket_dir) as server:
        threads = [threading.Thread(target=drive, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert handler.overlaps == 0
    # Every predict, a reset per ten, and one more at each release.
    assert handler.calls == CLIENTS * (PREDICTS + PREDICTS // 10 + 1)
    assert all(
        values == sorted(values) and len(values) == PREDICTS for values in handler.order.values()
    )


def test_one_stream_with_many_environments_in_flight(socket_dir: Path) -> None:
    handler = Exclusive()
    with serving(handler, socket_dir) as server, connected(server) as client:
        names = [f"env {number}" for number in range(8)]
        for name in names:
            client.resolve(name, horizon=2)
        for turn in range(20):
            values = {name: 100.0 * number + turn for number, name in enumerate(names)}
            pendings = {name: client.begin({"a": value}, name) for name, value in values.items()}
            for name in random.Random(turn).sample(names, len(names)):
                assert client.actions(pendings[name]) == [[values[name]], [values[name] + 0.25]]
    assert handler.overlaps == 0


class Fragile(ModelHandler):
    """Asks for history and raises now and then."""

    def predict(self, observation: ModelObservation) -> Any:
        if observation.num_envs == 3:
            raise ValueError("three rows")
        return observation.observation

    def route_setup(self) -> ModelRouteSetup:
        return FragileSetup()


class FragileSetup(ModelRouteSetup):
    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
        if env_id == "bad":
            raise ValueError("bad env")
        return RouteNeeds(history=HistoryNeeds())

    def release_adapter(self, env_id: str) -> None:
        if env_id == "b":
            raise ValueError("cannot let go")


_env_ids = st.sampled_from(["a", "b", "bad", ""])
_steps = st.one_of(st.none(), st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))
_values = st.sampled_from([0.0, 1.0, float("nan"), float("inf")])
_rows = st.dictionaries(st.sampled_from(["x", "y", "z", ""]), _values, max_size=4)


@st.composite
def _predicts(draw: st.DrawFn) -> pb.JoinRequest:
    history = [frame(draw(st.integers(0, 3)), rows) for rows in draw(st.lists(_rows, max_size=2))]
    request = predict_request(draw(_rows), draw(_env_ids), step=draw(_steps), history=history)
    predict = request.predict
    for name in draw(st.sets(st.sampled_from(["context", "observation", "episode_info"]))):
        if draw(st.integers(0, 4)) == 0:
            predict.ClearField(name)  # type: ignore[arg-type]
    if draw(st.integers(0, 5)) == 0:
        predict.observation.leaves.append(draw(st.binary(max_size=40)))
    return request


@st.composite
def _resolves(draw: st.DrawFn) -> pb.JoinRequest:
    request = resolve_request(
        draw(_env_ids),
        horizon=draw(st.sampled_from([0, 1, 2, 1024, 1025, 2**32 - 1])),
        delivers_history=draw(st.booleans()),
    )
    resolve = request.resolve_adapter
    if draw(st.integers(0, 3)) == 0:
        resolve.env_spec.observation_space.shape.append(draw(st.integers(-2, 2**62)))
    if draw(st.integers(0, 4)) == 0:
        resolve.env_spec.action_space.ClearField("dtype")
    return request


@st.composite
def _groups(draw: st.DrawFn) -> pb.JoinRequest:
    groups = [request.predict for request in draw(st.lists(_predicts(), max_size=3))]
    request: pb.JoinRequest = request_of("grouped_predict", groups=groups)
    return request


def _named(kind: str) -> st.SearchStrategy[pb.JoinRequest]:
    return st.builds(lambda env_id: request_of(kind, env_id), _env_ids)


_requests = st.one_of(
    _predicts(),
    _predicts(),
    _resolves(),
    _groups(),
    _named("reset_adapter"),
    _named("release_adapter"),
    st.builds(pb.JoinRequest),
)


def _check_answers(requests: Sequence[pb.JoinRequest], answers: Sequence[pb.JoinResponse]) -> None:
    assert [answer.request_id for answer in answers] == [r.request_id for r in requests]
    for request, answer in zip(requests, answers, strict=True):
        kind = answer.WhichOneof("kind")
        assert kind in (request.WhichOneof("kind"), "error")
        if kind == "error":
            assert answer.error.message
            assert answer.error.code in pb.ModelErrorCode.values()


def _number(requests: Sequence[pb.JoinRequest]) -> list[pb.JoinRequest]:
    for number, request in enumerate(requests):
        request.request_id = str(number)
    return list(requests)


@settings(max_examples=60, deadline=None)
@given(requests=st.lists(_requests, max_size=12))
def test_whatever_is_asked_is_answered_once(requests: list[pb.JoinRequest]) -> None:
    _number(requests)
    with service_of(Fragile()) as service:
        _check_answers(requests, exchange(service, *requests))
        fine = exchange(
            service,
            resolve_request("good", request_id="0"),
            predict_request({"x": 1}, "good", request_id="1"),
        )
    assert [answer.WhichOneof("kind") for answer in fine] == ["resolve_adapter", "predict"]


def _mutated(count: int, seed: int) -> list[pb.JoinRequest]:
    """Valid requests with a few bytes changed, cut out or doubled, as far as they still parse."""
    generator = random.Random(seed)
    originals = [
        resolve_request("a", horizon=2, delivers_history=True, session_id="s"),
        predict_request({"x": 1, "y": 2}, "a", step=2, history=[frame(1, {"x": 0, "y": 1})]),
        request_of("reset_adapter", "a", episode_ids=["x"]),
        request_of("release_adapter", "a", reason="over"),
        request_of("grouped_predict", groups=[predict_request({"x": 1}, "a").predict] * 2),
    ]
    requests: list[pb.JoinRequest] = []
    while len(requests) < count:
        data = bytearray(generator.choice(originals).SerializeToString())
        for _ in range(generator.randint(0, 4)):
            at = generator.randrange(len(data))
            choice = generator.randrange(4)
            if choice == 0:
                data[at] = generator.randrange(256)
            elif choice == 1:
                data[at] ^= 1 << generator.randrange(8)
            elif choice == 2:
                del data[at : at + generator.randint(1, 4)]
            else:
                data[at:at] = data[at : at + generator.randint(1, 8)]
            if not data:
                break
        try:
            request = pb.JoinRequest.FromString(bytes(data))
        except DecodeError:
            continue
        if request.WhichOneof("kind") != "close":
            requests.append(request)
    return _number(requests)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_requests_are_answered_once(seed: int) -> None:
    with service_of(Fragile(), max_adapters=8) as service:
        for turn in range(5):
            requests = _mutated(60, 100 * seed + turn)
            _check_answers(requests, exchange(service, *requests))
        assert len(service.routes) <= 8


def test_garbage_on_the_wire_ends_only_its_own_call(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir) as server, connected(server) as client:
        client.resolve()
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(server.address.replace("unix://", "unix:"), options) as channel:
            join: Any = channel.stream_stream("/rlmesh.model.v1.ModelService/Join")
            good = predict_request({"a": 5}).SerializeToString()
            call = join(iter([good, b"\xff\xff garbage"]), timeout=TIMEOUT)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert client.predict({"a": 1}) == [[1.0]]
