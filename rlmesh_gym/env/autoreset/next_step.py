"""NEXT_STEP over an endpoint whose lanes the client resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.env.autoreset.conversion import Conversion, sent
from rlmesh_gym.env.resets import reset_lanes
from rlmesh_gym.errors import Error
from rlmesh_gym.lanes import any_true

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.batch import Batch
    from rlmesh_gym.env.exchange import Exchange, InfoRows

__all__ = ["NextStepByLanes"]


class NextStepByLanes(Conversion):
    """In the step after the end, the ended lanes are reset and the others are stepped.

    Both requests are in flight together. An endpoint of one lane gets a ``Reset`` instead of the
    ``Step``.
    """

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step the running lanes and reset the ended ones, whose actions are ignored."""
        endpoint = self.endpoint
        if not any_true(endpoint.ended):
            response = yield endpoint.send_step(actions)
            reply = endpoint.read_step(response)
            self.put_step(reply, batch)
            for row in endpoint.advance(reply):
                endpoint.record(row, reply, row, reply.info(row))
            return self.rows(reply)
        ended = np.flatnonzero(endpoint.ended).tolist()
        running = np.flatnonzero(~endpoint.ended).tolist()
        if not running:
            infos = yield from reset_lanes(endpoint, ended, batch)
            return sorted(infos.items())
        resetting = sent(reset_lanes(endpoint, ended, batch))
        stepping = endpoint.send_lane_step(running, actions)
        rows: InfoRows = []
        failure: Error | None = None
        try:
            infos = yield from resetting
        except Error as error:
            infos, failure = {}, error
        try:
            response = yield stepping
        except Error as error:
            raise failure or error from None
        # The lanes were stepped, whatever became of the others.
        reply = endpoint.read_step(response, running)
        self.put_lane_step(running, reply, batch)
        for row in endpoint.advance(reply, running):
            endpoint.record(running[row], reply, row, reply.info(row))
        if failure is not None:
            raise failure
        infos.update((index, reply.info(row)) for row, index in enumerate(running))
        rows = sorted(infos.items())
        return rows
