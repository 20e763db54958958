"""A client's session with one model endpoint."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rlmesh_gym._proto.model.v1 import interaction_pb2, service_pb2
from rlmesh_gym.codec import EnvSpec, encode_env_spec, plain_spec
from rlmesh_gym.rpc.client.connection import Connection
from rlmesh_gym.rpc.client.session import Session
from rlmesh_gym.rpc.handshake import CONCURRENT_PREDICT, EDITION, OBSERVATION_HISTORY, SPACES
from rlmesh_gym.rpc.large_answers import LARGE_BYTES, LargeRequest, RawValue
from rlmesh_gym.rpc.services import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym._proto.core.v1 import env_contract_pb2
    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.rpc.client.pending import Pending
    from rlmesh_gym.rpc.client.stream import JoinStream
    from rlmesh_gym.rpc.config import TimeoutsLike, TLSLike


class HistoryRows(NamedTuple):
    """Observations of one replayed step, for the episodes that replayed it."""

    step: int
    observation: Any  # As the session packs it.
    episodes: Sequence[tuple[str, int | None]]  # Id and seed of each row's.


class RequestContext(NamedTuple):
    """What a session notes on the ``context`` of its pendings.

    ``episode_ids`` are those of the rows, or those that are over; ``request_id`` is as in the
    request's own context, for an answer that must mirror it.
    """

    env_id: str
    episode_ids: Sequence[str]
    request_id: str


class _CommonPart(NamedTuple):
    """What requests to predict have in common while their rows' episodes are the same tuple."""

    env_id: str
    episodes: Sequence[tuple[str, int | None]]
    ids: Sequence[str]
    encoded: bytes  # The whole request, without an observation.


def _infos_of(episodes: Sequence[tuple[str, int | None]]) -> list[interaction_pb2.EpisodeInfo]:
    return [interaction_pb2.EpisodeInfo(episode_id=name, seed=seed) for name, seed in episodes]


