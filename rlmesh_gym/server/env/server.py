"""Serve an environment at an address."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from rlmesh_gym._proto.env.v1 import service_pb2
from rlmesh_gym.errors import ConfigurationError, StateError, UnsupportedSpaceError
from rlmesh_gym.rpc import ARRAYS, EnvServiceCallbacks, Refused, answer_handshake
from rlmesh_gym.server.env.conformance import resolve_policy
from rlmesh_gym.server.env.operations import Operations
from rlmesh_gym.server.env.session_slots import SessionSlots
from rlmesh_gym.server.env.source import EnvSource
from rlmesh_gym.server.env.stream import EnvStream
from rlmesh_gym.server.lifecycle import Server, check_number
from rlmesh_gym.threads import DedicatedThread, LentThread, TaskThread, WhichThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.rpc import JoinPeer, TLSLike
    from rlmesh_gym.server.env.conformance import ValidationPolicy
    from rlmesh_gym.server.env.source import AnyEnv

    T = TypeVar("T")


_logger = logging.getLogger(__name__)


def _which_thread(thread: WhichThread | None, *, dedicated: bool) -> WhichThread:
    if thread is None:
        return "own" if dedicated else "any"
    if thread not in get_args(WhichThread):
        raise ConfigurationError(f"thread must be 'any', 'own' or 'main', got {thread!r}")
    if dedicated and thread != "own":
        raise ConfigurationError(f"dedicated_thread=True is thread='own', got thread={thread!r}")
    if thread == "main" and threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("a server with thread='main' must be made on the main thread")
    return thread


class EnvServer(Server):
    """Serves an environment to clients of ``rlmesh-wire-v1``.

    What is served decides what clients may do with it:

    ========================  ==============  ====================================================
    environment               autoreset mode  lanes one by one
    ========================  ==============  ====================================================
    ``gymnasium.Env``         DISABLED        reset and step
    list of ``gymnasium.Env`` DISABLED        reset and step
    ``VectorEnv``             its own         reset, where it honours ``options["reset_mask"]``
    ========================  ==============  ====================================================

    A session is one client's stream. Its requests are carried out in order, and all environments of
    a server take turns: they are made, called and closed one after the other, since many of them
    share state within their process. A slow one delays the others. ``overlap=True`` lets different
    lanes and different sessions be at work at the same time; each environment still sees one call
    at a time, from whatever thread. Lanes that are processes of their own (``AsyncVectorEnv``)
    overlap anyway. ``dedicated_thread=True`` has everything done on one thread, for environments
    that must stay on one, such as those with an OpenGL context.

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
        client_timeout: Seconds after which a client that gives no sign of life counts as gone, such
            as one that is stopped or whose network vanished, and within which a session must bring
            its first request; None waits for ever. A client that waits or computes is alive.
        session_timeout: Seconds without a request, or with an answer that the client does not read,
            after which a session is ended; None for never.
        insecure: Listen beyond this machine without asking for a token or for client certificates.
        partial_reset: Whether a ``VectorEnv`` honours ``options["reset_mask"]``; None knows it of
            Gymnasium's own ones, also under wrappers, and takes it that others do not.
        overlap: Lanes of a list, and sessions, may be at work at the same time; for environments
            that are safe to run on several threads of one process.
        dedicated_thread: Build, call and close the environment on one thread of its own.
        thread: The same in words: ``"any"``, ``"own"`` for that one thread, or ``"main"`` for the
            main thread, which must make and start the server and lend itself by :meth:`serve` or
            :meth:`wait`.

    Raises:
        ConfigurationError: Options that cannot work, or an environment that cannot be served.
        UnsupportedSpaceError: A space has no wire form. For callables, both come from
            :meth:`start`.
    """

    serves = "environment"
    service: ClassVar[type[EnvServiceCallbacks]] = EnvServiceCallbacks

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
        client_timeout: float | None = 30.0,
        session_timeout: float | None = None,
        insecure: bool = False,
        partial_reset: bool | None = None,
        overlap: bool = False,
        dedicated_thread: bool = False,
        thread: WhichThread | None = None,
    ) -> None:
        check_number("max_sessions", max_sessions, least=1, whole=True)
        which = _which_thread(thread, dedicated=dedicated_thread)
        if overlap and which != "any":
            raise ConfigurationError(
                f"overlap=True needs several threads and thread={which!r} allows one; choose one "
                "of them"
            )
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
        self._policy: ValidationPolicy = resolve_policy(validation)
        self._slots = SessionSlots(max_sessions)
        self._may_overlap = overlap
        self._source = EnvSource(
            env,
            per_session=max_sessions > 1,
            env_id=env_id,
            partial_reset=partial_reset,
            overlap=overlap,
        )
        self._thread: TaskThread | None = None
        if which == "own":
            self._thread = DedicatedThread("rlmesh_gym-env")
        elif which == "main":
            self._thread = LentThread()
        # Re-entrant: an env may stop its server, which closes the env.
        self._turn: AbstractContextManager[Any] = nullcontext() if overlap else threading.RLock()

    def open_link(self, path: str) -> None:
        """Serve sessions also over a bare Unix socket, for the process that started this server.

        Args:
            path: The socket, in a directory of this user's; it must not exist.

        Raises:
            OSError: It cannot be bound.
            StateError: The server was not started.
        """
        if self._host.address is None:
            raise StateError("a server has no link before start()")
        self._host.open_link(path)

    @property
    def uses_main_thread(self) -> bool:
        """Whether the main thread must lend itself, by :meth:`serve` or :meth:`wait`."""
        return isinstance(self._thread, LentThread)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped; see ``thread`` for what the main thread does then.

        Args:
            timeout: Seconds, None for ever; it must be that with ``thread="main"`` there.

        Returns:
            Whether it has stopped.

        Raises:
            ConfigurationError: A timeout, where the main thread cannot come back in time.
        """
        if isinstance(self._thread, LentThread) and self._thread.is_here:
            if timeout is not None:
                raise ConfigurationError(
                    'with thread="main", wait() runs the environment on this thread until the '
                    "server has stopped, so it takes no timeout"
                )
            self._thread.lend()
        return super().wait(timeout)

    def stop(self, drain: float = 0.0) -> None:
        """Stop listening, end all sessions and close the environment; may be called again.

        A call at work is waited for, up to ``close_timeout`` seconds. With ``thread="main"``, on
        that thread, what is at work and closing run here meanwhile.

        Args:
            drain: Seconds in which running sessions may go on.

        Raises:
            ConfigurationError: ``drain`` is no such number.
        """
        thread = self._thread
        is_inside = getattr(self._thread_state, "is_inside", False)
        if not isinstance(thread, LentThread) or not thread.is_here or is_inside:
            super().stop(drain)
            return
        # What is at work, and closing, needs this thread.
        stopping = threading.Thread(target=super().stop, args=(drain,), name="rlmesh_gym-stop")
        stopping.start()
        thread.lend()
        stopping.join()

    def _prepare(self) -> None:
        self._in_turn(self._source.prepare)

    def _drain(self) -> None:
        self._slots.close()

    def _close(self, timeout: float) -> bool:
        if self._slots.wait_idle(timeout):
            self._close_env()
            return True

        def close_later() -> None:
            self._slots.wait_idle(None)
            self._close_env()

        self._in_background(close_later)
        return False

    def _close_env(self) -> None:
        self._in_turn(self._source.close)
        if self._thread is not None:
            self._thread.close()

    def _idle_seconds(self) -> float:
        return self._slots.idle_seconds()

    def _in_turn(self, call: Callable[[], T]) -> T:
        """Run code of an environment where, and when, it may run."""
        if self._thread is not None:
            return self._thread.run(lambda: self._user_code(call))
        with self._turn:
            return self._user_code(call)

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

    def _join(
        self, requests: Iterator[interaction_pb2.JoinRequest], peer: JoinPeer
    ) -> Iterator[interaction_pb2.JoinResponse | bytes]:
        # A session's own environment is closed before its slot is free.
        lease = self._slots.take(peer, hold=self._source.is_per_session)
        try:
            try:
                with lease.call():
                    env = self._in_turn(self._source.take)
            except Exception as error:
                _logger.exception("no environment for %s", peer.name)
                raise Refused("INTERNAL", f"building the environment failed: {error}") from error
            try:
                # Lanes in processes wait for nobody.
                is_alone = env.has_own_processes and self._thread is None
                stream = EnvStream(
                    Operations(
                        env,
                        self._policy,
                        typed=ARRAYS in peer.capabilities,
                        renew=self._source.renew,
                    ),
                    lease,
                    run=self._user_code if is_alone else self._in_turn,
                    may_overlap=self._may_overlap,
                )
                yield from stream.answers(requests)
            finally:
                # The others' may be closed by now, and its thread ended: their lease is over.
                if self._source.is_per_session:
                    self._in_turn(partial(self._source.give_back, env))
        finally:
            lease.end(release=True)
