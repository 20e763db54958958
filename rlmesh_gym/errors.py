"""The exception tree. It knows neither gRPC nor protobuf, so every layer may raise from it.

::

    Error(gymnasium.error.Error)
    ├── ConfigurationError(ValueError)      wrong option, address or mode; raised before any I/O
    │   └── AutoresetError                  the endpoint cannot serve the autoreset mode asked for
    ├── CodecError(ValueError)              a value or message that does not fit; has ``path``
    │   └── UnsupportedSpaceError(TypeError)    no wire form for this space or dtype
    ├── ActionError(ValueError)             an action batch of the wrong shape, dtype or domain
    │   └── ActionTypeError(TypeError)          an action batch of the wrong type or dtype
    ├── UnsupportedCallError(NotImplementedError)   what cannot be done from afar, or copied
    │   └── UnsupportedAttributeError(AttributeError)   an attribute that is elsewhere
    ├── StateError(RuntimeError)            calls in the wrong order
    │   ├── ClosedError                     used after ``close()``
    │   ├── ResetNeededError                ``step`` on a lane that has no running episode
    │   ├── PendingCallError                a second call while one is in flight; has ``name``
    │   ├── NoPendingCallError              ``*_wait`` without ``*_async``; has ``name``
    │   └── ForkedError                     used in a forked child of the process that connected
    └── RemoteError                         the other end, or the way to it, failed
        ├── UnavailableError(ConnectionError)   nothing there, or lost
        │   └── SessionRefusedError             there, but it serves someone else
        ├── DeadlineError(TimeoutError)         no answer in time
        ├── ProtocolError                       the peer speaks something else, or broke the rules
        │   └── AuthenticationError             the token was refused
        ├── EnvError                            the environment or its server answered with an error
        └── ModelError                          the model or its server answered with an error

A message says what was done, what was expected, what came, and what to do. Every class survives
pickling with its attributes, since vector environments live in worker processes.
"""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import gymnasium.error

from rlmesh_gym.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ActionError",
    "ActionTypeError",
    "AuthenticationError",
    "AutoresetError",
    "ClosedError",
    "CodecError",
    "ConfigurationError",
    "DeadlineError",
    "EnvError",
    "Error",
    "ForkedError",
    "ModelError",
    "NoPendingCallError",
    "PendingCallError",
    "ProtocolError",
    "RemoteError",
    "ResetNeededError",
    "SessionRefusedError",
    "StateError",
    "UnavailableError",
    "UnsupportedAttributeError",
    "UnsupportedCallError",
    "UnsupportedSpaceError",
]


def _rebuild(cls: type[Error], message: str, state: Mapping[str, Any]) -> Error:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class Error(gymnasium.error.Error):
    """Base of everything that rlmesh-gym raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Callable[..., Error], tuple[Any, ...]]:
        # Keyword-only attributes would be lost by the default, which calls cls(*args).
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class ConfigurationError(Error, ValueError):
    """A wrong option, address or combination of both; nothing was sent."""


class AutoresetError(ConfigurationError):
    """The endpoint lacks what the autoreset mode asked for needs."""


class CodecError(Error, ValueError):
    """A value or a message does not fit its space or its own header.

    Attributes:
        path: Where in the value, such as ``$.camera[0]``.
    """

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


UNREADABLE = (CodecError, MemoryError)
"""What reading a peer's message may raise: it is malformed, or takes more than there is."""


def why_unreadable(error: Exception) -> str:
    """Say so in words; Python's own MemoryError has none."""
    return str(error) or "there is not enough memory for it"


class UnsupportedSpaceError(CodecError, TypeError):
    """The space, or its dtype, is not supported by the protocol."""


class ActionError(Error, ValueError):
    """An action batch that the action space does not admit; nothing was sent."""


class ActionTypeError(ActionError, TypeError):
    """Not a batch at all, or of a dtype that cannot be cast to the action space's."""


class UnsupportedCallError(Error, NotImplementedError):
    """The call needs what is not here, or would copy what is bound to its process."""


