"""SAME_STEP over an endpoint that has that mode, or whose lanes the client resets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.autoreset.conversion import Conversion
from rlmesh_gym.env.drive.resets import reset_lanes

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.exchange import Exchange

__all__ = ["SameStep"]


class SameStep(Conversion):
    """Lanes that the endpoint does not reset within the step are reset right after it.

    Works over every mode: on a NEXT_STEP endpoint the reset cancels the pending one, on a SAME_STEP
    endpoint only lanes that the client truncates need it.
    """

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes, then reset the ended ones."""
        endpoint = self.endpoint
        reply = self.take((yield endpoint.send_step(actions)), batch)
        done = endpoint.advance(reply)
        if not done:
            return self.rows(reply)
        remotely = endpoint.mode is AutoresetMode.SAME_STEP
        reset_already = [row for row in done if remotely and reply.ended_remotely(row)]
        to_reset = [row for row in done if row not in reset_already]
        final: dict[int, dict[str, Any]] = {}
        for row in to_reset:
            # Copies: the reset below overwrites the rows.
            observation = batch.sample(endpoint.start + row)
            final[row] = {"final_obs": observation, "final_info": reply.info(row)}
            endpoint.record(row, reply, row, reply.info(row))
        for row in reset_already:
            endpoint.record(row, reply, row, reply.final_info(row))
        endpoint.begin(reset_already)  # It learns the new ids with the next request.
        if not to_reset:
            return self.rows(reply)
        infos = yield from reset_lanes(endpoint, to_reset, batch)
        rows: list[tuple[int, dict[str, Any]]] = []
        for index in range(endpoint.num_envs):
            if index in final:
                rows.append((index, final[index]))
                rows.append((index, infos.get(index, {})))
            else:
                rows.append((index, reply.info(index)))
        return rows
