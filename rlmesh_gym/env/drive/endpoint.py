"""One endpoint of a vector: its session, its share of the lanes, and what was seen of them last.

It speaks the wire's requests in the vector's terms and keeps the lane table. What to send when, for
which autoreset mode, is decided in :mod:`rlmesh_gym.env.autoreset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec.lane_infos import FINAL_INFO
from rlmesh_gym.env.drive.last_observation import LastObservation
from rlmesh_gym.env.reading.infos import ConformanceLog, hand_over_infos
from rlmesh_gym.env.reading.infos import read_infos as read_wire_infos
from rlmesh_gym.errors import ProtocolError, ResetNeededError, UnavailableError
from rlmesh_gym.lanes import any_true, mint_episode_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym._proto.spaces.v1 import meta_pb2, value_pb2
    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.env.drive.undelivered import Undelivered
    from rlmesh_gym.env.open.sources import AnyEnvSession, Source
    from rlmesh_gym.env.reading.infos import BatchedInfos, LaneInfos
    from rlmesh_gym.episodes import EpisodeLog
    from rlmesh_gym.lanes import LaneTable
    from rlmesh_gym.rpc import AnyPending


@dataclass(slots=True)
class StepReply:
    """One answered step, a row per lane that was asked for.

    Attributes:
        observation: Still encoded.
        rewards: float64 ``(k,)``.
        terminations: bool ``(k,)``.
        truncations: bool ``(k,)``, the client's own limit included.
        own_truncations: bool ``(k,)``, without the client's limit.
        ended: Rows whose episode is over, ascending.
        infos: None when there are none.
    """

    observation: value_pb2.SpaceValue
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    own_truncations: NDArray[np.bool_]
    ended: list[int]
    infos: LaneInfos | BatchedInfos | None

    def ended_remotely(self, row: int) -> bool:
        """Whether the endpoint itself says that the row's episode is over."""
        return bool(self.terminations[row] or self.own_truncations[row])

    def info(self, row: int) -> dict[str, Any]:
        """Return one row's info, fresh; empty when there is none."""
        return {} if self.infos is None else self.infos.row(row)

    def final_info(self, row: int) -> dict[str, Any]:
        """Return the last info of the episode that the endpoint itself ended within this step."""
        info = self.info(row).get(FINAL_INFO)
        return info if isinstance(info, dict) else {}


