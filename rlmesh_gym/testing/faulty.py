"""Endpoints that fail on purpose, at random but the same way for the same seed."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import ModelHandler
from rlmesh_gym.rpc import Refused
from rlmesh_gym.server import EnvServer, ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from rlmesh_gym.rpc import JoinPeer
    from rlmesh_gym.server.lifecycle import Server


FaultKind: TypeAlias = Literal["delay", "drop", "wrong", "error", "crash"]


@dataclass(frozen=True)
class Fault:
    """What was done to an answer.

    Attributes:
        kind: Which of the faults.
        operation: What was asked for, such as ``"step"``.
        answer: Number of the answer, from 0, all sessions together.
    """

    kind: FaultKind
    operation: str
    answer: int


class FaultyEndpoint:
    """A real endpoint of this process whose answers are disturbed with given probabilities.

    For tests of whatever must live with endpoints that fail. Each answer meets one fault at most;
    which one follows from ``seed`` and the number of the answer, so that the same requests in the
    same order fail the same way. Handshakes are never disturbed.

    Args:
        served: What :class:`~rlmesh_gym.server.EnvServer` takes, or a
            :class:`~rlmesh_gym.server.ModelHandler`. A callable is one that builds an environment,
            unless ``model`` is set.
        seed: Of the faults.
        delay: Probability that an answer comes ``delay_seconds`` later.
        drop: That it never comes: the client waits until its deadline, and for longer before it may
            reset, since for it the call is still at work.
        wrong: That it cannot be taken for an answer: without its content, or cut short.
        error: That it is an error of the environment, which ends the session, or of the model.
        crash: That the connection is cut instead, as when the process had died. The next session
            begins anew.
        delay_seconds: See ``delay``.
        model: Serve ``served`` as a model.
        address: Where to listen; by default a free port of 127.0.0.1.
        **options: For the server.

    Raises:
        ConfigurationError: Probabilities that are none, or that together exceed 1.

    Example:
        >>> import gymnasium, rlmesh_gym
        >>> make = lambda: gymnasium.make("CartPole-v1")
        >>> with FaultyEndpoint(make, seed=3, crash=0.05) as endpoint:
        ...     envs = rlmesh_gym.RemoteVectorEnv(
        ...         endpoint.address, autoreset_mode="next_step", on_failure="restart"
        ...     )
        ...     _ = envs.reset(seed=1)
        ...     for _ in range(100):
        ...         _ = envs.step(envs.action_space.sample())
        ...     envs.close()
        >>> {fault.kind for fault in endpoint.faults}
        {'crash'}
    """

    def __init__(
        self,
        served: Any,
        *,
        seed: int = 0,
        delay: float = 0.0,
        drop: float = 0.0,
        wrong: float = 0.0,
        error: float = 0.0,
        crash: float = 0.0,
        delay_seconds: float = 0.05,
        model: bool = False,
        address: str | None = None,
        **options: Any,
    ) -> None:
        chances: dict[FaultKind, float] = {
            "delay": delay,
            "drop": drop,
            "wrong": wrong,
            "error": error,
            "crash": crash,
        }
        for name, chance in chances.items():
            if not 0 <= chance <= 1:
                raise ConfigurationError(f"{name} must be a probability, got {chance!r}")
        if sum(chances.values()) > 1:
            raise ConfigurationError(f"the probabilities {chances} exceed 1 together")
        self._chances = chances
        self._delay_seconds = delay_seconds
        self._random = random.Random(seed)  # noqa: S311 - faults need no secrecy
        self._lock = threading.Lock()
        self._answers = 0
        self.faults: list[Fault] = []
        """What was done so far, in order."""
        self._is_model = model or isinstance(served, ModelHandler)
        base = ModelServer if self._is_model else EnvServer
        self._server: Server = _disturbed(base, self)(served, address, **options)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._server.address

    def start(self) -> str:
        """Listen; return the address."""
        return self._server.start()

    def stop(self) -> None:
        """Stop listening, end all sessions and close what is served."""
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def disturb(self, answers: Iterator[Any], parse: Callable[[bytes], Any]) -> Iterator[Any]:
        """Pass answers on, or not; for the server, which calls it once for each session."""
        try:
            for answer in answers:
                response = parse(answer) if isinstance(answer, bytes) else answer
                kind, variant = self._draw(response.WhichOneof("kind") or "")
                if kind == "drop":
                    continue
                if kind == "crash":
                    raise Refused("UNAVAILABLE", "crashed, as it was asked to")
                if kind == "delay":
                    time.sleep(self._delay_seconds)
                elif kind == "wrong":
                    answer = _spoil(response, variant)  # noqa: PLW2901
                elif kind == "error":
                    answer = _fail(response)  # noqa: PLW2901
                yield answer
                if kind == "error" and not self._is_model:
                    return  # Model servers go on after any error.
        finally:
            close = getattr(answers, "close", None)
            if close is not None:
                close()

    def _draw(self, operation: str) -> tuple[FaultKind | None, float]:
        """Return the fault of the next answer, and a number for how it looks."""
        with self._lock:
            number, self._answers = self._answers, self._answers + 1
            left, variant = self._random.random(), self._random.random()
            for kind, chance in self._chances.items():
                left -= chance
                if left < 0:
                    self.faults.append(Fault(kind, operation, number))
                    return kind, variant
        return None, variant


def _spoil(response: Any, variant: float) -> Any:
    """Make an answer into one that no request can have."""
    spoilt = type(response)()
    spoilt.CopyFrom(response)
    kind = response.WhichOneof("kind")
    content: Any = getattr(spoilt, kind) if kind else None
    batch = getattr(content, "observation", None)
    if batch is None and getattr(content, "actions", None):
        batch = content.actions[0]
    if variant < 1 / 2 and batch is not None and len(batch.leaves):
        batch.leaves[0] = batch.leaves[0][:-1]
    elif kind:
        spoilt.ClearField(kind)
    return spoilt


def _fail(response: Any) -> Any:
    failed = type(response)(request_id=response.request_id)
    failed.error.message = "failed, as it was asked to"
    failed.error.code = next(
        value.number
        for value in failed.error.DESCRIPTOR.fields_by_name["code"].enum_type.values
        if value.name.endswith("_INTERNAL")
    )
    failed.error.is_recoverable = False
    return failed


def _disturbed(base: Any, faulty: FaultyEndpoint) -> Any:
    """Return a server class like ``base`` whose answers pass through the faults."""
    parse = base.service.wire.parse

    class Disturbed(base):  # type: ignore[misc]
        def _join(self, requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
            return faulty.disturb(super()._join(requests, peer), parse)

    return Disturbed
