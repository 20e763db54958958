"""The life of a server, whatever it serves: options, start, wait, stop, idle watch, shutdown."""

from __future__ import annotations

import logging
import math
import numbers
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn

from rlmesh_gym.errors import ConfigurationError, StateError, UnsupportedCallError
from rlmesh_gym.rpc import GrpcHost, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from typing_extensions import Self

    from rlmesh_gym.rpc import EnvServiceCallbacks, JoinPeer, ModelServiceCallbacks, TLSLike

    T = TypeVar("T")


_logger = logging.getLogger(__name__)
_SHUTDOWN_VARIABLE = "RLMESH_ALLOW_REMOTE_SHUTDOWN"


def check_number(
    name: str, value: object, *, least: float = 0, above: float | None = None, whole: bool = False
) -> None:
    """Refuse an option that is no number of at least ``least``, or else ``above`` that one."""
    kind = numbers.Integral if whole else numbers.Real
    fits = False
    if isinstance(value, kind) and not isinstance(value, bool):
        number = float(value)
        fits = math.isfinite(number) and (number >= least if above is None else number > above)
    if not fits:
        what = "a whole number" if whole else "a number"
        bound = f"of at least {least:g}" if above is None else f"above {above:g}"
        raise ConfigurationError(f"{name} must be {what} {bound}, got {value!r}")


