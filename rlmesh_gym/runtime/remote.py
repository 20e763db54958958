"""A run's ends over the wire. Messages go in and out; observations and actions stay bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from PIL import Image

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym.codec import decode_meta_map, encode_env_spec
from rlmesh_gym.errors import CodecError, DeadlineError, ProtocolError
from rlmesh_gym.rpc import EnvSession, ModelSession, Timeouts
from rlmesh_gym.runtime.final_infos import final_info_of
from rlmesh_gym.runtime.protocols import ModelNeeds, ResetReply, StepReply
from rlmesh_gym.runtime.rows import RowFormat, Rows
from rlmesh_gym.runtime.telemetry import CallTiming
from rlmesh_gym.server.contract_metadata import without_unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.core.v1 import env_contract_pb2
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc import Pending, TLSConfig
    from rlmesh_gym.runtime.protocols import Episode, HistoryRows, RuntimeEnv
    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = ["RemoteCall", "RemoteRuntimeEnv", "RemoteRuntimeModel"]

T = TypeVar("T")

# Which of the run's limits a deadline comes from, by the name that the session knows.
_LIMIT_NAMES = {
    "reset": "env_reset_timeout",
    "step": "env_step_timeout",
    "predict": "model_predict_timeout",
    "resolve_adapter": "model_resolve_timeout",
}


class RemoteCall(Generic[T]):
    """A request on its way, and what to make of its answer.

    Args:
        pending: The session's handle.
        read: Turns the message into the result; runs in ``result``.
    """

    __slots__ = ("_pending", "_read")

    def __init__(self, pending: Pending[Any], read: Callable[[Any], T]) -> None:
        self._pending = pending
        self._read = read

    def result(self, timeout: float | None) -> T:
        """Wait for the answer and read it."""
        pending = self._pending
        try:
            message = pending.result(timeout)
        except DeadlineError as error:
            limit = _LIMIT_NAMES.get(pending.operation)
            if limit is None or timeout is None:
                raise
            raise DeadlineError(
                f"{pending.operation}: no answer within {timeout:g} s; the endpoint may still be "
                f"at work, raise limits.{limit} for slow ones",
                endpoint=pending.endpoint,
                operation=pending.operation,
            ) from error
        try:
            return self._read(message)
        except CodecError as error:
            raise ProtocolError(
                f"{pending.operation}: the answer does not fit the endpoint's contract: {error}",
                endpoint=pending.endpoint,
                operation=pending.operation,
            ) from error

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._pending.done()

    def abandon(self, error: Error) -> bool:
        """Wake whoever waits, with ``error``."""
        return self._pending.abandon(error)

    @property
    def timing(self) -> CallTiming:
        """The endpoint's own timings beside what was measured here."""
        pending = self._pending
        response = pending.response
        if response is None:
            return CallTiming(pending.elapsed_ns, request_bytes=pending.request_bytes)
        is_env = isinstance(response, env_pb2.JoinResponse)
        # Nothing takes no time at all: a zero is a field that was not sent.
        return CallTiming(
            pending.elapsed_ns,
            response.endpoint_total_ns or None,
            response.queue_ns or None,
            response.decode_ns or None,
            response.user_ns or None,
            response.encode_ns or None,
            (response.lane_skew_ns or None) if is_env else None,
            None if is_env else (response.adapter_ns or None),
            pending.request_bytes,
            pending.response_bytes,
        )


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

        def final_info(row: int, episode_id: str) -> dict[str, Any]:
            return _final_info(message, lanes[row], row, num_rows, episode_id)

        return StepReply(
            observations=self._observation_format.from_value(message.observation, num_rows),
            rewards=np.array(message.rewards, np.float64),
            terminations=np.frombuffer(masks[0], np.uint8) != 0,
            truncations=np.frombuffer(masks[1], np.uint8) != 0,
            final_info=final_info,
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


def _read_frame(message: env_pb2.RenderResponse) -> NDArray[np.uint8] | None:
    if not message.frame:
        return None
    with Image.open(io.BytesIO(message.frame)) as image:
        return np.asarray(image.convert("RGB"))


def _final_info(
    message: env_pb2.StepResponse, lane: int, row: int, num_rows: int, episode_id: str
) -> dict[str, Any]:
    for record in message.completed_episodes:
        # An interrupted episode is reported late, under its old id, and must not be taken for this.
        if record.env_index == lane and record.episode_id == episode_id:
            if record.HasField("final_info"):
                return final_info_of(decode_meta_map(record.final_info), 0, 0)
            break
    return final_info_of(decode_meta_map(message.infos), row, num_rows)


class RemoteRuntimeModel:
    """A model endpoint at an address, or one that a session is already open to.

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
        session: ModelSession | None = None,
        token: str | None = None,
        tls: bool | Mapping[str, Any] | TLSConfig | None = None,
    ) -> None:
        self.endpoint = address if session is None else session.endpoint
        self._session = session
        self._is_owner = session is None
        self._token = token
        self._tls = tls
        self._route = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def session(self) -> ModelSession:
        """The session; valid once connected."""
        if self._session is None:
            raise ProtocolError("not connected", endpoint=self.endpoint, operation="connect")
        return self._session

    @property
    def batches_lanes(self) -> bool:
        """Whether the endpoint is one of this package's.

        The released package gives a model without a spec the bare rows of a request of one and a
        batch otherwise, and no chunks then.
        """
        return self.session.peer.extra.get("package", "") == "rlmesh-gym"

    def connect(self, limits: RuntimeLimits) -> None:
        """Open a session, unless one was given."""
        if self._session is None:
            timeouts = Timeouts(
                predict=limits.model_predict_timeout,
                resolve=limits.model_resolve_timeout,
                close=limits.close_timeout,
            )
            self._session = ModelSession.open(
                self.endpoint, token=self._token, tls=self._tls, timeouts=timeouts
            )
            self.endpoint = self._session.endpoint

    def resolve(
        self, env: RuntimeEnv, route: str, session_id: str, execution_horizon: int
    ) -> RemoteCall[ModelNeeds]:
        """Ask the model to set the environment up."""
        session = self.session
        self._route = route
        if self._is_owner:
            # Unique, since a server may drop all adapters of a session together.
            session.session_id = f"{session_id}/{route}"
        self._action_format = env.action_format
        pending = session.resolve_adapter(
            route,
            _spec_message(env),
            execution_horizon=execution_horizon,
            delivers_history=session.takes_history,
        )
        return RemoteCall(pending, _read_needs)

    def predict(
        self,
        observations: Rows,
        episodes: Sequence[Episode],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> RemoteCall[list[Rows]]:
        """Send the rows that need a plan."""
        pending = self.session.predict(
            self._route,
            observations.value(),
            episodes,
            history=[_history_frame(rows) for rows in history],
            step=step,
        )
        num_rows = len(episodes)

        def read(message: model_pb2.PredictResponse) -> list[Rows]:
            self._check(message, pending)
            return [self._action_format.from_value(frame, num_rows) for frame in message.actions]

        return RemoteCall(pending, read)

    def _check(self, message: model_pb2.PredictResponse, pending: Pending[Any]) -> None:
        sent = (self.session.session_id, self._route, pending.context.request_id)
        context = message.context
        came = (context.session_id, context.env_id, context.request_id)
        if sent != came:
            raise ProtocolError(
                "predict: the answer is for another request: expected (session, env, request) "
                f"{sent}, got {came}; the model must mirror the request's context",
                endpoint=self.endpoint,
                operation="predict",
            )
        if not message.actions:
            raise ProtocolError(
                "predict: the answer holds no action frame; the model must return at least one",
                endpoint=self.endpoint,
                operation="predict",
            )

    def forget(self, episode_ids: Sequence[str]) -> RemoteCall[object]:
        """Send the ids of episodes that are over."""
        return RemoteCall(self.session.reset_adapter(self._route, episode_ids), _read_nothing)

    def release(self, reason: str) -> RemoteCall[object]:
        """Let the model drop the environment."""
        return RemoteCall(self.session.release_adapter(self._route, reason), _read_nothing)

    def close(self, timeout: float) -> None:
        """Close the session if it was opened here; bounded by the session's own close timeout."""
        del timeout  # It went into the session's timeouts when that was opened.
        if self._is_owner and self._session is not None:
            self._session.close("the run is over")
            self._session = None


def _spec_message(env: RuntimeEnv) -> env_contract_pb2.EnvSpec:
    if isinstance(env, RemoteRuntimeEnv):
        return env.session.contract_message.spec
    contract = without_unsupported(env.contract)
    return encode_env_spec(
        contract.env_id,
        contract.single_observation_space,
        contract.single_action_space,
        contract.metadata,
    )


def _read_needs(message: model_pb2.ResolveAdapterResponse) -> ModelNeeds:
    return ModelNeeds(
        native_chunk=message.native_chunk if message.HasField("native_chunk") else None,
        wants_history=message.HasField("history"),
    )


def _read_nothing(message: object) -> object:
    return message


def _history_frame(rows: HistoryRows) -> model_pb2.ObservationHistoryFrame:
    return model_pb2.ObservationHistoryFrame(
        observation=rows.observations.value(),
        episode_info=[
            model_pb2.EpisodeInfo(episode_id=episode_id, seed=seed)
            for episode_id, seed in rows.episodes
        ],
        step=rows.step,
    )
