"""Serve a model at an address."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from rlmesh_gym._proto.core.v1 import handshake_pb2
from rlmesh_gym._proto.model.v1 import service_pb2
from rlmesh_gym.errors import ConfigurationError, StateError, UnsupportedCallError
from rlmesh_gym.model import CallableHandler, ModelHandler
from rlmesh_gym.rpc import (
    CONCURRENT_PREDICT,
    OBSERVATION_HISTORY,
    SPACES,
    GrpcHost,
    ModelServiceCallbacks,
    answer_handshake,
)
from rlmesh_gym.server.model.service import ModelService, close_handler
from rlmesh_gym.server.model.stream import ModelStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.rpc import JoinPeer, TLSLike

__all__ = ["ModelServer"]

_logger = logging.getLogger(__name__)

_CAPABILITIES = (OBSERVATION_HISTORY, CONCURRENT_PREDICT, SPACES)
_SHUTDOWN_VARIABLE = "RLMESH_ALLOW_REMOTE_SHUTDOWN"


class ModelServer:
    """A model endpoint: any number of clients share one model.

    The handler is called by one thread only, one call at a time; decoding, encoding and adapters of
    other environments go on meanwhile. Adapters belong to the session that resolved them and
    outlive a lost connection.

    Args:
        handler: A :class:`ModelHandler`, or a function ``observation -> actions`` on batched arrays
            in vector form.
        address: Where to listen: ``"host:port"``, ``"tcp://host:port"``, a bare port,
            ``"unix:///path"``, None for a free port of 127.0.0.1.
        token: Ask every client for it; else ``RLMESH_GYM_TOKEN``, else none.
        tls: Serve with this certificate.
        allow_remote_shutdown: Let clients stop the server; None reads
            ``RLMESH_ALLOW_REMOTE_SHUTDOWN``, which is off by default.
        idle_timeout: Stop after this many seconds without a request; None for never.
        drain_timeout: Seconds that requests at work get after a remote shutdown.
        close_timeout: Seconds that :meth:`stop` waits for a call of the handler at work. After that
            the handler is closed when the call has ended.
        max_adapters: Bound on the environments resolved at the same time. When it is reached, those
            whose client is gone make room.

    Raises:
        ConfigurationError: The handler is neither, or an option cannot work.

    Example:
        >>> import numpy as np
        >>> with ModelServer(lambda observation: np.zeros(len(observation))) as server:
        ...     server.address.split(":")[0]
        'tcp'
    """

    def __init__(
        self,
        handler: ModelHandler | Callable[[Any], Any],
        address: str | None = None,
        *,
        token: str | None = None,
        tls: TLSLike = None,
        allow_remote_shutdown: bool | None = None,
        idle_timeout: float | None = None,
        drain_timeout: float = 5.0,
        close_timeout: float = 5.0,
        max_adapters: int = 1024,
    ) -> None:
        if idle_timeout is not None and not (_is_number(idle_timeout) and idle_timeout > 0):
            raise ConfigurationError(f"idle_timeout must be above 0, got {idle_timeout!r}")
        for name, value, least in (
            ("drain_timeout", drain_timeout, 0),
            ("close_timeout", close_timeout, 0),
            ("max_adapters", max_adapters, 1),
        ):
            if not (_is_number(value) and value >= least):
                raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
        if allow_remote_shutdown is None:
            given = os.environ.get(_SHUTDOWN_VARIABLE, "").lower()
            allow_remote_shutdown = given in ("1", "true")
        self.handler = _as_handler(handler)
        self._allow_remote_shutdown = allow_remote_shutdown
        self._idle_timeout = idle_timeout
        self._drain_timeout = drain_timeout
        self._close_timeout = close_timeout
        self._max_adapters = max_adapters
        self._host = GrpcHost(
            ModelServiceCallbacks(
                handshake=_handshake, join=self._join, shutdown=self._answer_shutdown
            ),
            address,
            token=token,
            tls=tls,
        )
        self._lock = threading.Lock()
        self._service: ModelService | None = None
        self._stopping = threading.Event()
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        """Where clients connect, ``tcp://host:port`` or ``unix:///path``.

        Raises:
            StateError: The server was not started.
        """
        address = self._host.address
        if address is None:
            raise StateError("the server has no address before start()")
        return address

    def start(self) -> str:
        """Listen and serve on threads of its own, without blocking. Idempotent.

        Returns:
            The address.

        Raises:
            ConfigurationError: The address is in use or cannot be bound.
            StateError: The server was stopped; make a new one.
        """
        with self._lock:
            if self._stopping.is_set():
                raise StateError("a server starts once, and this one was stopped; make a new one")
            if self._service is None:
                service = ModelService(self.handler, max_adapters=self._max_adapters)
                self._service = service
                try:
                    self._host.start()
                except BaseException:
                    self._service = None
                    service.abandon()
                    raise
                if self._idle_timeout is not None:
                    self._in_background(self._watch_idle, self._idle_timeout, service)
        return self.address

    def serve(self) -> None:
        """Start, and block until the server is stopped; an interrupt stops it."""
        self.start()
        try:
            self.wait()
        finally:
            self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; return whether it has. A signal breaks the wait."""
        return self._stopped.wait(timeout)

    def stop(self, drain: float = 0.0) -> None:
        """Stop listening, end all streams and close the handler; may be called again.

        A call of the handler that is at work is waited for, up to ``close_timeout`` seconds.

        Args:
            drain: Seconds in which requests at work may still be answered.
        """
        with self._lock:
            first = not self._stopping.is_set()
            self._stopping.set()
            service = self._service
        if not first:
            self._stopped.wait()
            return
        try:
            self._shut(service, drain)
        finally:
            self._stopped.set()

    def __reduce__(self) -> NoReturn:
        message = (
            f"{self!r} is bound to its process and cannot be copied or pickled; pickle the handler"
        )
        raise UnsupportedCallError(message)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._stopping.is_set():
            state = "stopped"
        else:
            state = "not started" if self._host.address is None else f"at {self._host.address}"
        return f"<ModelServer of {self.handler!r}, {state}>"

    def _shut(self, service: ModelService | None, drain: float) -> None:
        if service is None:
            close_handler(self.handler)
            return
        service.drain()
        self._host.stop(drain)
        if not service.close(self._close_timeout):
            _logger.warning("%r is still at work; it is closed when it returns", self.handler)

    def _join(
        self, requests: Iterator[interaction_pb2.JoinRequest], peer: JoinPeer
    ) -> Iterator[interaction_pb2.JoinResponse]:
        service = self._service
        if service is None:
            raise StateError("a call came before the model server was ready")
        stream = ModelStream(service, requests)
        peer.on_disconnect(stream.lose)
        return stream.responses()

    def _answer_shutdown(
        self, request: service_pb2.ShutdownRequest
    ) -> service_pb2.ShutdownResponse:
        if not self._allow_remote_shutdown:
            message = "remote shutdown is disabled for this model endpoint"
            base = handshake_pb2.ShutdownResponse(accepted=False, message=message)
            return service_pb2.ShutdownResponse(base=base)
        reason = request.base.reason
        message = f"shutdown accepted: {reason}" if reason else "shutdown accepted"
        _logger.info("a client stops the model server: %s", reason or "no reason given")
        self._in_background(self.stop, self._drain_timeout)  # A call cannot wait for its own end.
        base = handshake_pb2.ShutdownResponse(accepted=True, message=message)
        return service_pb2.ShutdownResponse(base=base)

    def _watch_idle(self, idle_timeout: float, service: ModelService) -> None:
        remaining = idle_timeout
        while not self._stopping.wait(remaining):
            if service.in_flight:
                remaining = idle_timeout
                continue
            remaining = service.last_activity + idle_timeout - time.monotonic()
            if remaining <= 0:
                _logger.info("the model server stops after %g s without a request", idle_timeout)
                self.stop()
                return

    def _in_background(self, target: Callable[..., None], *args: Any) -> None:
        name = "rlmesh_gym-model-server"
        threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _handshake(request: service_pb2.HandshakeRequest) -> service_pb2.HandshakeResponse:
    return service_pb2.HandshakeResponse(
        base=answer_handshake(request.base, "model", _CAPABILITIES)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_handler(handler: object) -> ModelHandler:
    if not isinstance(handler, ModelHandler):
        if not callable(handler):
            message = (
                f"expected a ModelHandler or a function of the observation, got {handler!r}; "
                "subclass ModelHandler and override predict"
            )
            raise ConfigurationError(message)
        if isinstance(handler, type):
            message = f"expected a handler, got the class {handler.__name__}; make an instance"
            raise ConfigurationError(message)
        return CallableHandler(handler)
    kind = type(handler)
    if (
        kind.predict is ModelHandler.predict
        and kind.predict_chunked is ModelHandler.predict_chunked
    ):
        message = f"{kind.__name__} overrides neither predict nor predict_chunked"
        raise ConfigurationError(message)
    return handler
