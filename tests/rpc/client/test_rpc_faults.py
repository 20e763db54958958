"""What a session makes of a peer that is late, wrong, rude or gone."""

from __future__ import annotations

import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from rlmesh_gym._proto.env.v1 import interaction_pb2 as pb
from rlmesh_gym.errors import (
    ClosedError,
    DeadlineError,
    EnvError,
    ProtocolError,
    ResetNeededError,
    SessionRefusedError,
    UnavailableError,
)
from rlmesh_gym.rpc import MAX_OUTSTANDING, EnvSession, JoinPeer, Refused
from tests.rpc.raw_endpoints import ACTION, env_answer, env_host, env_join

if TYPE_CHECKING:
    from collections.abc import Iterator

    Requests = Iterator[pb.JoinRequest]

WAIT = 10.0
# Whoever waits for a timeout of its own, hangs: what ends in spite of them does not wait.
PATIENT = {"connect": 600.0, "close": 600.0}


def test_late_answer_is_not_taken_for_the_next_one() -> None:
    release = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        steps = 0
        for request in requests:
            steps += request.HasField("step")
            if steps == 1 and request.HasField("step"):
                release.wait(WAIT)
            yield env_answer(request, float(steps))

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        first = session.step(ACTION)
        with pytest.raises(DeadlineError, match=r"no answer within 0.05 s.*timeouts.step"):
            first.result(0.05)
        assert not first.done()
        second = session.step(ACTION)
        release.set()
        assert list(second.result(WAIT).rewards) == [2.0, 2.0]
        # The first one's own answer is still to be had, by whoever kept the pending.
        assert list(first.result(WAIT).rewards) == [1.0, 1.0]
        assert list(first.result(0).rewards) == [1.0, 1.0]


def test_unknown_ids_are_dropped() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            stray = env_answer(request, 99.0)
            for request_id in ("", "nobody", "999"):
                stray.request_id = request_id
                yield stray
            yield env_answer(request, 1.0)
            yield env_answer(request, 2.0)  # A second answer to the same request.

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        for _ in range(3):
            assert list(session.step(ACTION).result(WAIT).rewards) == [1.0, 1.0]


def test_answers_out_of_order() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        held = []
        for request in requests:
            if request.HasField("step"):
                held.append(request)
                if len(held) == 3:
                    for index, one in reversed(list(enumerate(held))):
                        yield env_answer(one, float(index))
            else:
                yield env_answer(request)

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        pendings = [session.step(ACTION, env_indices=[0, 1]) for _ in range(3)]
        assert [pending.result(WAIT).rewards[0] for pending in pendings] == [0.0, 1.0, 2.0]


def test_wrong_kind() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = pb.JoinResponse(request_id=request.request_id)
            if request.HasField("step"):
                response.render.SetInParent()
            yield response  # Without any kind to a reset.

    with env_host(join) as address, EnvSession.open(address) as session:
        with pytest.raises(ProtocolError, match=r"expected an answer of kind 'reset', got None"):
            session.reset().result(WAIT)
        with pytest.raises(ProtocolError, match=r"kind 'step', got 'render'"):
            session.step(ACTION).result(WAIT)


def test_unreadable_answer() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            yield env_answer(request) if not request.HasField("step") else b"\xff\xff\xff"

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        with pytest.raises(ProtocolError, match=r"step: an answer cannot be read"):
            session.step(ACTION).result(WAIT)
        session.reset().result(WAIT)  # The session itself can go on.


def test_in_band_errors() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = env_answer(request)
            if request.HasField("step"):
                response.error.code = pb.ENV_ERROR_CODE_INVALID_ACTION
                response.error.message = "no such action"
                response.error.is_recoverable = True
                response.error.debug_info = "a traceback"
                response.error.interrupted_episodes.add(episode_id="e1")
            elif request.HasField("render"):
                response.error.code = 77  # type: ignore[assignment]
            yield response

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        pending = session.step(ACTION, env_indices=[1, 0])
        with pytest.raises(EnvError, match=r"\[1, 0\].*INVALID_ACTION: no such action") as raised:
            pending.result(WAIT)
        error = pickle.loads(pickle.dumps(raised.value))
        assert (error.code, error.is_recoverable, error.debug_info, error.lanes) == (
            "INVALID_ACTION",
            True,
            "a traceback",
            (1, 0),
        )
        assert error.interrupted_episodes == ("e1",)
        assert error.endpoint == address
        with pytest.raises(EnvError, match="UNKNOWN_77"):
            session.render().result(WAIT)


def test_stream_ends_in_order_while_an_answer_is_due() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                return
            yield env_answer(request)

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        with pytest.raises(UnavailableError, match=r"step: the endpoint ended the session before"):
            session.step(ACTION).result(WAIT)
        assert not session.is_streaming
        with pytest.raises(ResetNeededError, match=r"render: .*call reset\(\)"):
            session.render()
        with pytest.raises(ResetNeededError):
            session.reset(env_indices=[0])
        session.reset().result(WAIT)
        assert session.is_streaming


def test_end_after_an_error_says_which() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = env_answer(request)
            if request.HasField("step"):
                response.error.message = "the simulator crashed"
                yield response
                return
            yield response

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        with pytest.raises(EnvError, match="the simulator crashed"):
            session.step(ACTION).result(WAIT)
        assert session._connection.stream is not None
        assert session._connection.stream.wait_ended(WAIT)
        with pytest.raises(ResetNeededError, match="after its error: the simulator crashed"):
            session.step(ACTION)


