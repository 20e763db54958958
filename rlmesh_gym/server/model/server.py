"""Serve a model at an address."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, ClassVar

from rlmesh_gym._proto.model.v1 import service_pb2
from rlmesh_gym.errors import StateError
from rlmesh_gym.model import as_handler
from rlmesh_gym.rpc import (
    CONCURRENT_PREDICT,
    OBSERVATION_HISTORY,
    SPACES,
    ModelServiceCallbacks,
    answer_handshake,
)
from rlmesh_gym.server.lifecycle import Server, check_number
from rlmesh_gym.server.model.service import ModelService
from rlmesh_gym.server.model.stream import ModelStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.model import ModelHandler
    from rlmesh_gym.rpc import JoinPeer, TLSLike


_logger = logging.getLogger(__name__)

_CAPABILITIES = (OBSERVATION_HISTORY, CONCURRENT_PREDICT, SPACES)


class ModelServer(Server):
    """A model endpoint: any number of clients share one model.

    The handler is called by one thread only, one call at a time; decoding, encoding and adapters of
    other environments go on meanwhile. Adapters belong to the session that resolved them and
    outlive a lost connection.

    Args:
        handler: A :class:`ModelHandler`, or a function ``observation -> actions`` on batched arrays
            in vector form.
        address: Where to listen: ``"host:port"``, ``"tcp://host:port"``, a bare port,
            ``"unix:///path"``, None for a free port of 127.0.0.1, as is the default.
        token: Ask every client for it; else ``RLMESH_GYM_TOKEN``, else none.
        tls: Serve with this certificate.
        allow_remote_shutdown: Let clients stop the server; None reads
            ``RLMESH_ALLOW_REMOTE_SHUTDOWN``, which is off by default.
        idle_timeout: Stop after this many seconds without a request; None for never.
        drain_timeout: Seconds that requests at work get after a remote shutdown.
        close_timeout: Seconds that :meth:`stop` waits for a call of the handler at work. After that
            the handler is closed when the call has ended.
        client_timeout: Seconds after which a client that gives no sign of life counts as gone, such
            as one that is stopped or whose network vanished, and within which a session must bring
            its first request; None waits for ever. A client that waits or computes is alive.
        session_timeout: Seconds without a request, or with an answer that the client does not read,
            after which a session is ended; None for never.
        insecure: Listen beyond this machine without asking for a token or for client certificates.
        max_adapters: Bound on the environments resolved at the same time; over one connection a
            client may have an eighth of them, 16 at least. When it is reached, those whose client
            is gone make room.

    Raises:
        ConfigurationError: The handler is neither or is asynchronous, or an option cannot work.

    Example:
        >>> import numpy as np
        >>> with ModelServer(lambda observation: np.zeros(len(observation))) as server:
        ...     server.address.split(":")[0]
        'tcp'
    """

    handler: ModelHandler
    serves = "model"
    service: ClassVar[type[ModelServiceCallbacks]] = ModelServiceCallbacks

    def __init__(
        self,
        handler: ModelHandler | Callable[[Any], Any],
        address: str | None = "127.0.0.1:0",
        *,
        token: str | None = None,
        tls: TLSLike = None,
        allow_remote_shutdown: bool | None = None,
        idle_timeout: float | None = None,
        drain_timeout: float = 5.0,
        close_timeout: float = 5.0,
        client_timeout: float | None = 30.0,
        session_timeout: float | None = None,
        insecure: bool = False,
        max_adapters: int = 1024,
    ) -> None:
        check_number("max_adapters", max_adapters, least=1, whole=True)
        super().__init__(
            address,
            token=token,
            tls=tls,
            allow_remote_shutdown=allow_remote_shutdown,
            idle_timeout=idle_timeout,
            drain_timeout=drain_timeout,
            close_timeout=close_timeout,
            client_timeout=client_timeout,
            session_timeout=session_timeout,
            insecure=insecure,
        )
        self.handler = as_handler(handler)
        self._max_adapters = max_adapters
        self._service: ModelService | None = None

    def _prepare(self) -> None:
        service = ModelService(self.handler, max_adapters=self._max_adapters)
        # All calls of the handler come from there.
        service.model_thread.post(lambda: setattr(self._thread_state, "is_inside", True))
        self._service = service

    def _drain(self) -> None:
        if self._service is not None:
            self._service.drain()

    def _close(self, timeout: float) -> bool:
        if self._service is not None:
            return self._service.close(self._close_handler, timeout)
        self._close_handler()
        return True

    def _close_handler(self) -> None:
        try:
            self._user_code(self.handler.on_close)
        except BaseException:
            # Whoever stops a server cannot mend it.
            _logger.exception("%r failed to close", self.handler)

    def _idle_seconds(self) -> float:
        service = self._service
        if service is None or service.in_flight:
            return 0.0
        return time.monotonic() - service.last_activity

    def _handshake(self, request: service_pb2.HandshakeRequest) -> service_pb2.HandshakeResponse:
        base = answer_handshake(request.base, "model", _CAPABILITIES)
        return service_pb2.HandshakeResponse(base=base)

    def _join(
        self, requests: Iterator[interaction_pb2.JoinRequest], peer: JoinPeer
    ) -> Iterator[interaction_pb2.JoinResponse]:
        service = self._service
        if service is None:
            raise StateError("a call came before the model server was ready")
        stream = ModelStream(service, requests, peer.name)
        peer.on_disconnect(stream.lose)
        return stream.responses()