class UnsupportedAttributeError(UnsupportedCallError, AttributeError):
    """An attribute that lives at the endpoint; ``hasattr`` says False."""


class StateError(Error, RuntimeError):
    """The calls came in the wrong order."""


class ClosedError(StateError, gymnasium.error.ClosedEnvironmentError):
    """Used after ``close()``."""


class ResetNeededError(StateError, gymnasium.error.ResetNeeded):
    """``step`` on a lane without a running episode."""


class _CallError(StateError):
    def __init__(self, message: str, *, name: str) -> None:
        Error.__init__(self, message)  # Gymnasium's take the name by position.
        self.name = name


class PendingCallError(_CallError, gymnasium.error.AlreadyPendingCallError):
    """A call while another one is in flight.

    Attributes:
        name: The call in flight, such as ``"step"``.
    """


class NoPendingCallError(_CallError, gymnasium.error.NoAsyncCallError):
    """A ``*_wait`` without its ``*_async``.

    Attributes:
        name: The call that was waited for.
    """


class ForkedError(StateError):
    """A connection was used in a forked child; gRPC threads do not survive ``fork``."""


class RemoteError(Error):
    """The other end, or the way to it, failed.

    Attributes:
        endpoint: The address as the user knows it.
        operation: What was being done, such as ``"step"``.
    """

    def __init__(self, message: str, *, endpoint: str = "", operation: str = "") -> None:
        # Much of the text may be the peer's, and errors are mostly read in a terminal.
        super().__init__(printable(f"{endpoint}: {message}" if endpoint else message))
        self.endpoint = endpoint
        self.operation = operation


class UnavailableError(RemoteError, ConnectionError):
    """Nothing answers there, or the connection was lost."""


class SessionRefusedError(UnavailableError):
    """The endpoint is there but takes no further session."""


class DeadlineError(RemoteError, TimeoutError, multiprocessing.TimeoutError):
    """No answer in time. A late answer is dropped, never taken for the next one.

    Also a ``multiprocessing.TimeoutError``, which ``AsyncVectorEnv.step_wait`` raises.
    """


class ProtocolError(RemoteError):
    """The peer speaks another protocol or broke this one."""


class AuthenticationError(ProtocolError):
    """The endpoint refused the token."""


class EnvError(RemoteError):
    """The environment, or its server, answered with an error.

    Attributes:
        code: Name of the wire's code, such as ``"INTERNAL"``.
        is_recoverable: The session goes on as if the request had not been made.
        debug_info: What the server adds, such as a traceback; may be empty.
        lanes: Lanes of the request, as the user numbers them; empty when all.
        interrupted_episodes: Ids of episodes that the failure cut off.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        operation: str = "",
        code: str = "UNSPECIFIED",
        is_recoverable: bool = False,
        debug_info: str = "",
        lanes: Sequence[int] = (),
        interrupted_episodes: Sequence[str] = (),
    ) -> None:
        super().__init__(message, endpoint=endpoint, operation=operation)
        self.code = code
        self.is_recoverable = is_recoverable
        self.debug_info = debug_info
        self.lanes: tuple[int, ...] = tuple(lanes)
        self.interrupted_episodes: tuple[str, ...] = tuple(interrupted_episodes)


class ModelError(RemoteError):
    """The model, or its server, answered with an error.

    Attributes:
        code: Name of the wire's code, such as ``"INVALID_REQUEST"``.
        is_recoverable: The policy may be used again.
        debug_info: What the server adds; may be empty.
        env_id: The env id under which the adapter was resolved.
        episode_ids: Episodes of the rows in the request.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str = "",
        operation: str = "",
        code: str = "UNSPECIFIED",
        is_recoverable: bool = False,
        debug_info: str = "",
        env_id: str = "",
        episode_ids: Sequence[str] = (),
    ) -> None:
        super().__init__(message, endpoint=endpoint, operation=operation)
        self.code = code
        self.is_recoverable = is_recoverable
        self.debug_info = debug_info
        self.env_id = env_id
        self.episode_ids: tuple[str, ...] = tuple(episode_ids)