class Server(ABC):
    """What env servers and model servers have in common.

    A subclass says what is prepared before it listens, how it answers, and how it is closed. Its
    verbs may be called from any thread, also from the code that it serves: ``stop`` then returns at
    once, and the rest follows when that code returns.
    """

    serves: ClassVar[str]
    """What stands behind the address, such as ``"model"``, for messages."""
    service: ClassVar[type[EnvServiceCallbacks | ModelServiceCallbacks]]
    """Which of the wire's services it speaks."""

    def __init__(
        self,
        address: str | None,
        *,
        token: str | None,
        tls: TLSLike,
        allow_remote_shutdown: bool | None,
        idle_timeout: float | None,
        drain_timeout: float,
        close_timeout: float,
        client_timeout: float | None,
        session_timeout: float | None,
        insecure: bool,
    ) -> None:
        if idle_timeout is not None:
            check_number("idle_timeout", idle_timeout, above=0)
        for name, seconds in (
            ("client_timeout", client_timeout),
            ("session_timeout", session_timeout),
        ):
            if seconds is not None:
                check_number(name, seconds, above=0)
        check_number("drain_timeout", drain_timeout)
        check_number("close_timeout", close_timeout)
        if allow_remote_shutdown is None:
            allow_remote_shutdown = os.environ.get(_SHUTDOWN_VARIABLE, "").lower() in {"1", "true"}
        self._allow_remote_shutdown = allow_remote_shutdown
        self._idle_timeout = idle_timeout
        self._drain_timeout = drain_timeout
        self._close_timeout = close_timeout
        callbacks = self.service(self._handshake, self._join, self._shutdown)
        patience = Patience(client_timeout, session_timeout)
        self._host = GrpcHost(
            callbacks, address, token=token, tls=tls, insecure=insecure, patience=patience
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._thread_state = threading.local()

    @property
    def uses_main_thread(self) -> bool:
        """Whether the main thread must lend itself, by :meth:`serve` or :meth:`wait`."""
        return False

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
        """Prepare what is served and listen, without blocking. Idempotent.

        A start that fails closes what is served.

        Returns:
            The address.

        Raises:
            ConfigurationError: It cannot be served, or the address is in use or cannot be bound.
            StateError: The server was stopped; make a new one.
        """
        with self._lock:
            if self._stopping.is_set():
                raise StateError("a server starts once, and this one was stopped; make a new one")
            if self._host.address is not None:
                return self._host.address
            try:
                self._prepare()
                address = self._host.start()
            except BaseException:
                self._stopping.set()
                self._finish(0.0)
                raise
        _logger.info("serving the %s at %s", self.serves, address)
        if self._idle_timeout is not None:
            self._in_background(self._watch_idle, self._idle_timeout)
        return address

    def serve(self) -> None:
        """Start, if not done yet, and block until the server is stopped; an interrupt stops it."""
        self.start()
        try:
            self.wait()
        finally:
            self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped and what it served is closed. A signal breaks the wait.

        Args:
            timeout: Seconds; None for ever.

        Returns:
            Whether it has stopped. What was still at work after ``close_timeout`` is not waited
            for; it is closed when its call returns.
        """
        return self._stopped.wait(timeout)

    def stop(self, drain: float = 0.0) -> None:
        """Stop listening, end all sessions and close what is served; may be called again.

        A call at work is waited for, up to ``close_timeout`` seconds. Who calls while another
        thread stops the server waits for it.

        Args:
            drain: Seconds in which running sessions may go on.

        Raises:
            ConfigurationError: ``drain`` is no such number.
        """
        check_number("drain", drain)
        is_inside = getattr(self._thread_state, "is_inside", False)
        with self._lock:
            is_first = not self._stopping.is_set()
            self._stopping.set()
        if is_first and is_inside:  # A call cannot wait for its own end.
            self._in_background(self._finish, drain)
        elif is_first:
            self._finish(drain)
        elif not is_inside:
            self._stopped.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._stopping.is_set():
            state = "stopped"
        else:
            state = "not started" if self._host.address is None else f"at {self._host.address}"
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedCallError(
            f"{self!r} is bound to its process and cannot be copied or pickled; pickle what it "
            "serves, and make a server of it there"
        )

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready what is served; the server listens afterwards."""

    @abstractmethod
    def _drain(self) -> None:
        """Take nothing new."""

    @abstractmethod
    def _close(self, timeout: float) -> bool:
        """Close what is served, once its last call has returned.

        False when that took longer than ``timeout`` seconds; closing follows when it returns.
        """

    @abstractmethod
    def _idle_seconds(self) -> float:
        """Return how long nothing has been at work."""

    def _user_code(self, call: Callable[[], T]) -> T:
        """Run code of whoever made the server on this thread; it may call ``stop``."""
        state = self._thread_state
        before = getattr(state, "is_inside", False)
        state.is_inside = True
        try:
            return call()
        finally:
            state.is_inside = before

    def _finish(self, drain: float) -> None:
        try:
            self._drain()
            self._host.stop(drain)
            if not self._close(self._close_timeout):
                _logger.warning(
                    "a call of the %s is still at work; it is closed when that returns", self.serves
                )
        finally:
            self._stopped.set()

    @abstractmethod
    def _handshake(self, request: Any) -> Any:
        """Answer a client's handshake."""

    @abstractmethod
    def _join(self, requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        """Serve one session."""

    def _shutdown(self, request: Any) -> Any:
        """Decide on a client's wish to stop the server."""
        response = self.service.wire.messages.ShutdownResponse()
        if not self._allow_remote_shutdown:
            response.base.accepted = False
            response.base.message = f"remote shutdown is disabled for this {self.serves} endpoint"
            return response
        reason = request.base.reason
        _logger.info("a client stops the %s server: %s", self.serves, reason or "no reason given")
        self._in_background(self.stop, self._drain_timeout)  # A call cannot wait for its own end.
        response.base.accepted = True
        response.base.message = f"shutdown accepted: {reason}" if reason else "shutdown accepted"
        return response

    def _watch_idle(self, idle_timeout: float) -> None:
        remaining = idle_timeout
        while not self._stopping.wait(remaining):
            remaining = idle_timeout - self._idle_seconds()
            if remaining <= 0:
                _logger.info("stopping after %g s without a request", idle_timeout)
                self.stop()
                return

    def _in_background(self, target: Any, *args: float) -> None:
        threading.Thread(target=target, args=args, name="rlmesh_gym-life", daemon=True).start()
