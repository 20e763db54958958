"""What every conversion has in common: one endpoint, and the verbs ``step`` and ``reset``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from rlmesh_gym.env.drive.resets import check_resettable, reset_lanes, reset_whole
from rlmesh_gym.env.reading.infos import BatchedInfos

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint, StepReply
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.env.reading.infos import InfoRows
    from rlmesh_gym.rpc import AnyPending

__all__ = ["Conversion", "sent"]

T = TypeVar("T")


class Conversion(ABC):
    """Serves one autoreset mode over an endpoint that may have another one.

    Args:
        endpoint: Its mode and capabilities suit the conversion; see ``choose_conversion``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @abstractmethod
    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step the endpoint's lanes.

        Args:
            actions: One row per lane of the endpoint.
            batch: Gets observations, rewards and flags.

        Returns:
            An exchange that ends with the infos.
        """

    def reset(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None],
        options: Mapping[str, Any] | None,
        batch: Batch,
    ) -> Exchange:
        """Reset some lanes or all, on the user's behalf.

        Args:
            indices: Their env_indices, ascending.
            seeds: One per lane of ``indices``.
            options: For the environments.
            batch: Gets the first observations; other rows stay as they are.
        """
        endpoint = self.endpoint
        given = [seed for seed in seeds if seed is not None]
        if len(indices) == endpoint.num_envs and len(given) in (0, len(seeds)):
            # Whole resets keep the batched infos as they are.
            infos = yield from reset_whole(endpoint, batch, given, options)
            if isinstance(infos, BatchedInfos):
                return infos
            return None if infos is None else [(i, infos.row(i)) for i in indices]
        by_index = yield from reset_lanes(endpoint, indices, batch, seeds, options)
        return sorted(by_index.items())

    def check_reset(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None],
        options: Mapping[str, Any] | None,  # noqa: ARG002 - a conversion may look at them
    ) -> None:
        """Check, before anything is sent, that ``reset`` can do it.

        Raises:
            ConfigurationError: The endpoint lacks what it takes.
            ResetNeededError: It must be reset as a whole first.
        """
        check_resettable(self.endpoint, indices, seeds)

    def forget(self) -> None:  # noqa: B027 - most hold nothing
        """Drop what is held back for later; the endpoint was lost."""

    def step_running(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes, none of which is ended, and write up the episodes that end with it."""
        endpoint = self.endpoint
        response = yield endpoint.send_step(actions)
        reply = endpoint.read_step(response)
        self.put_step(reply, batch)
        for row in endpoint.advance(reply):
            endpoint.record(row, reply, row, reply.info(row))
        return self.rows(reply)

    def step_some(self, indices: Sequence[int], actions: Leaves, batch: Batch) -> Exchange:
        """Step some lanes only, none of which is ended; see :meth:`step_running`.

        Args:
            indices: Their env_indices, ascending.
            actions: One row per lane of the endpoint.
            batch: Only the rows of these lanes are written.
        """
        response = yield self.endpoint.send_lane_step(indices, actions)
        infos = self.take_some(response, indices, batch)
        return sorted(infos.items())

    def take_some(
        self, response: interaction_pb2.StepResponse, indices: Sequence[int], batch: Batch
    ) -> dict[int, dict[str, Any]]:
        """Take in a step of some lanes; return their infos by env_index."""
        endpoint = self.endpoint
        reply = endpoint.read_step(response, indices)
        self.put_lane_step(indices, reply, batch)
        for row in endpoint.advance(reply, indices):
            endpoint.record(indices[row], reply, row, reply.info(row))
        return {index: reply.info(row) for row, index in enumerate(indices)}

    def put_step(self, reply: StepReply, batch: Batch) -> None:
        """Write a whole step to the batch and keep its observation."""
        endpoint = self.endpoint
        rows = endpoint.rows
        batch.put(reply.observation, endpoint.start, endpoint.num_envs)
        endpoint.last.keep(reply.observation)
        if endpoint.num_envs == batch.num_envs:
            batch.rewards = reply.rewards
            batch.terminations = reply.terminations
            batch.truncations = reply.truncations
            return
        batch.rewards[rows] = reply.rewards
        batch.terminations[rows] = reply.terminations
        batch.truncations[rows] = reply.truncations

    def put_lane_step(self, indices: Sequence[int], reply: StepReply, batch: Batch) -> None:
        """Write a step of some lanes to the batch and keep their observations."""
        endpoint = self.endpoint
        lanes = [endpoint.start + index for index in indices]
        rows = endpoint.codec.decode(reply.observation, len(indices))
        batch.put_rows(lanes, rows)
        batch.rewards[lanes] = reply.rewards
        batch.terminations[lanes] = reply.terminations
        batch.truncations[lanes] = reply.truncations
        endpoint.last.keep_rows(indices, rows)

    def rows(self, reply: StepReply) -> InfoRows:
        """Return a whole step's infos."""
        infos = reply.infos
        if infos is None or isinstance(infos, BatchedInfos):
            return infos
        return [(index, infos.row(index)) for index in range(self.endpoint.num_envs)]


def sent(exchange: Generator[AnyPending, Any, T]) -> Generator[AnyPending, Any, T]:
    """Send the first request of an exchange now and return the rest of it."""
    return _rest(exchange, next(exchange))


def _rest(
    exchange: Generator[AnyPending, Any, T], pending: AnyPending
) -> Generator[AnyPending, Any, T]:
    while True:
        failure: Exception | None = None
        message = None
        try:
            message = yield pending
        except Exception as error:
            failure = error  # The exchange decides what becomes of it.
        try:
            pending = exchange.send(message) if failure is None else exchange.throw(failure)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
