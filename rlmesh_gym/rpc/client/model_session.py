"""A client's session with one model endpoint."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rlmesh_gym._proto.model.v1 import interaction_pb2, service_pb2
from rlmesh_gym.codec import EnvSpec, encode_env_spec, plain_spec
from rlmesh_gym.errors import ModelError
from rlmesh_gym.rpc.client.connection import Connection, Service
from rlmesh_gym.rpc.client.pending import JoinMethod, Pending
from rlmesh_gym.rpc.client.session import Session
from rlmesh_gym.rpc.handshake import CONCURRENT_PREDICT, EDITION, OBSERVATION_HISTORY, SPACES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlmesh_gym._proto.core.v1 import env_contract_pb2
    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.rpc.client.stream import JoinStream
    from rlmesh_gym.rpc.config import TimeoutsLike, TLSLike

__all__ = ["HistoryRows", "ModelSession", "model_error"]

_CODE_PREFIX = "MODEL_ERROR_CODE_"


def model_error(
    error: interaction_pb2.ModelError,
    *,
    endpoint: str,
    operation: str,
    env_id: str = "",
    episode_ids: Iterable[str] = (),
) -> ModelError:
    """Return the error for one that a model endpoint answered with, alone or within a group."""
    try:
        code = interaction_pb2.ModelErrorCode.Name(error.code).removeprefix(_CODE_PREFIX)
    except ValueError:  # A code of a later edition.
        code = f"UNKNOWN_{error.code}"
    return ModelError(
        f"{operation}: the model answered {code}: {error.message}",
        endpoint=endpoint,
        operation=operation,
        code=code,
        is_recoverable=error.is_recoverable,
        debug_info=error.debug_info,
        env_id=env_id,
        episode_ids=list(episode_ids),
    )


class HistoryRows(NamedTuple):
    """Observations of one replayed step, for the episodes that replayed it.

    Attributes:
        step: Number of the step.
        observation: One row per episode, as the session packs it.
        episodes: Id and seed of each row's episode.
    """

    step: int
    observation: Any
    episodes: Sequence[tuple[str, int | None]]


class RequestContext(NamedTuple):
    """What a session notes on the ``context`` of its pendings.

    Attributes:
        env_id: Key of the adapter.
        episode_ids: Episodes of the rows, or those that are over.
        request_id: As in the request's context, for an answer that must mirror it; empty for a
            group, whose members have one each.
    """

    env_id: str
    episode_ids: Sequence[str]
    request_id: str


def _in_band_error(error: interaction_pb2.ModelError, pending: Pending[Any]) -> ModelError:
    context: RequestContext = pending.context
    return model_error(
        error,
        endpoint=pending.endpoint,
        operation=pending.operation,
        env_id=context.env_id,
        episode_ids=context.episode_ids,
    )


_SERVICE = Service(
    kind="model",
    package="rlmesh.model.v1.ModelService",
    other_package="rlmesh.env.v1.EnvService",
    messages=service_pb2,
    join=JoinMethod(
        path="/rlmesh.model.v1.ModelService/Join",
        kind="model",
        parse=interaction_pb2.JoinResponse.FromString,
        error=_in_band_error,
    ),
)


class ModelSession(Session):
    """A session with one model endpoint; made by :meth:`open`.

    The Join stream is opened with the first request, and again by the first request after it has
    ended. Adapters live on the server, so they outlive a stream, but not a server. Requests return
    at once with a :class:`~rlmesh_gym.rpc.Pending`; they may be made from several threads.

    Attributes:
        endpoint: The address, for messages.
        session_id: Names this session in every request's context.
        capabilities: What the endpoint says that it can.
        peer: What the endpoint says about itself.
        timeouts: For the session's user to wait by.
    """

    component = "model-client"
    client_capabilities: ClassVar[tuple[str, ...]] = (
        OBSERVATION_HISTORY,
        CONCURRENT_PREDICT,
        SPACES,
    )

    session_id: str

    def __init__(self, connection: Connection, response: service_pb2.HandshakeResponse) -> None:
        super().__init__(connection, response.base)
        self.session_id = f"rlmesh-gym-{uuid.uuid4()}"

    @classmethod
    def open(
        cls,
        address: str,
        *,
        token: str | None = None,
        tls: TLSLike = None,
        timeouts: TimeoutsLike = None,
    ) -> ModelSession:
        """Connect to ``address`` and shake hands. Blocks up to ``timeouts.connect``.

        Args:
            address: See :func:`~rlmesh_gym.rpc.address.parse_address`.
            token: What the server asks for, else ``RLMESH_GYM_TOKEN``.
            tls: See :meth:`~rlmesh_gym.rpc.config.TLSConfig.from_value`.
            timeouts: See :meth:`~rlmesh_gym.rpc.config.Timeouts.from_value`.

        Raises:
            ConfigurationError: An address or option that cannot work; nothing was opened.
            UnavailableError: Nothing listens there, or no gRPC server does.
            DeadlineError: No answer in time.
            AuthenticationError: The token was refused.
            ProtocolError: An env endpoint, or another protocol.
        """
        connection = Connection(_SERVICE, address, token=token, tls=tls, timeouts=timeouts)
        try:
            return cls(connection, connection.handshake(cls.component, cls.client_capabilities))
        except BaseException:
            connection.abandon()
            raise

    @property
    def is_streaming(self) -> bool:
        """Whether the Join stream is open; if not, the next request may reach another server."""
        stream = self._connection.stream
        return stream is not None and stream.is_open

    @property
    def batches_lanes(self) -> bool:
        """Whether several rows in one request are answered as each of them alone would be.

        The released package gives a model without a spec the bare rows of a request of one and a
        batch otherwise, and no chunks then.
        """
        return self.peer.extra.get("package", "") == "rlmesh-gym"

    @property
    def takes_history(self) -> bool:
        """Whether the endpoint takes the observations of replayed steps."""
        return self.capabilities.get(OBSERVATION_HISTORY) == "true"

    @property
    def takes_concurrent_predicts(self) -> bool:
        """Whether the endpoint takes further requests while one is in work."""
        return self.capabilities.get(CONCURRENT_PREDICT) == "true"

    def resolve_adapter(
        self,
        env_id: str,
        env_spec: EnvSpec | env_contract_pb2.EnvSpec,
        *,
        execution_horizon: int = 1,
        delivers_history: bool = False,
    ) -> Pending[interaction_pb2.ResolveAdapterResponse]:
        """Ask the model to set itself up for an environment.

        Args:
            env_id: Key of the adapter in later requests; any text, unique per client.
            env_spec: Spaces and metadata of the environment.
            execution_horizon: Most action frames that one predict may return.
            delivers_history: Later requests bring the observations of replayed steps.
        """
        request = interaction_pb2.JoinRequest()
        resolve = request.resolve_adapter
        self._fill_context(resolve.context, env_id)
        if isinstance(env_spec, EnvSpec):
            env_spec = encode_env_spec(
                env_spec.env_id,
                env_spec.single_observation_space,
                env_spec.single_action_space,
                env_spec.metadata,
            )
        resolve.env_spec.CopyFrom(env_spec)
        if self.capabilities.get(SPACES) != "true":
            plain_spec(resolve.env_spec)
        resolve.selected_workflow_edition = EDITION
        resolve.execution_horizon = execution_horizon
        resolve.delivers_history = delivers_history
        return self._send(request, "resolve_adapter", env_id)

    def predict(
        self,
        env_id: str,
        observation: SpaceValue,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[HistoryRows | interaction_pb2.ObservationHistoryFrame] = (),
        step: int | None = None,
    ) -> Pending[interaction_pb2.PredictResponse]:
        """Ask for actions.

        Args:
            env_id: Key given to :meth:`resolve_adapter`.
            observation: One row per entry of ``episodes``.
            episodes: Episode id and seed of each row; ids are unique.
            history: Observations of the steps since the last request, oldest first.
            step: Number of the environment's step, where history was agreed on.
        """
        request = interaction_pb2.JoinRequest()
        self.fill_predict(
            request.predict, env_id, observation, episodes, history=history, step=step
        )
        return self._send(request, "predict", env_id, [episode for episode, _ in episodes])

    def grouped_predict(
        self, requests: Sequence[interaction_pb2.PredictRequest]
    ) -> Pending[interaction_pb2.GroupedPredictResponse]:
        """Ask for actions for several environments in one message.

        Args:
            requests: Made by :meth:`fill_predict`; a context without ids is filled in.
        """
        request = interaction_pb2.JoinRequest()
        request.grouped_predict.groups.extend(requests)
        request.grouped_predict.SetInParent()
        for group in request.grouped_predict.groups:
            if not group.context.request_id:
                self._fill_context(group.context, group.context.env_id)
        return self._send(request, "grouped_predict", "")

    def fill_predict(
        self,
        request: interaction_pb2.PredictRequest,
        env_id: str,
        observation: SpaceValue,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[HistoryRows | interaction_pb2.ObservationHistoryFrame] = (),
        step: int | None = None,
    ) -> None:
        """Fill in a PredictRequest in place; the arguments are those of :meth:`predict`."""
        self._fill_context(request.context, env_id)
        request.observation.CopyFrom(observation)
        for episode_id, seed in episodes:
            request.episode_info.add(episode_id=episode_id, seed=seed)
        for rows in history:
            if isinstance(rows, interaction_pb2.ObservationHistoryFrame):
                request.history.append(rows)
                continue
            frame = request.history.add(step=rows.step)
            frame.observation.CopyFrom(rows.observation)
            for episode_id, seed in rows.episodes:
                frame.episode_info.add(episode_id=episode_id, seed=seed)
        if step is not None:
            request.step = step

    def reset_adapter(
        self, env_id: str, episode_ids: Sequence[str] = ()
    ) -> Pending[interaction_pb2.ResetAdapterResponse]:
        """Tell the model that episodes are over; no ids means all of this environment's."""
        request = self._reset_request(env_id, episode_ids)
        return self._send(request, "reset_adapter", env_id, episode_ids)

    def release_adapter(
        self, env_id: str, reason: str = ""
    ) -> Pending[interaction_pb2.ReleaseAdapterResponse]:
        """Tell the model that the environment is gone."""
        return self._send(self._release_request(env_id, reason), "release_adapter", env_id)

    def hang_up(self) -> None:
        """Drop the stream with all that is in flight; the next request opens a new one."""
        stream = self._connection.stream
        if stream is not None:
            stream.cancel()

    def close(self, reason: str = "", *, env_id: str = "", episode_ids: Sequence[str] = ()) -> None:
        """End the session, within ``timeouts.close``; never raises, and may be called again.

        It ends the stream and sends no CloseParticipant: the released server would take that as a
        reason to drop every client's adapters.

        Args:
            reason: Goes out with the release of an adapter; no other message could carry it.
            env_id: Key of an adapter to release first; none if omitted.
            episode_ids: Episodes of it that are over.
        """

        def farewell(stream: JoinStream, limit: float | None) -> Pending[Any] | None:
            if not env_id:
                return None
            if episode_ids:
                request = self._reset_request(env_id, episode_ids)
                self._put(stream, request, "reset_adapter", env_id, episode_ids, timeout=limit)
            request = self._release_request(env_id, reason)
            return self._put(stream, request, "release_adapter", env_id, timeout=limit)

        self._connection.close(farewell, waits_for_work=True)
        self._finalizer.detach()

    def _reset_request(
        self, env_id: str, episode_ids: Sequence[str]
    ) -> interaction_pb2.JoinRequest:
        request = interaction_pb2.JoinRequest()
        self._fill_context(request.reset_adapter.context, env_id)
        request.reset_adapter.episode_ids.extend(episode_ids)
        return request

    def _release_request(self, env_id: str, reason: str) -> interaction_pb2.JoinRequest:
        request = interaction_pb2.JoinRequest()
        self._fill_context(request.release_adapter.context, env_id)
        request.release_adapter.reason = reason
        return request

    def _fill_context(self, context: interaction_pb2.AdapterContext, env_id: str) -> None:
        context.session_id = self.session_id
        context.env_id = env_id
        context.request_id = self._connection.next_request_id()

    def _send(
        self,
        request: interaction_pb2.JoinRequest,
        kind: str,
        env_id: str,
        episode_ids: Sequence[str] = (),
    ) -> Pending[Any]:
        connection = self._connection
        connection.check(kind)
        self._check_interruption()
        stream = connection.stream
        if stream is None or not stream.is_open:
            stream = self._open_stream()
        timeout = self.timeouts.predict
        return self._sent(self._put(stream, request, kind, env_id, episode_ids, timeout=timeout))

    @staticmethod
    def _put(
        stream: JoinStream,
        request: interaction_pb2.JoinRequest,
        kind: str,
        env_id: str,
        episode_ids: Sequence[str] = (),
        *,
        timeout: float | None,
    ) -> Pending[Any]:
        context = RequestContext(env_id, episode_ids, _request_id(request, kind))
        return stream.send(request, kind, context=context, timeout=timeout)

    def _open_stream(self) -> JoinStream:
        connection = self._connection
        with connection.lock:
            stream = connection.stream
            if stream is not None and stream.is_open:  # Another thread has opened it meanwhile.
                return stream
            return connection.open_stream()


def _request_id(request: interaction_pb2.JoinRequest, kind: str) -> str:
    if kind == "grouped_predict":
        return ""
    request_id: str = getattr(request, kind).context.request_id
    return request_id
