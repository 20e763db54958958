"""What env and model sessions share: a channel to one endpoint, handshake, Join stream."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import grpc

from rlmesh_gym._version import __version__
from rlmesh_gym.codec.spaces.limits import max_message_bytes
from rlmesh_gym.errors import (
    AuthenticationError,
    ClosedError,
    Error,
    ForkedError,
    UnavailableError,
)
from rlmesh_gym.rpc.address import parse_address
from rlmesh_gym.rpc.client.proxies import is_own_machine, proxy_of
from rlmesh_gym.rpc.client.stream import JoinStream
from rlmesh_gym.rpc.config import (
    MAX_UNARY_BYTES,
    Timeouts,
    TLSConfig,
    resolve_token,
)
from rlmesh_gym.rpc.handshake import check_handshake, handshake_request
from rlmesh_gym.rpc.services import ENV, MODEL
from rlmesh_gym.rpc.status import (
    error_from_status,
    is_not_grpc,
    late_handshake,
    stopped_by_proxy,
    unreachable,
    wrong_service,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlmesh_gym.rpc.address import Address
    from rlmesh_gym.rpc.client.pending import Pending
    from rlmesh_gym.rpc.config import TimeoutsLike, TLSLike
    from rlmesh_gym.rpc.services import Service

    Farewell = Callable[[JoinStream, float | None], Pending[Any] | None]


_logger = logging.getLogger(__name__)
_BUSY_GRACE_SECONDS = 0.5

ChannelOptions = list[tuple[str, "int | str"]]

# gRPC's flow-control windows start at 64 KiB and grow by probing; image batches want them wide.
_WINDOW_BYTES = 16 * 1024 * 1024
_MAX_FRAME_BYTES = 4 * 1024 * 1024
_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": service.name, "method": method}
                    for service in (ENV, MODEL)
                    for method in ("Handshake", "Shutdown")
                ],
                "maxResponseMessageBytes": MAX_UNARY_BYTES,
            }
        ]
    }
)
_ONLY_UNCOMPRESSED = 1  # The set of gRPC's algorithms that has only "identity" in it.


def message_options() -> ChannelOptions:
    """Return what clients and servers ask of gRPC for their messages.

    The released package knows no compression either, and half a megabyte can unfold to gigabytes.
    """
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes()),
        ("grpc.compression_enabled_algorithms_bitset", _ONLY_UNCOMPRESSED),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.max_frame_size", _MAX_FRAME_BYTES),
    ]


_live: weakref.WeakSet[Connection] = weakref.WeakSet()
_inherited: list[Connection] = []
_forked_pids: set[int] = set()  # This process, where it was forked after gRPC had been loaded.


def _note_fork() -> None:
    # In a forked child gRPC's threads are gone, and freeing its objects may wait for them for ever.
    _inherited.extend(_live)
    _forked_pids.add(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Connection:
    """A channel to one endpoint, with at most one Join stream at a time.

    Owned by a session; closing is idempotent and never raises. Every use in a forked child raises
    :class:`~rlmesh_gym.errors.ForkedError`.
    """

    def __init__(
        self,
        service: Service,
        address: str,
        *,
        token: str | None,
        tls: TLSLike,
        timeouts: TimeoutsLike,
        link: str | None = None,
    ) -> None:
        self.address: Address = parse_address(address)
        self.endpoint: str = self.address.display
        self.timeouts: Timeouts = Timeouts.from_value(timeouts)
        self.stream: JoinStream | None = None
        self.lock: threading.RLock = threading.RLock()
        self._service = service
        self._tls = TLSConfig.from_value(tls)
        token = resolve_token(token)
        # Raw, as the wire has it.
        self._metadata = () if token is None else (("authorization", token),)
        self.join_metadata: tuple[tuple[str, str], ...] = ()
        self._link = None if link is None else (link, token)
        self._pid = os.getpid()
        self.is_closed: bool = False
        self._channel = _open_channel(self.address, self._tls)
        _live.add(self)

    def check(self, operation: str) -> None:
        """Raise unless the connection may be used here and now."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{operation}: the connection to {self.endpoint} was opened by process {self._pid} "
                f"and does not survive fork; connect anew in this process (or use spawn)"
            )
        if self.is_closed:
            raise ClosedError(f"{self.endpoint}: {operation}: the session is closed")

    def handshake(self, component: str, capabilities: Iterable[str] = ()) -> Any:
        """Shake hands and return the service's own HandshakeResponse."""
        self.check("handshake")
        try:
            response = self._shake_hands(self._service, component, capabilities)
        except grpc.RpcError as error:
            raise self._handshake_error(error) from error
        check_handshake(response.base, self.endpoint)
        return response

    def shutdown(self, reason: str) -> tuple[bool, str]:
        """Ask the server to stop; return whether it will, and what it says."""
        self.check("shutdown")
        request = self._service.messages.ShutdownRequest()
        request.base.reason = reason
        try:
            response = self._unary(self._service, "Shutdown", request)
        except grpc.RpcError as error:
            raise self._error(error, "shutdown") from error
        return response.base.accepted, response.base.message

    def open_stream(self) -> JoinStream:
        """Open a Join stream, on a new channel where the last one was lost, and keep it."""
        with self.lock:
            self.check("join")
            if self.stream is not None:
                self.stream.cancel()
                if type(self.stream.error) is UnavailableError:
                    # A lost channel waits before it connects again; a fresh one tries at once.
                    self._channel.close()
                    self._channel = _open_channel(self.address, self._tls)
            self.stream = JoinStream(
                self._channel,
                self._service,
                endpoint=self.endpoint,
                metadata=(*self._metadata, *self.join_metadata),
                link=self._link,
            )
            return self.stream

    def close(self, farewell: Farewell, *, waits_for_work: bool) -> None:
        """Close, bounded by ``timeouts.close``; never raises, and may be called again.

        ``farewell`` sends last requests, given the seconds that it may take; what it returns is
        waited for before the stream ends. ``waits_for_work`` waits out what is at work, unless
        somebody has waited for it in vain.
        """
        if os.getpid() != self._pid:  # Before the lock, which another thread may hold for ever.
            self.is_closed = True
            return
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        try:
            if self.stream is not None and self.stream.is_open:
                self._part(self.stream, farewell, waits_for_work=waits_for_work)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop everything without a word to the peer; safe in finalizers and forked children."""
        self.is_closed = True
        if os.getpid() != self._pid:
            return
        if self.stream is not None:
            self.stream.cancel()
        self._channel.close()
        _live.discard(self)

    def _part(self, stream: JoinStream, farewell: Farewell, *, waits_for_work: bool) -> None:
        limit = self.timeouts.close
        if stream.is_overdue or (stream.outstanding and not waits_for_work):
            # The peer would answer only after what is at work, and a process that was interrupted
            # must not hang here.
            limit = _BUSY_GRACE_SECONDS if limit is None else min(limit, _BUSY_GRACE_SECONDS)
        deadline = None if limit is None else time.monotonic() + limit
        try:
            last = farewell(stream, limit)
            if last is not None:
                last.result(_left(deadline))
            stream.half_close()
        except Error as error:
            # The peer is gone, busy or unwilling; there is nobody to say goodbye to.
            _logger.debug("%s: closing: %s", self.endpoint, error)
            return
        stream.wait_ended(_left(deadline))

    def _unary(self, service: Service, name: str, request: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{service.name}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(service.messages, f"{name}Response").FromString,
        )
        try:
            return call(request, timeout=self.timeouts.connect, metadata=self._metadata)
        except ValueError as error:  # How gRPC says that another thread has closed the channel.
            raise ClosedError(f"{self.endpoint}: {name}: the session was closed") from error

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        return error_from_status(
            error.code(),
            error.details(),
            endpoint=self.endpoint,
            operation=operation,
            kind=self._service.kind,
        )

    def _handshake_error(self, error: grpc.RpcError) -> Exception:
        code, details = error.code(), error.details() or ""
        endpoint, kind = self.endpoint, self._service.kind
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return wrong_service(
                details, endpoint=endpoint, kind=kind, is_other_kind=self._serves_other_kind()
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and os.getpid() in _forked_pids:
            return ForkedError(
                f"{endpoint}: no answer to the handshake. This process was forked from one that "
                f"uses gRPC, which grpcio {grpc.__version__} may not survive; start workers with "
                "the spawn method, or upgrade grpcio"
            )
        proxy = proxy_of(self.address)
        if proxy and (code is grpc.StatusCode.DEADLINE_EXCEEDED or is_not_grpc(code, details)):
            return stopped_by_proxy(self.address, details, kind=kind, proxy=proxy)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return late_handshake(self.timeouts.connect, endpoint=endpoint, kind=kind)
        if is_not_grpc(code, details):
            return unreachable(self.address, details, kind=kind, tls=self._tls)
        return self._error(error, "handshake")

    def _serves_other_kind(self) -> bool:
        other = MODEL if self._service.kind == "env" else ENV
        try:
            self._shake_hands(other, self._service.kind)
        except grpc.RpcError as error:
            return isinstance(self._error(error, "handshake"), AuthenticationError)
        return True

    def _shake_hands(
        self, service: Service, component: str, capabilities: Iterable[str] = ()
    ) -> Any:
        base = handshake_request(component, capabilities)
        return self._unary(service, "Handshake", service.messages.HandshakeRequest(base=base))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _open_channel(address: Address, tls: TLSConfig | None = None) -> grpc.Channel:
    """Return a channel. Nothing is sent until the first call on it."""
    options: ChannelOptions = [
        *message_options(),
        ("grpc.service_config", _SERVICE_CONFIG),
        # Channels with equal options share one connection by default: then one peer's GOAWAY, or
        # the back-off after one failed attempt, would hit sessions that have nothing to do with it.
        ("grpc.use_local_subchannel_pool", 1),
        # A step is sent at most once.
        ("grpc.enable_retries", 0),
        # A vanished host is noticed while a request waits; a busy or a stopped process is not one.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.primary_user_agent", f"rlmesh-gym/{__version__}"),
    ]
    if is_own_machine(address):
        options.append(("grpc.enable_http_proxy", 0))
    if address.kind == "unix":
        # By default the escaped path is the authority, which other HTTP/2 stacks refuse.
        options.append(("grpc.default_authority", "localhost"))
    if tls is None:
        return grpc.insecure_channel(address.target, options=options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.read("root_certificates"),
        private_key=tls.read("private_key"),
        certificate_chain=tls.read("certificate_chain"),
    )
    return grpc.secure_channel(address.target, credentials, options=options)
