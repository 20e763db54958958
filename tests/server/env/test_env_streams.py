"""How far the server of an env reads ahead of a client that reads no answers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlmesh_gym._proto.env.v1 import interaction_pb2 as pb
from rlmesh_gym.server.env.operations import Reply
from rlmesh_gym.server.env.stream import EnvStream

if TYPE_CHECKING:
    from collections.abc import Iterator

LANES, REQUESTS, MOST = 2, 2000, 2 * 16 + 2


def test_a_client_that_reads_nothing_is_not_read_from() -> None:
    asked: list[int] = []

    def requests() -> Iterator[pb.JoinRequest]:
        for number in range(REQUESTS):
            asked.append(number)
            step = pb.StepRequest(env_indices=[number % LANES])
            yield pb.JoinRequest(request_id=str(number), step=step)

    def answer(request: pb.JoinRequest, *, queue_ns: int | None) -> Reply:
        del queue_ns
        return Reply(pb.JoinResponse(request_id=request.request_id))

    operations: Any = SimpleNamespace(
        env=SimpleNamespace(has_lane_operations=True, num_envs=LANES), answer=answer
    )
    lease: Any = SimpleNamespace(call=nullcontext, is_ended=False)
    stream = EnvStream(operations, lease, run=lambda call: call(), may_overlap=True)
    ahead, ids = [], []
    for read, response in enumerate(stream.answers(requests())):
        assert not isinstance(response, bytes)
        ids.append(int(response.request_id))
        ahead.append(len(asked) - read)
    assert sorted(ids) == list(range(REQUESTS))
    assert max(ahead) <= MOST


def test_a_stream_that_nobody_finishes_lets_its_reader_go() -> None:
    asked: list[int] = []

    def requests() -> Iterator[pb.JoinRequest]:
        for number in range(REQUESTS):
            asked.append(number)
            yield pb.JoinRequest(step=pb.StepRequest(env_indices=[0]))

    operations: Any = SimpleNamespace(
        env=SimpleNamespace(has_lane_operations=True, num_envs=LANES),
        answer=lambda request, queue_ns: Reply(pb.JoinResponse(request_id=request.request_id)),
    )
    lease: Any = SimpleNamespace(call=nullcontext, is_ended=False)
    stream: Any = EnvStream(operations, lease, run=lambda call: call(), may_overlap=True)
    answers = stream.answers(requests())
    next(answers)
    lease.is_ended = True  # As it is when the client has gone.
    answers.close()
    # That the reader's thread has ended is what every module is checked for.
    assert len(asked) <= MOST
