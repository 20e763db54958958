"""The endpoint's own mode is the mode asked for, or does for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.env.autoreset.conversion import Conversion
from rlmesh_gym.lanes import any_true, mint_episode_id

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.exchange import Exchange

__all__ = ["NativeDisabled", "NativeNextStep", "NativeSameStep"]


class NativeDisabled(Conversion):
    """Lanes stay ended until the user resets them.

    Also over a NEXT_STEP endpoint: it resets a lane only when stepped past the end, which never
    happens, since the vector refuses to step an ended lane.
    """

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes; none of them is ended."""
        return self.step_running(actions, batch)


class NativeNextStep(Conversion):
    """The endpoint resets an ended lane in the step after, whatever the action."""

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes; the new episodes' ids go down with the step that begins them."""
        endpoint = self.endpoint
        if not any_true(endpoint.ended):
            return (yield from self.step_running(actions, batch))
        beginning = np.flatnonzero(endpoint.ended).tolist()
        ids = endpoint.episode_ids
        for index in beginning:
            ids[index] = mint_episode_id()
        response = yield endpoint.send_step(actions, ids)
        reply = endpoint.read_step(response)
        self.put_step(reply, batch)
        for row in endpoint.advance(reply, beginning=beginning):
            endpoint.record(row, reply, row, reply.info(row))
        endpoint.begin(beginning, episode_ids=[ids[index] for index in beginning])
        return self.rows(reply)


class NativeSameStep(Conversion):
    """The endpoint resets an ended lane within the step."""

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes; the endpoint learns the new ids with the next request."""
        endpoint = self.endpoint
        response = yield endpoint.send_step(actions)
        reply = endpoint.read_step(response)
        self.put_step(reply, batch)
        done = endpoint.advance(reply)
        if done:
            for row in done:
                endpoint.record(row, reply, row, reply.final_info(row))
            endpoint.begin(done)
        return self.rows(reply)
