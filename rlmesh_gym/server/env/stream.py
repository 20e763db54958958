"""One Join stream of an env server: which thread answers which request, and in what order.

Requests for the whole vector are answered on the stream's own thread, one after the other, without
any hop. The first request that names lanes of several brings in a reader thread and the lanes' own
threads; whole-vector requests are then barriers, answered by the reader.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rlmesh_gym.server.env.lane_calls import LaneScheduler
from rlmesh_gym.server.env.operations import Reply, lanes_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.server.env.operations import Operations
    from rlmesh_gym.server.env.session_slots import Lease

    Requests = Iterator[interaction_pb2.JoinRequest]
    Responses = Iterator[interaction_pb2.JoinResponse | bytes]
    Run = Callable[[Callable[[], Reply]], Reply]


_UNREAD_PER_LANE = 16
"""Requests of a lane that may be answered while the client has not read the answer to the first."""


class EnvStream:
    """Answers the requests of one client.

    ``run`` makes one answer where, and when, the environment may be called; the lease is held
    meanwhile.
    """

    def __init__(
        self, operations: Operations, lease: Lease, *, run: Run, may_overlap: bool
    ) -> None:
        self._operations = operations
        self._lease = lease
        self._run = run
        env = operations.env
        self._may_overlap = may_overlap and env.has_lane_operations and env.num_envs > 1

    def answers(self, requests: Requests) -> Responses:
        """Yield the answers to ``requests``, until they end or an answer closes the stream."""
        for request in requests:
            if self._may_overlap and lanes_named(request):
                yield from self._overlapping(request, requests)
                return
            reply = self._answer(request)
            yield reply.response
            if reply.closes or self._lease.is_ended:
                return

    def _answer(
        self, request: interaction_pb2.JoinRequest, received_ns: int | None = None
    ) -> Reply:
        with self._lease.call():
            queue_ns = None if received_ns is None else time.perf_counter_ns() - received_ns
            reply = self._run(partial(self._operations.answer, request, queue_ns=queue_ns))
        if reply.closes:
            # Before the client reads that the session is over, so that its next one is let in.
            self._lease.end()
        return reply

    def _overlapping(self, first: interaction_pb2.JoinRequest, requests: Requests) -> Responses:
        replies: SimpleQueue[Reply | Exception | None] = SimpleQueue()
        # A client that reads no answers is not read from either.
        room = threading.Semaphore(_UNREAD_PER_LANE * self._operations.env.num_envs)
        arguments = (first, requests, replies, room)
        threading.Thread(
            target=self._read, args=arguments, name="rlmesh_gym-reader", daemon=True
        ).start()
        try:
            while (reply := replies.get()) is not None:
                if isinstance(reply, Exception):
                    raise reply
                yield reply.response
                del reply  # Not kept alive while the client thinks.
                room.release()
        finally:
            room.release()  # The reader may wait for it; the next request is not there any more.

    def _read(
        self,
        first: interaction_pb2.JoinRequest,
        requests: Requests,
        replies: SimpleQueue[Reply | Exception | None],
        room: threading.Semaphore,
    ) -> None:
        scheduler, num_envs = LaneScheduler(), self._operations.env.num_envs
        request: interaction_pb2.JoinRequest | None = first
        failure: Exception | None = None

        def answer(request: interaction_pb2.JoinRequest, received_ns: int) -> Reply:
            reply = self._answer(request, received_ns)
            replies.put(reply)
            return reply

        try:
            while request is not None and not self._lease.is_ended:
                received = time.perf_counter_ns()
                # A request that names wrong lanes is only refused.
                lanes = {lane for lane in lanes_named(request) if lane < num_envs}
                if lanes:
                    scheduler.submit(lanes, partial(answer, request, received))
                else:
                    scheduler.drain()
                    if answer(request, received).closes:
                        return
                room.acquire()
                request = next(requests, None)
        except Exception as error:  # Of the stream itself: the client cancelled, or sent garbage.
            failure = error
        finally:
            scheduler.close()
            replies.put(failure)
