"""Model sessions: contexts, ids, groups, errors."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.codec import SpaceCodec, encode_env_spec
from rlmesh_gym.errors import ClosedError, ModelError, UnavailableError
from rlmesh_gym.rpc import HistoryRows, JoinPeer, ModelSession
from rlmesh_gym.rpc.services import MODEL
from tests.rpc.raw_endpoints import CONTRACT, OBSERVATION, model_host

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 10.0
SPEC = encode_env_spec(
    CONTRACT.env_id, CONTRACT.single_observation_space, CONTRACT.single_action_space, {}
)
EPISODES: list[tuple[str, int | None]] = [("e1", 7), ("e2", None)]


def test_every_request_arrives_whole() -> None:
    seen: list[pb.JoinRequest] = []

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            seen.append(request)
            response = pb.JoinResponse(request_id=request.request_id)
            getattr(response, request.WhichOneof("kind")).SetInParent()
            yield response

    with model_host(join) as address, ModelSession.open(address) as session:
        session.resolve_adapter("env-1", SPEC, execution_horizon=8, delivers_history=True).result(
            WAIT
        )
        frame = HistoryRows(3, OBSERVATION, EPISODES[:1])
        session.predict("env-1", OBSERVATION, EPISODES, history=[frame], step=4).result(WAIT)
        session.predict("env-1", OBSERVATION, EPISODES).result(WAIT)
        session.reset_adapter("env-1", ["e1"]).result(WAIT)
        session.release_adapter("env-1", "over").result(WAIT)
        session_id = session.session_id
    resolve, first, second, reset, release = (
        seen[0].resolve_adapter,
        seen[1].predict,
        seen[2].predict,
        seen[3].reset_adapter,
        seen[4].release_adapter,
    )
    assert resolve.env_spec == SPEC
    assert (resolve.execution_horizon, resolve.delivers_history) == (8, True)
    assert resolve.selected_workflow_edition == "2026.06"
    assert first.observation == OBSERVATION
    assert [(e.episode_id, e.seed, e.HasField("seed")) for e in first.episode_info] == [
        ("e1", 7, True),
        ("e2", 0, False),
    ]
    assert (first.step, first.HasField("step")) == (4, True)
    assert [(rows.step, rows.observation) for rows in first.history] == [(3, OBSERVATION)]
    assert [(e.episode_id, e.seed) for e in first.history[0].episode_info] == [("e1", 7)]
    assert (second.HasField("step"), list(second.history)) == (False, [])
    assert list(reset.episode_ids) == ["e1"]
    assert release.reason == "over"
    contexts = [resolve.context, first.context, second.context, reset.context, release.context]
    assert {context.session_id for context in contexts} == {session_id}
    assert {context.env_id for context in contexts} == {"env-1"}
    assert len({context.request_id for context in contexts}) == len(contexts)
    # Closing ends the stream without CloseParticipant, which would drop other clients' adapters.
    assert len(seen) == len(contexts)


def test_several_in_flight_and_answers_in_any_order() -> None:
    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        held: list[pb.JoinRequest] = []
        for request in requests:
            held.append(request)
            if len(held) == 3:
                for one in reversed(held):
                    response = pb.JoinResponse(request_id=one.request_id)
                    response.predict.context.CopyFrom(one.predict.context)
                    yield response

    with model_host(join) as address, ModelSession.open(address) as session:
        pendings = [session.predict(f"env-{i}", OBSERVATION, EPISODES) for i in range(3)]
        for index, pending in enumerate(pendings):
            answer = pending.result(WAIT)
            assert answer.context.env_id == f"env-{index}"
            assert answer.context.request_id == pending.context.request_id


def test_in_band_error() -> None:
    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = pb.JoinResponse(request_id=request.request_id)
            response.error.code = pb.MODEL_ERROR_CODE_INTERNAL
            response.error.message = "out of memory"
            response.error.is_recoverable = True
            yield response

    with model_host(join) as address, ModelSession.open(address) as session:
        with pytest.raises(ModelError, match="predict: the model answered INTERNAL: out of") as e:
            session.predict("env-1", OBSERVATION, EPISODES).result(WAIT)
        error = pickle.loads(pickle.dumps(e.value))
        assert (error.code, error.is_recoverable) == ("INTERNAL", True)
        assert (error.env_id, error.episode_ids) == ("env-1", ("e1", "e2"))
        assert error.endpoint == address
        with pytest.raises(ModelError):  # The stream is still there.
            session.reset_adapter("env-1").result(WAIT)


def test_error_of_a_later_edition() -> None:
    message = pb.ModelError(message="?")
    message.code = 99  # type: ignore[assignment]
    context = SimpleNamespace(env_id="env", episode_ids=())
    pending = SimpleNamespace(endpoint="e", operation="predict", context=context)
    error = MODEL.error(message, pending)
    assert isinstance(error, ModelError)
    assert error.code == "UNKNOWN_99"


def test_the_stream_is_opened_again() -> None:
    joins = []

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        joins.append(1)
        for request in requests:
            if request.HasField("predict") and len(joins) == 1:
                return
            response = pb.JoinResponse(request_id=request.request_id)
            getattr(response, request.WhichOneof("kind")).SetInParent()
            yield response

    with model_host(join) as address, ModelSession.open(address) as session:
        with pytest.raises(UnavailableError, match="ended the session before it answered"):
            session.predict("env-1", OBSERVATION, EPISODES).result(WAIT)
        session.predict("env-1", OBSERVATION, EPISODES).result(WAIT)
        session.close()
        with pytest.raises(ClosedError):
            session.predict("env-1", OBSERVATION, EPISODES)
    assert len(joins) == 2


def test_what_the_session_tells() -> None:
    with model_host() as address, ModelSession.open(address) as session:
        assert session.endpoint == address
        assert session.takes_history
        assert session.peer.language == "python"
        assert session.request_shutdown("bored") == (False, "")
        assert "open" in repr(session)
    assert session.is_closed
    assert "closed" in repr(session)


def test_handshake_answers_while_a_model_is_at_work() -> None:
    arrived, release = threading.Event(), threading.Event()

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            arrived.set()
            release.wait(WAIT)
            response = pb.JoinResponse(request_id=request.request_id)
            response.predict.SetInParent()
            yield response

    with model_host(join) as address, ModelSession.open(address) as session:
        pending = session.predict("env-1", OBSERVATION, EPISODES)
        assert arrived.wait(WAIT)
        with ModelSession.open(address, timeouts={"connect": 0.5}) as second:
            assert second.ping() < 0.5
        release.set()
        pending.result(WAIT)


def test_rows_are_named_by_the_episodes_given_whatever_was_given_before() -> None:
    seen: list[pb.JoinRequest] = []

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            seen.append(request)
            response = pb.JoinResponse(request_id=request.request_id)
            response.predict.SetInParent()
            yield response

    kept, other = (("e1", 7), ("e2", None)), (("e3", None),)
    changing: list[tuple[str, int | None]] = [("e4", 1)]
    with model_host(join) as address, ModelSession.open(address) as session:
        for episodes in (kept, kept, other, changing):
            session.predict("env-1", OBSERVATION, episodes).result(WAIT)
        changing[0] = ("e5", 0)
        session.predict("env-1", OBSERVATION, changing).result(WAIT)
        # Large observations go out another way, and so do those of replayed steps.
        rows = [np.arange(2**15, dtype=np.uint8).reshape(1, -1)]
        large = session.pack(SpaceCodec(spaces.Box(0, 255, (2**15,), np.uint8)), rows, 1)
        frame = HistoryRows(1, large, kept[:1])
        session.predict("env-1", large, other, history=[frame], step=2).result(WAIT)
    names = [
        [(e.episode_id, e.seed if e.HasField("seed") else None) for e in part.predict.episode_info]
        for part in seen
    ]
    assert names == [[*kept], [*kept], [*other], [("e4", 1)], [("e5", 0)], [*other]]
    last = seen[-1].predict
    assert [list(last.observation.leaves), last.step] == [[rows[0].tobytes()], 2]
    assert list(last.history[0].observation.leaves) == [rows[0].tobytes()]
    assert [e.episode_id for e in last.history[0].episode_info] == ["e1"]
