"""A run's model over the wire: messages go in and out, their rows stay bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym.codec import encode_env_spec, without_unsupported
from rlmesh_gym.errors import ProtocolError
from rlmesh_gym.rpc import ModelSession, Timeouts
from rlmesh_gym.runtime.ends.protocols import ModelNeeds
from rlmesh_gym.runtime.ends.remote_call import RemoteCall
from rlmesh_gym.runtime.ends.remote_env import RemoteRuntimeEnv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym._proto.core.v1 import env_contract_pb2
    from rlmesh_gym.rpc import Pending, TLSConfig
    from rlmesh_gym.runtime.ends.protocols import Episode, HistoryRows, RuntimeEnv
    from rlmesh_gym.runtime.ends.rows import Rows
    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = ["RemoteRuntimeModel"]


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
