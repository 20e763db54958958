"""An environment behind an address: the public server object and its life."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from rlmesh_gym._proto.env.v1 import service_pb2
from rlmesh_gym.errors import ConfigurationError, StateError, UnsupportedSpaceError
from rlmesh_gym.rpc import ARRAYS, EnvServiceCallbacks, GrpcHost, Refused, answer_handshake
from rlmesh_gym.server.env.conformance import resolve_policy
from rlmesh_gym.server.env.dedicated_thread import DedicatedThread
from rlmesh_gym.server.env.operations import Operations
from rlmesh_gym.server.env.session_slots import SessionSlots
from rlmesh_gym.server.env.source import EnvSource
from rlmesh_gym.server.env.stream import EnvStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import TypeVar

    import gymnasium as gym
    from typing_extensions import Self

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.rpc import JoinPeer, TLSLike
    from rlmesh_gym.server.env.conformance import ValidationPolicy

    T = TypeVar("T")
    AnyEnv = gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any] | Sequence[gym.Env[Any, Any]]

__all__ = ["EnvServer"]

_logger = logging.getLogger(__name__)
_SHUTDOWN_VARIABLE = "RLMESH_ALLOW_REMOTE_SHUTDOWN"
_POLLS_PER_IDLE_TIMEOUT = 10


class EnvServer:
    """Serves an environment to clients of ``rlmesh-wire-v1``.

    What is served decides what clients may do with it:

    ========================  ==============  ====================================================
    environment               autoreset mode  lanes one by one
    ========================  ==============  ====================================================
    ``gymnasium.Env``         DISABLED        reset and step
    list of ``gymnasium.Env`` DISABLED        reset and step, different lanes at the same time
    ``VectorEnv``             its own         reset, where it honours ``options["reset_mask"]``
    ========================  ==============  ====================================================

    A session is one client's stream. Its requests are carried out in order, and no environment is
    ever entered by two threads at once; lanes of a list are separate environments in this respect.
    Slow lanes are at work at the same time. Which thread calls may change from call to call: pass
    ``dedicated_thread=True`` for environments that must stay on one, such as those with an OpenGL
    context. Lanes then take turns.

    With ``max_sessions=1`` all sessions, one after the other, use the same environment, and it is
    left as it is in between; it is closed when the server stops. With more, ``env`` must be a
    callable, and each session's environment is closed when the session ends.

    Args:
        env: A ``gymnasium.Env``, a list of them with equal spaces, a
            ``gymnasium.vector.VectorEnv``, or a callable without arguments that returns one of
            these. A callable is called by :meth:`start`, and once per further session if there may
            be several.
        address: Where to listen: ``"host:port"``, ``"tcp://host:port"``, a bare port,
            ``"unix:///path"``, None for a free port of 127.0.0.1.
        max_sessions: Sessions at a time; one more is refused.
        token: What clients must present, else ``RLMESH_GYM_TOKEN``, else nothing.
        tls: Certificate and key to serve with; see :class:`~rlmesh_gym.rpc.TLSConfig`.
        env_id: Name to announce; by default the id of the environment's spec.
        validation: What to do about values outside their declared range: ``"warn"`` sends a warning
            along once per session and path, ``"strict"`` refuses them, ``"off"`` does not look. By
            default ``RLMESH_VALIDATION_POLICY``, else ``"warn"``.
        allow_remote_shutdown: Whether a client may stop the server; by default whether
            ``RLMESH_ALLOW_REMOTE_SHUTDOWN`` is ``1`` or ``true``.
        idle_timeout: Stop after so many seconds without a request at work; None never does.
        drain_timeout: Seconds that running sessions get after a remote shutdown.
        close_timeout: Seconds that :meth:`stop` waits for a call at work. After that the
            environment is closed when the call has ended.
        partial_reset: Whether a ``VectorEnv`` honours ``options["reset_mask"]``; None knows it of
            Gymnasium's own ones, also under wrappers, and takes it that others do not.
        dedicated_thread: Build, call and close the environment on one thread of its own.

    Raises:
        ConfigurationError: Options that cannot work, or an environment that cannot be served.
        UnsupportedSpaceError: A space has no wire form. For callables, both come from
            :meth:`start`.
    """

    def __init__(
        self,
        env: AnyEnv | Callable[[], AnyEnv],
        address: str | None = "127.0.0.1:0",
        *,
        max_sessions: int = 1,
        token: str | None = None,
        tls: TLSLike = None,
        env_id: str | None = None,
        validation: str | None = None,
        allow_remote_shutdown: bool | None = None,
        idle_timeout: float | None = None,
        drain_timeout: float = 5.0,
        close_timeout: float = 5.0,
        partial_reset: bool | None = None,
        dedicated_thread: bool = False,
    ) -> None:
        if max_sessions < 1:
            raise ConfigurationError(f"max_sessions must be at least 1, got {max_sessions}")
        if idle_timeout is not None and idle_timeout <= 0:
            raise ConfigurationError(f"idle_timeout must be above 0, got {idle_timeout}")
        self._policy: ValidationPolicy = resolve_policy(validation)
        if allow_remote_shutdown is None:
            allow_remote_shutdown = os.environ.get(_SHUTDOWN_VARIABLE, "").lower() in {"1", "true"}
        self._allow_remote_shutdown = allow_remote_shutdown
        self._idle_timeout = idle_timeout
        self._drain_timeout = drain_timeout
        self._close_timeout = close_timeout
        self._slots = SessionSlots(max_sessions)
        service = EnvServiceCallbacks(self._handshake, self._join, self._shutdown)
        self._host = GrpcHost(service, address, token=token, tls=tls)
        self._source = EnvSource(
            env,
            per_session=max_sessions > 1,
            env_id=env_id,
            partial_reset=partial_reset,
            may_overlap=not dedicated_thread,
        )
        self._thread = DedicatedThread() if dedicated_thread else None
        self._lock = threading.Lock()
        self._address: str | None = None
        self._is_stopping = False
        self._stopper: int | None = None
        self._is_done = threading.Event()

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopping else self._address or "not started"
        return f"<{type(self).__name__} {state}>"

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

    @property
    def address(self) -> str:
        """Where clients connect, ``tcp://host:port`` or ``unix:///path``.

        Raises:
            StateError: The server was not started.
        """
        if self._address is None:
            raise StateError("the server has no address before start()")
        return self._address

    def start(self) -> str:
        """Build the environment if need be, and listen, without blocking. Idempotent.

        Returns:
            The address.

        Raises:
            ConfigurationError: The environment cannot be served, or the address cannot be bound.
            StateError: The server was stopped; make a new one.
        """
        with self._lock:
            if self._is_stopping:
                raise StateError("a server starts once, and this one was stopped; make a new one")
            if self._address is not None:
                return self._address
            try:
                self._on_thread(self._source.prepare)
                self._address = self._host.start()
            except BaseException:
                self._is_stopping = True
                self._is_done.set()
                self._close_env()
                raise
        _logger.info("serving %s at %s", self._source.contract.spec.id, self._address)
        if self._idle_timeout is not None:
            threading.Thread(target=self._watch_idle, name="rlmesh_gym-idle", daemon=True).start()
        return self._address

    def open_link(self, path: str) -> None:
        """Serve sessions also over a bare Unix socket, for the process that started this server.

        Args:
            path: The socket, in a directory of this user's; it must not exist.

        Raises:
            OSError: It cannot be bound.
            StateError: The server was not started.
        """
        if self._address is None:
            raise StateError("a server has no link before start()")
        self._host.open_link(path)

    def serve(self) -> None:
        """Start, if not done yet, and block until the server stops; then everything is closed."""
        self.start()
        try:
            self.wait()
        finally:
            self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server no longer listens; return whether it is so."""
        return self._host.wait(timeout)

    def stop(self, drain: float = 0.0) -> None:
        """Stop listening, end the sessions and close the environment; may be called again.

        Who calls while another thread stops the server waits for it.

        Args:
            drain: Seconds in which running sessions may go on.
        """
        with self._lock:
            is_first = not self._is_stopping
            if is_first:
                self._is_stopping = True
                self._stopper = threading.get_ident()
        if is_first:
            try:
                self._stop(drain)
            finally:
                self._is_done.set()
        elif self._stopper != threading.get_ident():  # An env may stop its server in close().
            self._is_done.wait()

    def _stop(self, drain: float) -> None:
        self._slots.close()
        self._host.stop(drain)
        if self._slots.wait_idle(self._close_timeout):
            self._close_env()
            return
        _logger.warning("a call is still at work; the environment is closed when it has ended")
        threading.Thread(target=self._close_later, name="rlmesh_gym-close", daemon=True).start()

    def _close_later(self) -> None:
        self._slots.wait_idle(None)
        self._close_env()

    def _close_env(self) -> None:
        self._on_thread(self._source.close)
        if self._thread is not None:
            self._thread.close()

    def _on_thread(self, call: Callable[[], T]) -> T:
        return call() if self._thread is None else self._thread.run(call)

    def _watch_idle(self) -> None:
        limit = self._idle_timeout or 0.0
        while not self.wait(limit / _POLLS_PER_IDLE_TIMEOUT):
            if self._slots.idle_seconds() >= limit:
                _logger.info("stopping after %g s without requests", limit)
                self.stop()
                return

    def _handshake(self, request: service_pb2.HandshakeRequest) -> service_pb2.HandshakeResponse:
        base = answer_handshake(request.base, "env", self._source.capabilities)
        contract = None
        if base.compatible:
            try:
                contract = self._source.contract_for(request.base.capabilities)
            except UnsupportedSpaceError as error:
                base.compatible = False
                base.error_message = str(error)
        return service_pb2.HandshakeResponse(base=base, env_contract=contract)

    def _shutdown(self, request: service_pb2.ShutdownRequest) -> service_pb2.ShutdownResponse:
        response = service_pb2.ShutdownResponse()
        response.base.accepted = self._allow_remote_shutdown
        if not self._allow_remote_shutdown:
            response.base.message = "remote shutdown is disabled for this environment endpoint"
            return response
        reason = request.base.reason
        response.base.message = f"shutdown accepted: {reason}" if reason else "shutdown accepted"
        threading.Thread(
            target=self.stop, args=(self._drain_timeout,), name="rlmesh_gym-stop", daemon=True
        ).start()
        return response

    def _join(
        self, requests: Iterator[interaction_pb2.JoinRequest], peer: JoinPeer
    ) -> Iterator[interaction_pb2.JoinResponse | bytes]:
        # A session's own environment is closed before its slot is free.
        lease = self._slots.take(peer, hold=self._source.is_per_session)
        try:
            try:
                with lease.call():
                    env = self._on_thread(self._source.take)
            except Exception as error:
                _logger.exception("no environment for %s", peer.name)
                raise Refused("INTERNAL", f"building the environment failed: {error}") from error
            try:
                stream = EnvStream(
                    Operations(env, self._policy, typed=ARRAYS in peer.capabilities),
                    lease,
                    **({} if self._thread is None else {"run": self._thread.run}),
                    may_overlap=self._thread is None,
                )
                yield from stream.answers(requests)
            finally:
                self._on_thread(lambda: self._source.give_back(env))
        finally:
            lease.end()
            lease.release()
