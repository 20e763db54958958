"""A client's session with one env endpoint."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym._proto.env.v1 import interaction_pb2, service_pb2
from rlmesh_gym.codec import decode_contract, encode_meta_map
from rlmesh_gym.errors import (
    UNREADABLE,
    ProtocolError,
    ResetNeededError,
    SessionRefusedError,
    why_unreadable,
)
from rlmesh_gym.rpc.client.connection import Connection
from rlmesh_gym.rpc.client.session import Session
from rlmesh_gym.rpc.handshake import (
    ARRAYS,
    CLIENT_CAPABILITIES_KEY,
    EDITION,
    PARTIAL_RESET,
    SPACES,
    SUBSET_STEP,
)
from rlmesh_gym.rpc.large_answers import parse_answer
from rlmesh_gym.rpc.services import ENV

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc.client.pending import Pending
    from rlmesh_gym.rpc.client.stream import JoinStream
    from rlmesh_gym.rpc.config import TimeoutsLike, TLSLike


_RETRY_SECONDS = 0.02
_MAX_RETRY_SECONDS = 0.5
_RAW_ENV = replace(ENV, parse=parse_answer)


class EnvSession(Session):
    """A session with one env endpoint; made by :meth:`open`.

    The Join stream is opened with the first request. Requests return at once with a
    :class:`~rlmesh_gym.rpc.Pending`; they may be made from several threads. After the stream has
    ended (a lost server, an error that the server could not recover from) everything but a whole
    ``reset`` raises :class:`~rlmesh_gym.errors.ResetNeededError`, and that ``reset`` opens a new
    stream.
    """

    component = "env-client"
    client_capabilities: ClassVar[tuple[str, ...]] = (ARRAYS, SPACES)

    def __init__(self, connection: Connection, response: service_pb2.HandshakeResponse) -> None:
        super().__init__(connection, response)
        if self.has_arrays:
            connection.join_metadata = ((CLIENT_CAPABILITIES_KEY, ARRAYS),)
        if not response.HasField("env_contract"):
            text = "the handshake came without a contract; the endpoint breaks the protocol"
            raise ProtocolError(text, endpoint=self.endpoint, operation="handshake")
        try:
            self.contract: EnvContract = decode_contract(response.env_contract)
        except UNREADABLE as error:
            text = f"the contract cannot be read: {why_unreadable(error)}"
            raise ProtocolError(text, endpoint=self.endpoint, operation="handshake") from error

    @classmethod
    def open(
        cls,
        address: str,
        *,
        token: str | None = None,
        tls: TLSLike = None,
        timeouts: TimeoutsLike = None,
        raw_observations: bool = False,
        link: str | None = None,
    ) -> EnvSession:
        """Connect to ``address`` and shake hands. Blocks up to ``timeouts.connect``.

        With ``raw_observations`` large observations of resets and steps are not parsed: instead of
        a ``SpaceValue`` they are a :class:`~rlmesh_gym.rpc.large_answers.RawValue`, which a codec
        decodes with fewer copies. ``link`` is the socket path of an embedded server, a shorter way
        for the Join stream.

        Raises:
            ConfigurationError: An address or option that cannot work; nothing was opened.
            UnavailableError: Nothing listens there, or no gRPC server does.
            DeadlineError: No answer in time.
            AuthenticationError: The token was refused.
            ProtocolError: The other kind of endpoint, another protocol, or an unreadable contract.
        """
        service = _RAW_ENV if raw_observations else ENV
        return cls._over(
            Connection(service, address, token=token, tls=tls, timeouts=timeouts, link=link)
        )

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<{type(self).__name__} {self.contract.env_id} at {self.endpoint}, {state}>"

    @property
    def has_arrays(self) -> bool:
        """Whether infos and reset options hold arrays as arrays."""
        return self.can(ARRAYS)

    @property
    def has_lane_operations(self) -> bool:
        """Whether ``step`` and ``reset`` may name lanes."""
        return self.can(SUBSET_STEP)

    @property
    def has_partial_reset(self) -> bool:
        """Whether ``reset`` may name lanes."""
        return self.has_lane_operations or self.can(PARTIAL_RESET)

    def reset(
        self,
        *,
        seeds: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> Pending[interaction_pb2.ResetResponse]:
        """Ask for a reset of all lanes, or of those in ``env_indices``.

        Seeds, where there are any, and the ids of the episodes that begin are one per lane asked
        for. Options of ``None`` are not the same as an empty mapping.
        """
        request = interaction_pb2.JoinRequest()
        reset = request.reset
        reset.SetInParent()
        reset.seeds.extend(seeds)
        reset.env_indices.extend(env_indices)
        reset.episode_ids.extend(episode_ids)
        if options is not None:
            reset.options.CopyFrom(encode_meta_map(options, "$.options", typed=self.has_arrays))
        return self._send(request, "reset", self.timeouts.reset, lanes=tuple(env_indices))

    def step(
        self,
        action: SpaceValue,
        *,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> Pending[interaction_pb2.StepResponse]:
        """Ask for a step of all lanes, or of those in ``env_indices``, each with its row."""
        request = interaction_pb2.JoinRequest()
        step = request.step
        # One copy. Nested constructors make a slow one per level (measured: 3 ms for 2 MB).
        step.action.CopyFrom(action)
        if len(env_indices):
            step.env_indices.extend(env_indices)
        if len(episode_ids):
            step.episode_ids.extend(episode_ids)
        return self._send(request, "step", self.timeouts.step, lanes=tuple(env_indices))

    def render(self, env_indices: Sequence[int] = ()) -> Pending[interaction_pb2.RenderResponse]:
        """Ask for a frame of the lane in ``env_indices``, of lane 0 where it is empty."""
        request = interaction_pb2.JoinRequest()
        request.render.SetInParent()
        request.render.env_indices.extend(env_indices)
        # The server lets all lanes finish before it renders, so this counts as a whole request.
        return self._send(request, "render", self.timeouts.render)

    def close(self, reason: str = "") -> None:
        """End the session, within ``timeouts.close``; never raises, and may be called again."""
        request = interaction_pb2.JoinRequest()
        request.close.reason = reason or "client close"
        self._connection.close(
            lambda stream, limit: stream.send(request, "close", timeout=limit),
            waits_for_work=False,
        )
        self._finalizer.detach()

    def _open_stream(self, kind: str, lanes: Sequence[int]) -> JoinStream:
        ended = self._connection.stream
        if ended is None:
            stream = self._connection.open_stream()
            # Not awaited: the first request follows at once, the peer takes them in order.
            stream.send(_configure(), "configure")
            return stream
        if kind == "reset" and not lanes:
            return self._reopen()
        raise ResetNeededError(
            f"{kind}: the session with {self.endpoint} has ended; call reset() for a new one. It "
            f"ended because: {ended.error or 'unknown reason'}"
        ) from ended.error

    def _reopen(self) -> JoinStream:
        # The server may need a moment to see that the last session is over, so a refusal is not
        # final until the connect timeout has passed.
        limit = self.timeouts.connect
        deadline = None if limit is None else time.monotonic() + limit
        pause = _RETRY_SECONDS
        while True:
            stream = self._connection.open_stream()
            left = None if deadline is None else deadline - time.monotonic()
            try:
                stream.send(_configure(), "configure").result(left)
            except SessionRefusedError:
                if left is not None and left < pause:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
            else:
                return stream


def _configure() -> interaction_pb2.JoinRequest:
    request = interaction_pb2.JoinRequest()
    request.configure.selected_workflow_edition = EDITION
    return request