class ModelSession(Session):
    """A session with one model endpoint; made by :meth:`open`.

    The Join stream is opened with the first request, and again by the first request after it has
    ended. Adapters live on the server, so they outlive a stream, but not a server. Requests return
    at once with a :class:`~rlmesh_gym.rpc.Pending`; they may be made from several threads.
    """

    component = "model-client"
    client_capabilities: ClassVar[tuple[str, ...]] = (
        OBSERVATION_HISTORY,
        CONCURRENT_PREDICT,
        SPACES,
    )

    def __init__(self, connection: Connection, response: service_pb2.HandshakeResponse) -> None:
        super().__init__(connection, response)
        self.session_id: str = f"rlmesh-gym-{uuid.uuid4()}"
        self._request_ids = itertools.count(1)
        self._common: _CommonPart | None = None

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

        Arguments and errors are those of :meth:`EnvSession.open`.
        """
        return cls._over(Connection(MODEL, address, token=token, tls=tls, timeouts=timeouts))

    @property
    def batches_lanes(self) -> bool:
        """Whether several rows in one request are answered as each of them alone would be.

        The released package gives a model without a spec the bare rows of a request of one and a
        batch otherwise, and no chunks then.
        """
        return bool(self.peer.extra.get("package", "") == "rlmesh-gym")

    @property
    def takes_history(self) -> bool:
        """Whether the endpoint takes the observations of replayed steps."""
        return self.can(OBSERVATION_HISTORY)

    @staticmethod
    def pack(codec: SpaceCodec, leaves: Leaves, num_rows: int) -> SpaceValue | RawValue:
        """Return a batch as ``predict`` takes it; while it is large, the arrays must stay."""
        if codec.row_bytes * num_rows < LARGE_BYTES:
            return codec.encode(leaves, num_rows)
        return RawValue([memoryview(part) for part in codec.buffers(leaves, num_rows)])

    def resolve_adapter(
        self,
        env_id: str,
        env_spec: EnvSpec | env_contract_pb2.EnvSpec,
        *,
        execution_horizon: int = 1,
        delivers_history: bool = False,
    ) -> Pending[interaction_pb2.ResolveAdapterResponse]:
        """Ask the model to set itself up for an environment, by the key for later requests.

        With ``delivers_history`` those bring the observations of replayed steps.
        """
        request, context = self._request("resolve_adapter", env_id)
        resolve = request.resolve_adapter
        if isinstance(env_spec, EnvSpec):
            env_spec = encode_env_spec(
                env_spec.env_id,
                env_spec.single_observation_space,
                env_spec.single_action_space,
                env_spec.metadata,
            )
        resolve.env_spec.CopyFrom(env_spec)
        if not self.can(SPACES):
            plain_spec(resolve.env_spec)
        resolve.selected_workflow_edition = EDITION
        resolve.execution_horizon = execution_horizon
        resolve.delivers_history = delivers_history
        return self._send(request, "resolve_adapter", self.timeouts.predict, context=context)

    def predict(
        self,
        env_id: str,
        observation: SpaceValue | RawValue,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> Pending[interaction_pb2.PredictResponse]:
        """Ask for actions, one per row of the observation, whose episodes have an id and a seed.

        Where history was agreed on, ``step`` numbers the environment's step, and ``history`` has
        the observations of those since the last request, oldest first.
        """
        request, context = self._request_for(env_id, episodes)
        predict = request.predict
        sent: Any = request
        if isinstance(observation, RawValue):
            sent = LargeRequest(request, observation)
        else:
            predict.observation.CopyFrom(observation)
        for rows in history:
            frame = predict.history.add(step=rows.step)
            if isinstance(rows.observation, RawValue):
                frame.observation.leaves.extend(map(bytes, rows.observation.leaves))
            else:
                frame.observation.CopyFrom(rows.observation)
            frame.episode_info.extend(_infos_of(rows.episodes))
        if step is not None:
            predict.step = step
        return self._send(sent, "predict", self.timeouts.predict, context=context)

    def reset_adapter(
        self, env_id: str, episode_ids: Sequence[str] = ()
    ) -> Pending[interaction_pb2.ResetAdapterResponse]:
        """Tell the model that episodes are over; no ids means all of this environment's."""
        request, context = self._request("reset_adapter", env_id, episode_ids)
        request.reset_adapter.episode_ids.extend(episode_ids)
        return self._send(request, "reset_adapter", self.timeouts.predict, context=context)

    def release_adapter(
        self, env_id: str, reason: str = ""
    ) -> Pending[interaction_pb2.ReleaseAdapterResponse]:
        """Tell the model that the environment is gone."""
        request, context = self._request("release_adapter", env_id)
        request.release_adapter.reason = reason
        return self._send(request, "release_adapter", self.timeouts.predict, context=context)

    def hang_up(self) -> None:
        """Drop the stream with all that is in flight; the next request opens a new one."""
        stream = self._connection.stream
        if stream is not None:
            stream.cancel()

    def close(self, reason: str = "", *, env_id: str = "", episode_ids: Sequence[str] = ()) -> None:
        """End the session, within ``timeouts.close``; never raises, and may be called again.

        It ends the stream and sends no CloseParticipant: the released server would take that as a
        reason to drop every client's adapters. First, the adapter of ``env_id`` is released, for
        ``reason``, after it was told that ``episode_ids`` are over.
        """

        def farewell(stream: JoinStream, limit: float | None) -> Pending[Any] | None:
            if not env_id:
                return None
            if episode_ids:
                request, context = self._request("reset_adapter", env_id, episode_ids)
                request.reset_adapter.episode_ids.extend(episode_ids)
                stream.send(request, "reset_adapter", context=context, timeout=limit)
            request, context = self._request("release_adapter", env_id)
            request.release_adapter.reason = reason
            return stream.send(request, "release_adapter", context=context, timeout=limit)

        self._connection.close(farewell, waits_for_work=True)
        self._finalizer.detach()

    def _request(
        self, kind: str, env_id: str, episode_ids: Sequence[str] = ()
    ) -> tuple[interaction_pb2.JoinRequest, RequestContext]:
        """Return a request with its context filled in, and what to note on its pending."""
        request = interaction_pb2.JoinRequest()
        context = getattr(request, kind).context
        context.session_id = self.session_id
        context.env_id = env_id
        context.request_id = request_id = self._new_request_id()
        return request, RequestContext(env_id, episode_ids, request_id)

    def _request_for(
        self, env_id: str, episodes: Sequence[tuple[str, int | None]]
    ) -> tuple[interaction_pb2.JoinRequest, RequestContext]:
        """Return a request to predict with its context and the episodes of its rows filled in.

        What those of a tuple that comes again have in common is encoded once.
        """
        common = self._common
        if common is None or common.episodes is not episodes or common.env_id != env_id:
            ids = [episode_id for episode_id, _ in episodes]
            request, context = self._request("predict", env_id, ids)
            request.predict.episode_info.extend(_infos_of(episodes))
            if isinstance(episodes, tuple):  # A list may be another one by the next time.
                encoded = request.SerializeToString()
                self._common = _CommonPart(env_id, episodes, ids, encoded)
            return request, context
        request = interaction_pb2.JoinRequest.FromString(common.encoded)
        request_id = self._new_request_id()
        request.predict.context.request_id = request_id
        return request, RequestContext(env_id, common.ids, request_id)

    def _new_request_id(self) -> str:
        return f"model-{next(self._request_ids)}"

    def _open_stream(self, kind: str, lanes: Sequence[int]) -> JoinStream:
        del kind, lanes
        return self._connection.open_stream()
