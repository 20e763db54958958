"""What every conversion has in common: one endpoint, and the verbs ``step`` and ``reset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from rlmesh_gym.env.drive.resets import check_resettable, is_whole, reset_lanes, reset_whole
from rlmesh_gym.env.reading.infos import BatchedInfos, all_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint, StepReply
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.env.reading.infos import InfoRows, LaneInfos

    LaneSeeds: TypeAlias = Sequence[int | None]
    Options: TypeAlias = Mapping[str, Any] | None


class Conversion:
    """Serves one autoreset mode over an endpoint that may have another one.

    As it stands it serves DISABLED: lanes stay ended until the user resets them. That goes for a
    NEXT_STEP endpoint too: it resets a lane only when stepped past the end, which never happens,
    since the vector refuses to step an ended lane. Rows of ``actions`` are always those of all
    lanes of the endpoint; ``indices`` are env_indices, ascending.
    """

    rolls_by_lanes: ClassVar[bool] = False
    """Whether a step resets the lanes that have ended, and steps the others."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step the endpoint's lanes and write up the episodes that end with it.

        The batch gets observations, rewards and flags; the exchange ends with the infos.
        """
        endpoint = self.endpoint
        reply = self.take((yield endpoint.send_step(actions)), batch)
        for row in endpoint.advance(reply):
            endpoint.record(row, reply, row, reply.info(row))
        return self.rows(reply.infos)

    def reset(
        self, indices: Sequence[int], seeds: LaneSeeds, options: Options, batch: Batch
    ) -> Exchange:
        """Reset some lanes or all, on the user's behalf, with one seed or None for each.

        The batch gets their first observations; other rows stay as they are.
        """
        endpoint = self.endpoint
        if is_whole(endpoint, indices, seeds):
            # Whole resets keep the batched infos as they are.
            return self.rows((yield from reset_whole(endpoint, batch, seeds, options)))
        by_index = yield from reset_lanes(endpoint, indices, batch, seeds, options)
        return sorted(by_index.items())

    def check_reset(self, indices: Sequence[int], seeds: LaneSeeds, options: Options) -> None:  # noqa: ARG002
        """Check, before anything is sent, that ``reset`` can do it; see ``check_resettable``."""
        check_resettable(self.endpoint, indices, seeds)

    def forget(self) -> None:
        """Drop what is held back for later; the endpoint was lost."""

    def step_some(self, indices: Sequence[int], actions: Leaves, batch: Batch) -> Exchange:
        """Step some lanes only, none of which is ended; only their rows of the batch change."""
        response = yield self.endpoint.send_lane_step(indices, actions)
        return sorted(self.finish_some(response, indices, batch).items())

    def finish_some(
        self, response: interaction_pb2.StepResponse, indices: Sequence[int], batch: Batch
    ) -> dict[int, dict[str, Any]]:
        """Take in a step of some lanes, write up what ended; return their infos by env_index."""
        endpoint = self.endpoint
        reply = self.take_some(response, indices, batch)
        for row in endpoint.advance(reply, indices):
            endpoint.record(indices[row], reply, row, reply.info(row))
        return {index: reply.info(row) for row, index in enumerate(indices)}

    def take(self, response: interaction_pb2.StepResponse, batch: Batch) -> StepReply:
        """Read a step of all lanes, write it to the batch and keep its observation."""
        endpoint = self.endpoint
        reply = endpoint.read_step(response)
        batch.put(reply.observation, endpoint.start, endpoint.num_envs)
        endpoint.last.keep(reply.observation)
        batch.put_numbers(endpoint.rows, (reply.rewards, reply.terminations, reply.truncations))
        return reply

    def take_some(
        self, response: interaction_pb2.StepResponse, indices: Sequence[int], batch: Batch
    ) -> StepReply:
        """Read a step of some lanes, write it to the batch and keep their observations."""
        endpoint = self.endpoint
        reply = endpoint.read_step(response, indices)
        lanes = [endpoint.start + index for index in indices]
        rows = endpoint.codec.decode(reply.observation, len(indices))
        batch.put_rows(lanes, rows)
        batch.put_numbers(lanes, (reply.rewards, reply.terminations, reply.truncations))
        endpoint.last.keep_rows(indices, rows)
        return reply

    def rows(self, infos: LaneInfos | BatchedInfos | None) -> InfoRows:
        """Return the infos of all lanes as an exchange ends with them."""
        if infos is None or isinstance(infos, BatchedInfos):
            return infos
        return all_rows(infos, self.endpoint.num_envs)