class Endpoint:
    """One endpoint and the lanes that it serves.

    Args:
        source: Where the session came from, and where the next one does.
        session: Open session; owned by this object.
        start: First lane of the vector that it serves.
        codec: Codec of the single observation space.
        action_codec: Codec of the single action space.
        table: The vector's lane table.
        log: Where episodes that are over go.
        max_episode_steps: Length at which the client truncates; None for no limit.

    Attributes:
        lanes: Its lanes, as the user numbers them.
        rows: The same as a slice.
        last: Last observation of each of them.
        num_steps: Steps that were answered so far.
        is_lost: It must be reset as a whole before anything else.
        is_loss_told: The user has been told so by an error or by the flags of a step.
        over: Lanes, as env_indices, whose episodes had ended by themselves when it was lost.
        undelivered: What came for its lanes and has not been handed out.
        is_shown: The user has seen what the last reset of its lanes gave.
        watch: Called with each answer that came, for those who keep its timings.
    """

    def __init__(
        self,
        source: Source,
        session: AnyEnvSession,
        start: int,
        *,
        codec: SpaceCodec,
        action_codec: SpaceCodec,
        table: LaneTable,
        log: EpisodeLog,
        max_episode_steps: int | None = None,
    ) -> None:
        # In this order: a forgotten endpoint drops its session before the server that it embeds.
        self.session = session
        self.source = source
        self.start = start
        self.num_envs: int = session.contract.num_envs
        self.lanes: range = range(start, start + self.num_envs)
        self.rows: slice = slice(start, start + self.num_envs)
        self.mode: AutoresetMode = session.contract.autoreset_mode
        self.codec = codec
        self.action_codec = action_codec
        self.table = table
        self.log = log
        self.max_episode_steps = max_episode_steps
        self.last: LastObservation = LastObservation(codec, self.num_envs)
        self.is_lost: bool = False
        self.is_loss_told = True
        self.num_steps: int = 0
        self.over: list[int] = []
        self.undelivered: Undelivered | None = None
        self.is_shown: bool = True
        self.watch: Callable[[AnyPending], None] | None = None
        # The slot of one lane is the whole endpoint, so whole requests do for it.
        self.can_reset_lanes: bool = session.has_partial_reset or self.num_envs == 1
        self.can_step_lanes: bool = session.has_lane_operations or self.num_envs == 1
        self._per_lane_infos = session.has_lane_operations and self.mode is AutoresetMode.DISABLED
        self._terminal_codec = codec if self.mode is AutoresetMode.SAME_STEP else None
        self._conformance = ConformanceLog(session.endpoint)
        self.ended: NDArray[np.bool_] = table.ended[self.rows]
        self.lengths: NDArray[np.int64] = table.lengths[self.rows]

    @property
    def address(self) -> str:
        """The address, as messages name it."""
        return self.session.endpoint

    @property
    def episode_ids(self) -> list[str]:
        """Ids of the lanes' episodes."""
        return self.table.episode_ids[self.rows]

    # Steps

    def send_step(self, actions: Leaves, episode_ids: Sequence[str] | None = None) -> AnyPending:
        """Ask for a step of all lanes.

        Args:
            actions: One row per lane.
            episode_ids: Ids to send; the table's where None.
        """
        value = self.session.pack(self.action_codec, actions, self.num_envs)
        ids = self.table.episode_ids[self.rows] if episode_ids is None else episode_ids
        try:
            return self.session.step(value, episode_ids=ids)
        except ResetNeededError as error:
            raise self.gone("step", error) from error

    def send_lane_step(self, indices: Sequence[int], actions: Leaves) -> AnyPending:
        """Ask for a step of some lanes.

        Args:
            indices: Their env_indices.
            actions: Rows of *all* lanes of the endpoint.
        """
        rows = [leaf[indices] for leaf in actions]
        value = self.session.pack(self.action_codec, rows, len(indices))
        ids = [self.table.episode_ids[self.start + index] for index in indices]
        try:
            return self.session.step(value, env_indices=indices, episode_ids=ids)
        except ResetNeededError as error:
            raise self.gone("step", error) from error

    def gone(self, operation: str, error: ResetNeededError) -> UnavailableError:
        """Return the error for a session that ended between two calls, which this one notices."""
        return UnavailableError(str(error), endpoint=self.address, operation=operation)

    def read_step(
        self, response: interaction_pb2.StepResponse, indices: Sequence[int] | None = None
    ) -> StepReply:
        """Read a step's answer.

        Args:
            response: As it came.
            indices: Lanes that were asked for; None for all.

        Raises:
            ProtocolError: Rewards, flags or lanes do not fit the request.
        """
        count = self.num_envs if indices is None else len(indices)
        rewards: Any = response.rewards
        if not isinstance(rewards, np.ndarray):  # Those of an endpoint here are fresh.
            rewards = np.array(rewards[:], dtype=np.float64)  # As a list: that is quicker.
        terminations = _flags(response.terminated_mask)
        truncations = _flags(response.truncated_mask)
        if not len(rewards) == len(terminations) == len(truncations) == count:
            raise ProtocolError(
                f"step: expected {count} rewards and flags, got {len(rewards)} rewards, "
                f"{len(terminations)} terminations, {len(truncations)} truncations",
                endpoint=self.address,
                operation="step",
            )
        if indices is not None and list(response.env_indices) not in ([], list(indices)):
            raise ProtocolError(
                f"step: asked for env_indices {list(indices)}, got {list(response.env_indices)}",
                endpoint=self.address,
                operation="step",
            )
        own = truncations
        if self.max_episode_steps is not None:
            lengths = self.lengths if indices is None else self.lengths[indices]
            truncations = own | (lengths + 1 >= self.max_episode_steps)
        ended: list[int] = []
        if any_true(terminations) or any_true(truncations):
            ended = (terminations | truncations).nonzero()[0].tolist()
        infos = self.read_infos(response.infos, count)
        return StepReply(
            response.observation, rewards, terminations, truncations, own, ended, infos
        )

    def advance(
        self,
        reply: StepReply,
        indices: Sequence[int] | None = None,
        *,
        beginning: Sequence[int] = (),
    ) -> list[int]:
        """Count a step in the table.

        Args:
            reply: What came.
            indices: Lanes that were stepped, ascending; None for all.
            beginning: Rows that the step has reset instead; ``begin`` sets them to zero.

        Returns:
            Rows *of the reply* whose episode is over.
        """
        if indices is None:
            self.table.count(self.rows, reply.rewards)
        else:
            self.table.count([self.start + index for index in indices], reply.rewards)
        self.num_steps += 1
        ended = reply.ended
        if beginning:
            ended = [row for row in ended if row not in beginning]
        if ended:
            self.table.end(self.start + (row if indices is None else indices[row]) for row in ended)
        return ended

    def record(self, index: int, reply: StepReply, row: int, final_info: dict[str, Any]) -> None:
        """Write up the episode of one lane that ended by itself."""
        self._write_up(
            index,
            terminated=bool(reply.terminations[row]),
            truncated=bool(reply.truncations[row]),
            final_info=final_info,
        )

    def cut(self, index: int, final_info: dict[str, Any]) -> None:
        """Write up the running episode of one lane as truncated, though its env would go on."""
        self._write_up(index, truncated=True, final_info=final_info)
        self.table.is_cut[self.start + index] = True

    def interrupt(self, index: int) -> None:
        """Write up the running episode of one lane as interrupted, unless that is done already."""
        if not self.table.is_cut[self.start + index]:
            self._write_up(index, interrupted=True)

    def _write_up(self, index: int, **outcome: Any) -> None:
        env_id = self.session.contract.env_id
        lane = self.start + index
        self.log.append(self.table.record(lane, endpoint=self.address, env_id=env_id, **outcome))

    # Resets

    def new_ids(self, count: int) -> list[str]:
        """Mint ids to send along with the request that begins the episodes."""
        return [mint_episode_id() for _ in range(count)]

    def begin(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None] | None = None,
        episode_ids: Sequence[str] | None = None,
    ) -> None:
        """Begin new episodes; running ones that have steps are recorded as interrupted."""
        for index in indices:
            if not self.ended[index] and self.lengths[index]:
                self.interrupt(index)
        self.table.begin([self.start + index for index in indices], seeds, episode_ids)

    def read_infos(
        self, message: meta_pb2.MetaMap | list[Any] | dict[str, Any] | None, count: int
    ) -> LaneInfos | BatchedInfos | None:
        """Read the infos of ``count`` rows; None when there are none."""
        if message is None or isinstance(message, (dict, list)):
            return hand_over_infos(message, count)
        if not message.entries:
            return None
        return read_wire_infos(
            message,
            count,
            per_lane=self._per_lane_infos,
            conformance=self._conformance,
            observation_codec=self._terminal_codec,
            typed=self.session.has_arrays,
        )

    def shown(self) -> Leaves:
        """Return the observations that the user has been shown last. Do not change."""
        undelivered = self.undelivered
        if undelivered is not None and undelivered.shown is not None:
            return undelivered.shown
        return self.last.rows()

    # Losses

    def lose(self, over: Sequence[int] | None = None) -> list[str]:
        """Mark the endpoint as lost and end its episodes.

        Args:
            over: Lanes whose episodes had ended before the call that it was lost in; None for
                those that have ended by now.

        Returns:
            Ids of the episodes that were cut off.
        """
        self.is_lost = True
        self.over = self.ended.nonzero()[0].tolist() if over is None else list(over)
        running = [index for index in range(self.num_envs) if not self.ended[index]]
        ids = [self.table.episode_ids[self.start + index] for index in running]
        for index in running:
            self.interrupt(index)
        self.table.end(self.lanes)
        return ids

    def close(self, timeout: float | None) -> None:
        """End the session, then what it was served by if that is ours.

        Args:
            timeout: Seconds for an embedded server to close its environments; None waits for ever.
        """
        self.session.close()
        self.source.close(timeout)


_TRUTHS = bytes([0] + [1] * 255)


def _flags(mask: bytes | NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the flags of a message, of which any byte but 0 is true, or of one in this process."""
    if isinstance(mask, np.ndarray):
        return mask
    return np.frombuffer(bytearray(mask.translate(_TRUTHS)), np.bool_)
