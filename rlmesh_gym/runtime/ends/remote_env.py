"""A run's environment over the wire: messages go in and out, their rows stay bytes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import decode_meta_map, decode_png, final_info
from rlmesh_gym.codec.lane_infos import without_notes
from rlmesh_gym.errors import ProtocolError, RemoteError, ResetNeededError
from rlmesh_gym.rpc import EnvSession, Timeouts
from rlmesh_gym.runtime.ends.protocols import ResetReply, StepReply
from rlmesh_gym.runtime.ends.remote_call import RemoteCall
from rlmesh_gym.runtime.ends.rows import RowFormat, Rows
from rlmesh_gym.runtime.report.records import jsonable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc import TLSConfig
    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = ["RemoteRuntimeEnv"]


class RemoteRuntimeEnv:
    """An env endpoint at an address, or one that a session is already open to.

    Args:
        address: Where it is. With a ``session``, ignored.
        session: An open session. It stays open when the run is over.
        token: What the endpoint asks for, else ``RLMESH_GYM_TOKEN``.
        tls: How to encrypt.
    """

    def __init__(
        self,
        address: str = "",
        *,
        session: EnvSession | None = None,
        token: str | None = None,
        tls: bool | Mapping[str, Any] | TLSConfig | None = None,
    ) -> None:
        self.endpoint = address if session is None else session.endpoint
        self._session = session
        self._is_owner = session is None
        self._token = token
        self._tls = tls

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def session(self) -> EnvSession:
        """The session; valid once connected."""
        if self._session is None:
            raise ProtocolError("not connected", endpoint=self.endpoint, operation="connect")
        return self._session

    @property
    def contract(self) -> EnvContract:
        """Spaces, lanes, autoreset mode."""
        return self.session.contract

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What the endpoint announced."""
        return self.session.capabilities

    @property
    def has_lane_operations(self) -> bool:
        """Whether steps and resets may name lanes."""
        return self.session.has_lane_operations

    @property
    def has_partial_reset(self) -> bool:
        """Whether resets may name lanes."""
        return self.session.has_partial_reset

    @property
    def action_format(self) -> RowFormat:
        """Format of the actions it takes."""
        return self._action_format

    @property
    def observation_format(self) -> RowFormat:
        """Format of the observations it gives."""
        return self._observation_format

    def connect(self, limits: RuntimeLimits) -> None:
        """Open a session, unless one was given, and compile the formats."""
        if self._session is None:
            timeouts = Timeouts(
                reset=limits.env_reset_timeout,
                step=limits.env_step_timeout,
                close=limits.close_timeout,
            )
            self._session = EnvSession.open(
                self.endpoint, token=self._token, tls=self._tls, timeouts=timeouts
            )
            self.endpoint = self._session.endpoint
        contract = self._session.contract
        self._action_format = RowFormat(contract.single_action_space)
        self._observation_format = RowFormat(contract.single_observation_space)

    def reset(
        self,
        *,
        lanes: Sequence[int] | None,
        seeds: Sequence[int] | None,
        episode_ids: Sequence[str],
        options: Mapping[str, Any] | None,
    ) -> RemoteCall[ResetReply]:
        """Send a reset."""
        with _as_lost():
            pending = self.session.reset(
                seeds=seeds or (), options=options, env_indices=lanes or (), episode_ids=episode_ids
            )
        num_rows = len(episode_ids)

        def read(message: env_pb2.ResetResponse) -> ResetReply:
            return ResetReply(self._observation_format.from_value(message.observation, num_rows))

        return RemoteCall(pending, read)

    def step(
        self, actions: Rows, *, lanes: Sequence[int] | None, episode_ids: Sequence[str]
    ) -> RemoteCall[StepReply]:
        """Send a step; it is sent once and never again."""
        with _as_lost():
            pending = self.session.step(
                actions.value(), env_indices=lanes or (), episode_ids=episode_ids
            )
        asked = range(len(episode_ids)) if lanes is None else lanes

        def read(message: env_pb2.StepResponse) -> StepReply:
            return self._read_step(message, asked)

        return RemoteCall(pending, read)

    def _read_step(self, message: env_pb2.StepResponse, lanes: Sequence[int]) -> StepReply:
        num_rows = len(lanes)
        masks = message.terminated_mask, message.truncated_mask
        widths = (len(message.rewards), len(masks[0]), len(masks[1]))
        if widths != (num_rows,) * 3:
            raise ProtocolError(
                f"step: {num_rows} lanes were stepped, the answer has {widths[0]} rewards, and "
                f"flags of {widths[1]} and {widths[2]} lanes",
                endpoint=self.endpoint,
                operation="step",
            )
        if message.env_indices and list(message.env_indices) != list(lanes):
            raise ProtocolError(
                f"step: lanes {list(lanes)} were stepped, the answer is for "
                f"{list(message.env_indices)}",
                endpoint=self.endpoint,
                operation="step",
            )

        typed = self.session.has_arrays

        def last_info(row: int, episode_id: str) -> dict[str, Any]:
            return _final_info(message, lanes[row], row, num_rows, episode_id, typed=typed)

        return StepReply(
            observations=self._observation_format.from_value(message.observation, num_rows),
            rewards=np.array(message.rewards, np.float64),
            terminations=np.frombuffer(masks[0], np.uint8) != 0,
            truncations=np.frombuffer(masks[1], np.uint8) != 0,
            final_info=last_info,
        )

    def render(self, lane: int) -> RemoteCall[NDArray[np.uint8] | None]:
        """Ask for one lane's frame."""
        return RemoteCall(self.session.render([lane]), _read_frame)

    def close(self, timeout: float) -> None:
        """Close the session if it was opened here; bounded by the session's own close timeout."""
        del timeout  # It went into the session's timeouts when that was opened.
        if self._is_owner and self._session is not None:
            self._session.close("the run is over")
            self._session = None


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    """Raise what ended the session where a request comes too late for it.

    A run does not go on in a new session, so advice to reset would be none.
    """
    try:
        yield
    except ResetNeededError as error:
        if isinstance(error.__cause__, RemoteError):
            raise error.__cause__ from None
        raise


def _read_frame(message: env_pb2.RenderResponse) -> NDArray[np.uint8] | None:
    return decode_png(message.frame) if message.frame else None


def _final_info(
    message: env_pb2.StepResponse,
    lane: int,
    row: int,
    num_rows: int,
    episode_id: str,
    *,
    typed: bool,
) -> dict[str, Any]:
    info: dict[str, Any] | None = None
    for record in message.completed_episodes:
        # An interrupted episode is reported late, under its old id, and must not be taken for this.
        if record.env_index == lane and record.episode_id == episode_id:
            if record.HasField("final_info"):
                info = without_notes(decode_meta_map(record.final_info, typed=typed))
            break
    if info is None:
        info = final_info(decode_meta_map(message.infos, typed=typed), row, num_rows)
    plain: dict[str, Any] = jsonable(info)
    return plain
