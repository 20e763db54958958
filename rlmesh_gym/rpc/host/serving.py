"""The only gRPC server code: it turns calls into plain callbacks and back."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from rlmesh_gym.errors import ConfigurationError, StateError
from rlmesh_gym.rpc.address import parse_bind_address
from rlmesh_gym.rpc.client.connection import message_options
from rlmesh_gym.rpc.config import MAX_UNARY_BYTES, TLSConfig, resolve_token
from rlmesh_gym.rpc.host.callbacks import JoinPeer, Refused
from rlmesh_gym.rpc.host.link_serving import LinkHost
from rlmesh_gym.rpc.host.listening import claim, explain_bind_failure, private_socket
from rlmesh_gym.rpc.host.silence import Patience, SilenceWatch
from rlmesh_gym.threads import GrowingExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from rlmesh_gym.rpc.address import Address
    from rlmesh_gym.rpc.client.connection import ChannelOptions
    from rlmesh_gym.rpc.config import TLSLike
    from rlmesh_gym.rpc.host.callbacks import ServiceCallbacks


_logger = logging.getLogger(__name__)
_STOP_SECONDS = 2.0
_UNREADABLE: Any = object()
_SERVER_OPTIONS: ChannelOptions = [
    ("grpc.so_reuseport", 0),  # Else two servers share one port and split the clients.
    # Clients ping idle sessions; by default gRPC takes that for an attack.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
]


class GrpcHost:
    """A gRPC server for one service at one address.

    Every call runs on a daemon thread of its own, so that a blocked session delays no handshake and
    no exit of the process. ``address`` is the bound one, ``None`` before :meth:`start`.
    """

    def __init__(
        self,
        service: ServiceCallbacks,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: TLSLike = None,
        insecure: bool = False,
        patience: Patience | None = None,
    ) -> None:
        self._service = service
        self._patience = Patience() if patience is None else patience
        self._watch = SilenceWatch(self._patience)
        self._bind = parse_bind_address(address)
        token = resolve_token(token)
        self._token = None if token is None else token.encode()
        config = TLSConfig.from_value(tls)
        self._credentials = _server_credentials(config)
        asks_who = self._token is not None or (config is not None and config.root_certificates)
        self._is_open_to_all = not asks_who and not self._bind.is_loopback
        if self._is_open_to_all and not insecure:
            raise ConfigurationError(
                f"{self._bind.display}: whoever reaches this address could use the endpoint; ask "
                "for a token (token=, RLMESH_GYM_TOKEN) or for certificates of clients "
                "(tls={'root_certificates': ...}), listen on 127.0.0.1, or allow it with "
                "insecure=True (--insecure)"
            )
        self.address: str | None = None
        self._links: list[LinkHost] = []
        self._is_stopped = False
        self._running: _Running | None = None
        self._finalizer: weakref.finalize[Any, GrpcHost] | None = None

    def start(self) -> str:
        """Listen, once; return the address for clients. A ConfigurationError says why it cannot."""
        if self.address is not None or self._is_stopped:
            raise StateError("a server starts once; make a new one")
        claim(self._bind)
        executor = GrowingExecutor("rlmesh_gym-server")
        options = [*message_options(), *_SERVER_OPTIONS, *self._patience.ping_options]
        server = grpc.server(executor, handlers=self._handlers(), options=options)
        bound = self._listen(server)
        server.start()
        self._watch.start()
        if self._is_open_to_all:
            _logger.warning("%s: no token and no client certificates are asked for", bound.display)
        self.address = bound.display
        self._running = _Running(server, executor, self._watch, self._links, bound, os.getpid())
        self._finalizer = weakref.finalize(self, self._running.stop, None)
        return self.address

    def open_link(self, path: str) -> None:
        """Serve Join also over a bare Unix socket, to which only this user can connect.

        See :mod:`rlmesh_gym.rpc.client.link`. An OSError says that ``path`` cannot be bound.
        """
        self._links.append(LinkHost(path, self._join_link, self._token, self._patience.client))

    def stop(self, grace: float = 0.0) -> None:
        """Stop listening at once, give running calls ``grace`` seconds, then cut them off.

        May be called again, and from any thread but that of a running call. Callbacks that are at
        work are not waited for.
        """
        running, self._running = self._running, None
        if running is not None and self._finalizer is not None and self._finalizer.detach():
            running.stop(grace)
        self._is_stopped = True

    def _listen(self, server: grpc.Server) -> Address:
        bind, credentials = self._bind, self._credentials
        cause = None
        try:
            is_unix = bind.kind == "unix"
            with private_socket(bind.path) if is_unix else contextlib.nullcontext():
                if credentials is None:
                    port = server.add_insecure_port(bind.target)
                else:
                    port = server.add_secure_port(bind.target, credentials)
        except RuntimeError as error:
            port, cause = 0, error  # Older releases of gRPC return 0 instead.
        if port == 0:
            raise explain_bind_failure(bind, uses_tls=credentials is not None) from cause
        return bind.with_port(port) if bind.kind == "tcp" else bind

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        service, wire = self._service, self._service.wire
        join = grpc.stream_stream_rpc_method_handler(
            self._join, request_deserializer=self._parser(), response_serializer=_serialize
        )
        methods = {
            "Handshake": self._unary(service.handshake, wire.messages.HandshakeRequest),
            "Shutdown": self._unary(service.shutdown, wire.messages.ShutdownRequest),
            "Join": join,
        }
        # HealthCheckResponse(status=SERVING). The released package answers health checks for models
        # only; more does no harm.
        check: Any = grpc.stream_unary_rpc_method_handler(lambda _requests, _context: b"\x08\x01")
        return [
            grpc.method_handlers_generic_handler(wire.name, methods),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
        ]

    def _unary(self, callback: Callable[[Any], Any], request_type: Any) -> Any:
        # For gRPC a stream of one request: so that nothing of it is read before the token is.
        def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            self._authenticate(context)
            data = next(requests, b"")
            if len(data) > MAX_UNARY_BYTES:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"the request has {len(data)} bytes, at most {MAX_UNARY_BYTES} are expected",
                )
            try:
                request = request_type.FromString(data)
            except Exception:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be read")
            if not request.HasField("base"):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request has no base")
            try:
                return callback(request)
            except Exception as error:
                _abort(context, error)

        return grpc.stream_unary_rpc_method_handler(
            call, request_deserializer=None, response_serializer=_serialize
        )

    def _join(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self._authenticate(context)
        # Other clients send nothing until they have seen the response's headers.
        context.send_initial_metadata(())
        try:
            peer = JoinPeer(context)
            yield from self._watch.answers(self._service.join, _readable(requests), peer)
        except Exception as error:
            _abort(context, error)

    def _join_link(self, requests: Iterator[bytes], peer: JoinPeer) -> Generator[bytes, None, None]:
        readable = _readable(map(self._parser(), requests))
        for response in self._watch.answers(self._service.join, readable, peer):
            yield _serialize(response)

    def _parser(self) -> Callable[[bytes], Any]:
        parse = self._service.wire.join_request.FromString

        def read(data: bytes) -> Any:
            # An exception here would be logged by gRPC with a stack trace of its own; garbage is
            # the client's fault and ends only its own session.
            try:
                return parse(data)
            except Exception:
                return _UNREADABLE

        return read

    def _authenticate(self, context: grpc.ServicerContext) -> None:
        if self._token is None:
            return
        given: Any = dict(context.invocation_metadata()).get("authorization", b"")
        if isinstance(given, str):
            given = given.encode()
        if not hmac.compare_digest(given, self._token):
            message = f"invalid {self._service.wire.kind} token"
            context.abort(grpc.StatusCode.UNAUTHENTICATED, message)


def _readable(requests: Iterator[Any]) -> Iterator[Any]:
    try:
        for request in requests:
            if request is _UNREADABLE:
                raise Refused("INVALID_ARGUMENT", "the request cannot be read")
            yield request
    except grpc.RpcError:
        return  # How gRPC says that the client is gone.


def _serialize(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    data: bytes = message.SerializeToString()
    return data


def _abort(context: grpc.ServicerContext, error: Exception) -> None:
    if isinstance(error, Refused):
        context.abort(grpc.StatusCode[error.status], str(error))
    if not context.is_active():
        return  # The client has gone; its iterator raised for that reason.
    _logger.error("a call from %s failed", context.peer(), exc_info=error)
    context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


def _server_credentials(tls: TLSConfig | None) -> grpc.ServerCredentials | None:
    if tls is None:
        return None
    key, chain = tls.read("private_key"), tls.read("certificate_chain")
    if key is None or chain is None:
        raise ConfigurationError("tls: a server needs certificate_chain and private_key")
    roots = tls.read("root_certificates")
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=roots, require_client_auth=roots is not None
    )


@dataclass(frozen=True)
class _Running:
    """What must be ended of a started host; it does not know the host, whose finalizer it is."""

    server: Any
    executor: GrowingExecutor
    watch: SilenceWatch
    links: list[LinkHost]
    bound: Address
    pid: int

    def stop(self, grace: float | None) -> None:
        if os.getpid() != self.pid:
            return  # A forked child has none of gRPC's threads.
        # At exit None: with a number gRPC would start a thread, which is too late then.
        self.watch.stop()
        stopped = self.server.stop(grace)
        for link in self.links:
            link.stop(grace or 0.0)
        if grace is not None:
            stopped.wait(grace + _STOP_SECONDS)
        self.executor.shutdown()
        if self.bound.kind == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.bound.path)
