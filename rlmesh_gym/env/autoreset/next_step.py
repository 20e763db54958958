"""NEXT_STEP over an endpoint that has that mode, or whose lanes the client resets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlmesh_gym.env.autoreset.conversion import Conversion
from rlmesh_gym.env.drive.resets import reset_lanes
from rlmesh_gym.errors import Error
from rlmesh_gym.lanes import any_true, mint_episode_id

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.rpc import AnyPending


T = TypeVar("T")

_WORTH_A_LOOK = 0.02
"""Seconds; a roll that takes less is fast enough whichever way."""
_LOOK_AGAIN = 100
"""Rolls until the way that was slower is tried again."""


class NativeNextStep(Conversion):
    """The endpoint resets an ended lane in the step after, whatever the action."""

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes; the new episodes' ids go down with the step that begins them."""
        if any_true(self.endpoint.ended):
            return self._roll(actions, batch)
        return super().step(actions, batch)

    def _roll(self, actions: Leaves, batch: Batch) -> Exchange:
        endpoint = self.endpoint
        beginning = np.flatnonzero(endpoint.ended).tolist()
        ids = endpoint.episode_ids
        for index in beginning:
            ids[index] = mint_episode_id()
        reply = self.take((yield endpoint.send_step(actions, ids)), batch)
        for row in endpoint.advance(reply, beginning=beginning):
            endpoint.record(row, reply, row, reply.info(row))
        endpoint.begin(beginning, episode_ids=[ids[index] for index in beginning])
        return self.rows(reply.infos)


class NextStepByLanes(Conversion):
    """In the step after the end, the ended lanes are reset and the others are stepped.

    Both requests are in flight together, unless that turns out to be the slower way; see
    :class:`RollPace`. An endpoint of one lane gets a ``Reset`` instead of the ``Step``.
    """

    rolls_by_lanes = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._pace = RollPace()

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step the running lanes and reset the ended ones, whose actions are ignored."""
        if any_true(self.endpoint.ended):
            return self._roll(actions, batch)
        return super().step(actions, batch)

    def _roll(self, actions: Leaves, batch: Batch) -> Exchange:
        endpoint = self.endpoint
        ended = np.flatnonzero(endpoint.ended).tolist()
        running = np.flatnonzero(~endpoint.ended).tolist()
        if not running:
            infos = yield from reset_lanes(endpoint, ended, batch)
            return sorted(infos.items())
        together = self._pace.choose_together()
        begun = time.perf_counter()
        resetting = reset_lanes(endpoint, ended, batch)
        failure: Error | None = None
        if together:
            resetting = _sent(resetting, next(resetting))
            stepping = endpoint.send_lane_step(running, actions)
            try:
                infos = yield from resetting
            except Error as error:
                infos, failure = {}, error
        else:
            infos = yield from resetting
            stepping = endpoint.send_lane_step(running, actions)
        try:
            response = yield stepping
        except Error as error:
            raise failure or error from None
        self._pace.note(time.perf_counter() - begun, together=together)
        # The lanes were stepped, whatever became of the others.
        infos.update(self.finish_some(response, running, batch))
        if failure is not None:
            raise failure
        return sorted(infos.items())


def _sent(
    exchange: Generator[AnyPending, Any, T], pending: AnyPending
) -> Generator[AnyPending, Any, T]:
    """Return the rest of an exchange that has sent its first request."""
    try:
        while True:
            try:
                message = yield pending
            except Exception as error:  # noqa: PERF203
                pending = exchange.throw(error)  # The exchange decides what becomes of it.
            else:
                pending = exchange.send(message)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class RollPace:
    """Whether the two requests of a roll go out together, by what either way has taken.

    Together they take one trip instead of two. But a server that does not set ``TCP_NODELAY`` (the
    released package's, over TCP) holds its second answer back until the first is acknowledged, and
    the client's system takes 40 ms for that when it has nothing to send. Slow environments, on the
    other hand, win more than that by working side by side.
    """

    def __init__(self) -> None:
        self._together = 0.0
        self._apart: float | None = None
        self._rolls = 0

    def choose_together(self) -> bool:
        """Return how the next roll is to be sent."""
        self._rolls += 1
        if self._together < _WORTH_A_LOOK:
            return True
        if self._apart is None:
            return False
        is_better = self._together <= self._apart
        # Either may have changed meanwhile.
        return is_better if self._rolls % _LOOK_AGAIN else not is_better

    def note(self, seconds: float, *, together: bool) -> None:
        """Take in what a roll took, sent that way; old ones fade."""
        if together:
            self._together = _faded(self._together or None, seconds)
        else:
            self._apart = _faded(self._apart, seconds)


def _faded(before: float | None, now: float) -> float:
    return now if before is None else 0.7 * before + 0.3 * now