def test_server_stops_in_the_middle_of_a_step() -> None:
    arrived = threading.Event()
    finish = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                arrived.set()
                finish.wait()
            yield env_answer(request)

    with env_host(join) as address:
        session = EnvSession.open(address, timeouts=PATIENT)
        session.reset().result(WAIT)
        pending = session.step(ACTION)
        assert arrived.wait(WAIT)
    with pytest.raises(UnavailableError, match=r"step: ") as raised:
        pending.result(WAIT)
    assert address in str(raised.value)
    with pytest.raises(UnavailableError):
        session.reset().result(WAIT)
    session.close()
    finish.set()


def test_second_session_is_refused() -> None:
    taken = threading.Lock()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        if not taken.acquire(blocking=False):
            raise Refused("FAILED_PRECONDITION", "environment already has an active session")
        try:
            yield from env_join(requests, peer)
        finally:
            taken.release()

    with env_host(join) as address, EnvSession.open(address) as first:
        first.reset().result(WAIT)
        with EnvSession.open(address, timeouts={"connect": 0.3}) as second:
            with pytest.raises(SessionRefusedError, match=r"no further session: .*active session"):
                second.reset().result(WAIT)
            with pytest.raises(SessionRefusedError):
                second.reset()
            first.step(ACTION).result(WAIT)
            first.close()
            second.reset().result(WAIT)  # Once the slot is free, a reset is enough.


def test_whole_vector_requests_in_flight_are_bounded() -> None:
    release = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                release.wait(WAIT)
            yield env_answer(request)

    with env_host(join) as address:
        session = EnvSession.open(address, timeouts={"step": 0.2})
        session.reset().result(WAIT)
        # Two fewer than fit: configure and reset may still count, as they were answered just now.
        pendings = [session.step(ACTION) for _ in range(MAX_OUTSTANDING - 2)]
        with pytest.raises(DeadlineError, match=r"no answer within 0\.2 s"):
            pendings.extend(session.step(ACTION) for _ in range(10))
        assert session._connection.stream is not None
        assert session._connection.stream.outstanding == MAX_OUTSTANDING
        release.set()
        for pending in pendings:
            pending.result(WAIT)
        session.close()


def test_several_threads_share_a_session() -> None:
    rewards: list[float] = []

    with env_host() as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)

        def work() -> None:
            rewards.extend(session.step(ACTION).result(WAIT).rewards[0] for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(rewards) == [float(count) for count in range(1, 201)]


def test_close_while_a_step_is_at_work() -> None:
    release = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                release.wait()
            yield env_answer(request)

    with env_host(join) as address:
        session = EnvSession.open(address, timeouts=PATIENT)
        session.reset().result(WAIT)
        pending = session.step(ACTION)
        session.close()
        with pytest.raises(ClosedError):
            pending.result(WAIT)
        with pytest.raises(ClosedError):
            session.step(ACTION)
        with pytest.raises(ClosedError):
            session.ping()
        session.close()
        release.set()


def test_close_takes_no_for_an_answer() -> None:
    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            response = env_answer(request)
            if request.HasField("close"):
                response.error.message = "you may not leave"
            yield response

    with env_host(join) as address:
        session = EnvSession.open(address)
        session.reset().result(WAIT)
        session.close()
        session.close()


def test_close_says_goodbye_and_waits_for_the_end() -> None:
    seen = []
    ended = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        peer.on_disconnect(ended.set)
        for request in requests:
            seen.append(request.WhichOneof("kind"))
            if request.HasField("close"):
                assert request.close.reason == "enough"
            yield env_answer(request)
            if request.HasField("close"):
                return

    with env_host(join) as address:
        session = EnvSession.open(address)
        session.reset(seeds=[1, 2], options={}, episode_ids=["a", "b"]).result(WAIT)
        session.close("enough")
        assert ended.wait(WAIT)
    assert seen == ["configure", "reset", "close"]


def test_close_of_an_unused_session_opens_no_stream() -> None:
    joined = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        joined.set()
        yield from env_join(requests, peer)

    with env_host(join) as address:
        EnvSession.open(address).close()
    assert not joined.is_set()


def test_a_dropped_session_disconnects() -> None:
    ended = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        peer.on_disconnect(ended.set)
        yield from env_join(requests, peer)

    with env_host(join) as address:
        session = EnvSession.open(address)
        session.reset().result(WAIT)
        del session
        assert ended.wait(WAIT)


def test_abandoned_pending() -> None:
    release = threading.Event()

    def join(requests: Requests, peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("render"):
                release.wait(WAIT)
            yield env_answer(request)

    with env_host(join) as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        pending = session.render()
        assert pending.abandon(ClosedError("given up"))
        assert not pending.abandon(ClosedError("twice"))
        with pytest.raises(ClosedError, match="given up"):
            pending.result(WAIT)
        release.set()
        session.step(ACTION).result(WAIT)


def test_pending_tells_sizes_and_times() -> None:
    with env_host() as address, EnvSession.open(address) as session:
        session.reset().result(WAIT)
        begun = time.monotonic_ns()
        pending = session.step(ACTION)
        pending.result(WAIT)
        assert pending.done()
        assert pending.response.request_id == pending.request_id
        assert pending.response_bytes == pending.response.ByteSize()
        assert pending.request_bytes > sum(len(leaf) for leaf in ACTION.leaves)
        assert 0 < pending.elapsed_ns == pending.elapsed_ns <= time.monotonic_ns() - begun


def test_a_restarted_server_is_found_again(socket_dir: Any) -> None:
    address = f"unix://{socket_dir}/again.sock"
    with env_host(address=address):
        session = EnvSession.open(address)
        session.reset().result(WAIT)
    with pytest.raises(UnavailableError):
        session.reset().result(WAIT)
    with env_host(address=address):
        session.reset().result(WAIT)
        session.step(ACTION).result(WAIT)
        session.close()
