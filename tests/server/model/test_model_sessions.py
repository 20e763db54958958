"""Streams, adapters and overlap: who waits for whom, what a lost stream and a Close end."""

from __future__ import annotations

import gc
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.errors import ModelError
from rlmesh_gym.rpc import ModelSession, Refused
from rlmesh_gym.server import ModelObservation, ModelRouteSetup, RouteNeeds
from rlmesh_gym.server.model.stream import MAX_IN_WORK, ModelStream
from tests.model_client import (
    TIMEOUT,
    EchoHandler,
    connected,
    exchange,
    predict_request,
    request_of,
    resolve_request,
    service_of,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rlmesh_gym.server.model.service import ModelService


class GatedHandler(EchoHandler):
    """Predictions of the env ``slow`` wait for ``gate``; calls must never overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.inside = threading.Lock()
        self.overlaps = 0

    def predict(self, observation: ModelObservation) -> Any:
        if not self.inside.acquire(blocking=False):
            self.overlaps += 1
            return observation.observation
        try:
            self.entered.release()
            if observation.env_id.startswith("slow"):
                assert self.gate.wait(TIMEOUT)
            return super().predict(observation)
        finally:
            self.inside.release()


class RecordingSetup(ModelRouteSetup):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.happened = threading.Event()

    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds | None:
        self.calls.append(("resolve", env_id))
        return None

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        self.calls.append(("reset", env_id, tuple(episode_ids)))
        self.happened.set()

    def release_adapter(self, env_id: str) -> None:
        self.calls.append(("release", env_id))


class LiveStream:
    """A stream without gRPC that stays open until it is closed or lost."""

    def __init__(self, service: ModelService, connection: str | None = None) -> None:
        self._requests: SimpleQueue[pb.JoinRequest | Exception | None] = SimpleQueue()
        self.answers: SimpleQueue[pb.JoinResponse | None] = SimpleQueue()
        self.stream = ModelStream(service, self._iterate(), connection or str(id(self)))
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def send(self, *requests: pb.JoinRequest) -> None:
        for request in requests:
            self._requests.put(request)

    def next(self) -> pb.JoinResponse:
        answer = self.answers.get(timeout=TIMEOUT)
        assert answer is not None, "the stream has ended"
        return answer

    def end(self) -> None:
        self._requests.put(None)
        self.join()

    def lose(self) -> None:
        self._requests.put(ConnectionError("reset by peer"))
        self.join()

    def join(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self._requests.put(None)  # gRPC ends the requests with the call.

    def _iterate(self) -> Iterator[pb.JoinRequest]:
        while (request := self._requests.get()) is not None:
            if isinstance(request, Exception):
                raise request
            yield request

    def _collect(self) -> None:
        for answer in self.stream.responses():
            self.answers.put(answer)
        self.answers.put(None)


def test_a_slow_prediction_delays_no_other_clients_handshake_and_resolve(socket_dir: Path) -> None:
    handler = GatedHandler()
    with serving(handler, socket_dir) as server, connected(server) as slow:
        slow.resolve("slow")
        pending = slow.begin({"a": 1}, "slow")
        assert handler.entered.acquire(timeout=TIMEOUT)
        # The model is at work until the gate opens, so all of this happens meanwhile.
        with connected(server) as other:
            other.resolve("quick")
            other.session.reset_adapter("unknown").result(TIMEOUT)
            assert other.session.ping() < TIMEOUT
        slow.resolve("second env of the same stream")
        assert not pending.done()
        handler.gate.set()
        assert slow.actions(pending) == [[1.0]]


def test_environments_overtake_each_other_and_keep_their_own_order() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"))
        assert stream.next().request_id == "0"
        stream.send(
            predict_request({"a": 1}, "slow", request_id="1"),
            resolve_request("slow", request_id="2"),  # Of the same env: waits for its turn.
            request_of("reset_adapter", "slow", request_id="3"),
            predict_request({"a": 2}, "slow", request_id="4"),
            resolve_request("other", request_id="5"),
            predict_request({"a": 3}, "nowhere", request_id="6"),
        )
        assert {stream.next().request_id, stream.next().request_id} == {"5", "6"}
        handler.gate.set()
        assert [stream.next().request_id for _ in range(4)] == ["1", "2", "3", "4"]
        stream.end()
    assert handler.overlaps == 0


def test_decoding_goes_on_while_the_model_is_at_work() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"), resolve_request(request_id="1"))
        assert {stream.next().request_id, stream.next().request_id} == {"0", "1"}
        stream.send(predict_request({"a": 1}, "slow", request_id="2"))
        assert handler.entered.acquire(timeout=TIMEOUT)
        stream.send(predict_request({"a": float("nan")}, request_id="3"))
        assert "nan" in stream.next().error.message  # Found while the other one is predicted.
        handler.gate.set()
        assert stream.next().request_id == "2"
        stream.end()


def test_a_grouped_predict_keeps_the_order_of_all_its_environments() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"), resolve_request("b", request_id="1"))
        assert {stream.next().request_id, stream.next().request_id} == {"0", "1"}
        groups = [predict_request({"a": 2}, env).predict for env in ("slow", "b", "slow")]
        stream.send(
            predict_request({"a": 1}, "slow", request_id="2"),
            request_of("grouped_predict", request_id="3", groups=groups),
            request_of("release_adapter", "b", request_id="4"),
        )
        assert handler.entered.acquire(timeout=TIMEOUT)
        handler.gate.set()
        answers = [stream.next() for _ in range(3)]
        assert [answer.request_id for answer in answers] == ["2", "3", "4"]
        assert all(result.HasField("response") for result in answers[1].grouped_predict.results)
        stream.end()


class ReusingHandler(EchoHandler):
    """Answers always with the same array."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros((1, 2))
        self.entered, self.gate, self.overwritten = (threading.Event() for _ in range(3))

    def predict(self, observation: ModelObservation) -> Any:
        if observation.env_id == "a":
            self.entered.set()
            assert self.gate.wait(TIMEOUT)
        self.buffer[:] = observation.observation
        if observation.env_id == "b":
            self.overwritten.set()
        return self.buffer


@pytest.mark.parametrize("grouped", [False, True])
def test_a_model_may_fill_its_buffer_anew_before_the_last_answer_is_encoded(grouped: bool) -> None:
    handler = ReusingHandler()
    with service_of(handler) as service:
        run = service.workers.run

        def run_late(task: Any) -> None:
            def work() -> None:
                assert handler.overwritten.wait(TIMEOUT)
                task()

            run(work)

        stream = LiveStream(service)
        stream.send(resolve_request("a", request_id="0"), resolve_request("b", request_id="1"))
        assert {stream.next().request_id, stream.next().request_id} == {"0", "1"}
        service.workers.run = run_late  # type: ignore[method-assign]
        first = predict_request({"x": 1}, "a", request_id="2")
        if grouped:
            first = request_of("grouped_predict", request_id="2", groups=[first.predict])
        stream.send(first)
        assert handler.entered.wait(TIMEOUT)
        stream.send(
            predict_request({"x": 2}, "b", request_id="3"),
            predict_request({"x": 3}, "nowhere", request_id="4"),
        )
        assert stream.next().request_id == "4"  # By then the third stands behind the second.
        handler.gate.set()
        answers = {answer.request_id: answer for answer in (stream.next(), stream.next())}
        stream.end()
    old, new = answers["2"], answers["3"].predict
    predicted = old.grouped_predict.results[0].response if grouped else old.predict
    assert [np.frombuffer(p.actions[0].leaves[0])[0] for p in (predicted, new)] == [1.0, 2.0]


class SlowSetup(RecordingSetup):
    """Everything waits for ``gate``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds | None:
        if env_id.startswith("slow"):
            self.entered.release()
            assert self.gate.wait(TIMEOUT)
        return super().resolve_adapter(env_id, contract, options)

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        if "wait" in episode_ids:
            self.entered.release()
            assert self.gate.wait(TIMEOUT)
        super().reset_adapter(env_id, episode_ids)


class SetupHandler(EchoHandler):
    def __init__(self, setup: RecordingSetup) -> None:
        super().__init__()
        self.setup = setup
        self.asked = 0

    def route_setup(self) -> ModelRouteSetup:
        self.asked += 1
        return self.setup


@pytest.mark.parametrize("what", ["resolve", "reset"])
def test_adapters_work_outside_the_predict_lock(what: str) -> None:
    setup = SlowSetup()
    handler = SetupHandler(setup)
    with service_of(handler) as service:
        exchange(service, resolve_request("a"), resolve_request("b", request_id="b"))
        stream = LiveStream(service)
        if what == "resolve":
            stream.send(resolve_request("slow", request_id="1"))
        else:
            stream.send(request_of("reset_adapter", "b", request_id="1", episode_ids=["wait"]))
        assert setup.entered.acquire(timeout=TIMEOUT)
        stream.send(predict_request({"x": 1}, "a", request_id="2"))
        assert stream.next().request_id == "2"
        setup.gate.set()
        assert stream.next().request_id == "1"
        stream.end()
    assert handler.asked == 1


def test_reset_reaches_route_and_handler() -> None:
    setup = RecordingSetup()
    handler = SetupHandler(setup)
    with service_of(handler) as service:
        answers = exchange(
            service,
            resolve_request(request_id="0"),
            request_of("reset_adapter", request_id="1", episode_ids=["a", "b"]),
            request_of("reset_adapter", request_id="2"),
            request_of("reset_adapter", "unknown", request_id="3", episode_ids=["a"]),
            request_of("reset_adapter", "", request_id="4"),
        )
    assert [answer.WhichOneof("kind") for answer in answers[1:]] == [
        *["reset_adapter"] * 3,
        "error",
    ]
    assert not answers[4].error.is_recoverable
    assert handler.resets == [("env", ("a", "b")), ("env", ())]
    assert setup.calls[1:] == [("reset", "env", ("a", "b")), ("reset", "env", ())]


def test_release_ends_what_is_left_and_is_idempotent() -> None:
    setup = RecordingSetup()
    handler = SetupHandler(setup)
    with service_of(handler) as service:
        answers = exchange(
            service,
            resolve_request(request_id="0"),
            request_of("release_adapter", request_id="1"),
            request_of("release_adapter", request_id="2"),
            request_of("release_adapter", "unknown", request_id="3"),
            predict_request({"a": 1}, request_id="4"),
            resolve_request(request_id="5"),
            predict_request({"a": 1}, request_id="6"),
        )
    kinds = [answer.WhichOneof("kind") for answer in answers]
    assert kinds[1:4] == ["release_adapter"] * 3
    assert answers[4].error.code == pb.MODEL_ERROR_CODE_NOT_CONFIGURED
    assert answers[4].error.is_recoverable
    assert kinds[5:] == ["resolve_adapter", "predict"]
    assert handler.resets == [("env", ())]
    assert setup.calls == [("resolve", "env"), ("release", "env"), ("resolve", "env")]


def test_adapters_that_fail_are_answered() -> None:
    class Broken(RecordingSetup):
        def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds | None:
            if env_id == "bad":
                raise SystemExit("no weights")
            return None

        def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
            raise KeyError("reset")

        def release_adapter(self, env_id: str) -> None:
            raise KeyError("release")

    handler = SetupHandler(Broken())
    with service_of(handler) as service:
        bad, _, reset, release, gone = exchange(
            service,
            resolve_request("bad", request_id="0"),
            resolve_request(request_id="1"),
            request_of("reset_adapter", request_id="2", episode_ids=["a"]),
            request_of("release_adapter", request_id="3"),
            predict_request({"a": 1}, request_id="4"),
        )
    assert "no weights" in bad.error.message
    assert "reset" in reset.error.message
    assert "release" in release.error.message
    assert handler.resets == [("env", ("a",)), ("env", ())]  # They forget all the same.
    assert gone.error.code == pb.MODEL_ERROR_CODE_NOT_CONFIGURED


def test_adapters_survive_a_lost_stream() -> None:
    handler = EchoHandler()
    with service_of(handler) as service:
        first = LiveStream(service)
        first.send(resolve_request(session_id="s"))
        first.next()
        first.lose()
        second = LiveStream(service)
        second.send(predict_request({"a": 7}, session_id="s"))
        assert second.next().HasField("predict")
        second.end()
        assert len(service.routes) == 1
        # The adapter must not keep the calls that it was used by.
        gone = [weakref.ref(live.stream) for live in (first, second)]
        del first, second
        gc.collect()
        assert [reference() for reference in gone] == [None, None]


def test_close_ends_only_the_session_that_sent_it() -> None:
    setup = RecordingSetup()
    with service_of(SetupHandler(setup)) as service:
        lost = LiveStream(service)
        lost.send(resolve_request("before", session_id="mine"))
        lost.next()
        lost.lose()
        mine, other = LiveStream(service), LiveStream(service)
        mine.send(resolve_request("unnamed", request_id="0"))
        mine.send(predict_request({"a": 1}, "before", request_id="1", session_id="mine"))
        assert {mine.next().request_id, mine.next().request_id} == {"0", "1"}
        other.send(resolve_request("theirs", session_id="other"))
        other.next()
        # Using another's adapter does not make it one's own.
        mine.send(predict_request({"a": 1}, "theirs", request_id="2", session_id="mine"))
        assert mine.next().HasField("predict")
        mine.send(request_of("close", request_id="3"), predict_request({"a": 1}, "theirs"))
        closed = mine.next()
        assert closed.request_id == "3"
        assert closed.HasField("close")
        mine.join()
        assert mine.answers.get(timeout=TIMEOUT) is None  # Nothing later is answered.
        other.send(predict_request({"a": 1}, "theirs"))
        assert other.next().HasField("predict")
        other.end()
        released = [env_id for kind, env_id in setup.calls if kind == "release"]
        assert sorted(released) == ["before", "unnamed"]
        assert len(service.routes) == 1


def test_close_waits_for_what_is_in_work() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"))
        stream.next()
        stream.send(predict_request({"a": 1}, "slow", request_id="1"))
        stream.send(request_of("close", request_id="2"))
        assert handler.entered.acquire(timeout=TIMEOUT)
        handler.gate.set()
        assert [stream.next().request_id for _ in range(2)] == ["1", "2"]
        stream.join()


def test_half_close_still_answers() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"))
        stream.send(predict_request({"a": 1}, "slow", request_id="1"))
        assert handler.entered.acquire(timeout=TIMEOUT)
        threading.Thread(target=handler.gate.set).start()
        stream.end()
        assert [stream.next().request_id for _ in range(2)] == ["0", "1"]
        assert len(service.routes) == 1  # Not a Close.


def test_predictions_of_a_lost_client_are_dropped_but_its_resets_are_not() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"))
        stream.next()
        stream.send(
            predict_request({"a": 1}, "slow", request_id="1"),
            predict_request({"a": 2}, "slow", request_id="2"),
            predict_request({"a": 3}, "slow", request_id="3"),
            request_of("reset_adapter", "slow", request_id="4", episode_ids=["a"]),
        )
        assert handler.entered.acquire(timeout=TIMEOUT)
        stream.lose()
        handler.gate.set()
        exchange(service, resolve_request("slow"))  # Its turn comes after all of those.
        assert [float(seen.observation[0, 0]) for seen in handler.seen] == [1.0]
        assert handler.resets == [("slow", ("a",))]


def test_a_stream_reads_only_so_far_ahead() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        count = 3 * MAX_IN_WORK
        stream.send(resolve_request("slow", request_id="r"))
        stream.next()
        stream.send(*(predict_request({"a": n}, "slow", request_id=str(n)) for n in range(count)))
        assert handler.entered.acquire(timeout=TIMEOUT)
        assert service.in_flight <= MAX_IN_WORK
        handler.gate.set()
        assert [stream.next().request_id for _ in range(count)] == [str(n) for n in range(count)]
        stream.end()


def test_a_full_table_gives_up_only_adapters_without_a_client() -> None:
    setup = RecordingSetup()
    handler = SetupHandler(setup)
    with service_of(handler, max_adapters=2) as service:
        lost, live = LiveStream(service), LiveStream(service)
        lost.send(resolve_request("lost"))
        lost.next()
        live.send(resolve_request("live"), predict_request({"a": 1}, "live"))
        assert {live.next().request_id, live.next().request_id} == {"r", "p"}
        live.send(resolve_request("one more"))
        refused = live.next()
        assert refused.error.code == pb.MODEL_ERROR_CODE_BUSY
        assert refused.error.is_recoverable
        live.send(resolve_request("live"))  # Again is always possible.
        assert live.next().HasField("resolve_adapter")
        lost.lose()
        live.send(resolve_request("one more"))
        assert live.next().HasField("resolve_adapter")
        live.send(predict_request({"a": 1}, "lost"))
        assert live.next().error.code == pb.MODEL_ERROR_CODE_NOT_CONFIGURED
        live.end()
    assert ("release", "lost") in setup.calls
    assert handler.resets == [("lost", ())]


def test_one_connection_does_not_keep_everybody_out() -> None:
    with service_of(EchoHandler(), max_adapters=160) as service:
        greedy, again = LiveStream(service, "a"), LiveStream(service, "a")
        other = LiveStream(service, "b")
        for number in range(20):
            stream = again if number % 2 else greedy
            stream.send(resolve_request(f"greedy-{number}"))
            assert stream.next().HasField("resolve_adapter")
        for stream in (greedy, again):
            stream.send(resolve_request("one more"))
            refused = stream.next()
            assert refused.error.code == pb.MODEL_ERROR_CODE_BUSY
            assert "this connection has 20 environments" in refused.error.message
        greedy.send(resolve_request("greedy-3"))  # Again is always possible.
        assert greedy.next().HasField("resolve_adapter")
        other.send(resolve_request("other"))
        assert other.next().HasField("resolve_adapter")
        again.lose()
        greedy.send(resolve_request("one more"))  # In the place of one that has lost its stream.
        assert greedy.next().HasField("resolve_adapter")
        greedy.end()
        other.end()


def test_no_more_is_read_than_a_client_reads_answers_of() -> None:
    taken = 0

    def requests() -> Iterator[pb.JoinRequest]:
        nonlocal taken
        yield resolve_request("e")
        for _ in range(20 * MAX_IN_WORK):
            taken += 1
            yield predict_request({"a": 1}, "e")

    with service_of(EchoHandler()) as service:
        stream = ModelStream(service, requests())
        answers: Any = stream.responses()
        assert next(answers).HasField("resolve_adapter")
        assert next(answers).HasField("predict")
        model = service.model_thread  # Whatever was read is answered when its last task is done.
        for _ in range(5 * MAX_IN_WORK):
            model.run(lambda: None)
        assert taken <= 2 * MAX_IN_WORK
        answers.close()


@pytest.mark.parametrize(
    ("change", "part", "recoverable"),
    [
        pytest.param(lambda r: r.ClearField("context"), "env_id is empty", False, id="no env id"),
        pytest.param(lambda r: r.ClearField("env_spec"), "env_spec is missing", False, id="spec"),
        pytest.param(
            lambda r: r.env_spec.ClearField("action_space"), "action space", False, id="action"
        ),
        pytest.param(
            lambda r: setattr(r.env_spec.action_space, "dtype", 99), "malformed", False, id="dtype"
        ),
        pytest.param(
            lambda r: setattr(r, "selected_workflow_edition", "1999.12"),
            "1999.12",
            False,
            id="edition",
        ),
        pytest.param(
            lambda r: setattr(r, "execution_horizon", 1025), "must be 1 to 1024", True, id="horizon"
        ),
    ],
)
def test_what_cannot_be_resolved(change: Any, part: str, recoverable: bool) -> None:
    request = resolve_request(request_id="0")
    change(request.resolve_adapter)
    with service_of(EchoHandler()) as service:
        answer, fine = exchange(service, request, resolve_request("fine", request_id="1"))
    assert answer.error.code == pb.MODEL_ERROR_CODE_INVALID_REQUEST
    assert answer.error.is_recoverable is recoverable
    assert part in answer.error.message
    assert fine.HasField("resolve_adapter")


def test_an_empty_edition_and_an_env_without_observations_are_taken() -> None:
    request = resolve_request(request_id="0")
    request.resolve_adapter.selected_workflow_edition = ""
    request.resolve_adapter.env_spec.ClearField("observation_space")
    with service_of(EchoHandler()) as service:
        resolved, answer = exchange(service, request, predict_request({"a": 1}))
    assert resolved.HasField("resolve_adapter")
    assert "without an observation space" in answer.error.message


def test_an_empty_request_is_answered() -> None:
    with service_of(EchoHandler()) as service:
        (answer,) = exchange(service, pb.JoinRequest(request_id="1"))
    assert answer.error.code == pb.MODEL_ERROR_CODE_UNSUPPORTED
    assert answer.error.is_recoverable


def test_errors_reach_a_client_as_typed_errors(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir) as server, connected(server) as client:
        client.resolve()
        with pytest.raises(ModelError, match="no adapter") as unresolved:
            client.predict({"a": 1}, "nowhere")
        assert unresolved.value.code == "NOT_CONFIGURED"
        with pytest.raises(ModelError, match="nan") as malformed:
            client.predict({"a": float("nan")})
        assert malformed.value.code == "INVALID_REQUEST"
        assert malformed.value.is_recoverable
        assert malformed.value.episode_ids == ("a",)
        assert malformed.value.endpoint == server.address
        assert client.predict({"a": 4}) == [[4.0]]


def test_a_client_that_dies_leaves_its_adapter_to_the_next(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir) as server:
        with ModelSession.open(server.address) as session:
            request = resolve_request().resolve_adapter
            session.resolve_adapter("env", request.env_spec).result(TIMEOUT)
        with connected(server) as client:
            assert client.predict({"a": 2}) == [[2.0]]


def test_a_close_that_comes_too_late_ends_all_the_same() -> None:
    with service_of(EchoHandler()) as service:
        stream = LiveStream(service)
        stream.send(resolve_request())
        stream.next()
        assert service.close(lambda: None, TIMEOUT)  # The model thread has ended.
        stream.send(predict_request({"a": 1}))
        assert stream.next().error.code == pb.MODEL_ERROR_CODE_CLOSED
        stream.send(request_of("close"))
        assert stream.next().HasField("close")
        stream.join()


def test_a_stopping_server_takes_no_further_requests() -> None:
    handler = GatedHandler()
    with service_of(handler) as service:
        stream = LiveStream(service)
        stream.send(resolve_request("slow", request_id="0"))
        stream.next()
        stream.send(predict_request({"a": 1}, "slow", request_id="1"))
        assert handler.entered.acquire(timeout=TIMEOUT)
        service.drain()
        stream.send(predict_request({"a": 2}, "slow", request_id="2"))
        refused = stream.next()
        assert refused.request_id == "2"
        assert refused.error.code == pb.MODEL_ERROR_CODE_CLOSED
        assert not refused.error.is_recoverable
        handler.gate.set()
        assert stream.next().request_id == "1"
        stream.join()
        with pytest.raises(Refused, match="stopping"):
            exchange(service, resolve_request())
