"""Hooks into a run: one base class, a composite, and the table that makes unused hooks free.

Most hooks only watch: what they raise is logged, and the run goes on as if they were not there.
The two transforms change what the ends get, so what they raise ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.runtime.hooks import events
    from rlmesh_gym.runtime.hooks.events import LogEvent
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot


_logger = logging.getLogger(__name__)

E = TypeVar("E")


class RuntimeHooks:
    """Base class: every method does nothing. Override what is of interest.

    All methods but ``on_telemetry`` run on the thread of ``RuntimeDriver.run``, between its calls;
    a slow one makes the run slow and changes nothing else. ``on_telemetry`` runs on the ticker's
    thread for window snapshots, also while a call hangs, and on the run's thread for the one of
    the session.

    A hook that raises is logged, with a traceback the first time, and called again for the next
    event. ``transform_observation`` and ``transform_action`` are the exception: what they raise
    ends the run. So does a ``KeyboardInterrupt`` or ``SystemExit`` in any hook, in good order.
    """

    def env_connected(self, event: events.EnvConnected) -> None:
        """An env endpoint answered; once per endpoint."""

    def model_connected(self, event: events.ModelConnected) -> None:
        """The model has set up the environment."""

    def session_started(self, event: events.SessionStarted) -> None:
        """Both ends are connected."""

    def episode_started(self, event: events.EpisodeStarted) -> None:
        """A lane holds the first observation of an episode that counts."""

    def observation_emitted(self, event: events.ObservationEmitted) -> None:
        """Observations go to the model; each one once, and none that the model does not get."""

    def action_received(self, event: events.ActionReceived) -> None:
        """The model answered."""

    def step_completed(self, event: events.StepCompleted) -> None:
        """One vector step is done."""

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        """An episode that counts is over."""

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        """Timings: of each window while the run goes on, of the whole session once at its end."""

    def session_ended(self, event: events.SessionEnded) -> None:
        """The run ended as planned or was cancelled; the last event."""

    def session_failed(self, event: events.SessionFailed) -> None:
        """The run failed; the last event."""

    def log(self, event: events.LogEvent) -> None:
        """Something that a person may want to know."""

    def transform_observation(self, event: events.ObservationTransform) -> Any:
        """Change observations before the model gets them.

        Called for the rows that the model gets: those planned now and, where the model takes
        history, those replayed over.

        Returns:
            A batch of the same space in vector form, one row per lane of the event; None leaves
            the observations as they came.
        """
        del event

    def transform_action(self, event: events.ActionTransform) -> Any:
        """Change actions before the env gets them; called once per vector step.

        Returns:
            A batch of the same space in vector form, one row per lane of the event; None leaves
            the actions as they came.
        """
        del event


TRANSFORMS = ("transform_observation", "transform_action")
OBSERVERS = tuple(
    name for name in vars(RuntimeHooks) if not name.startswith("_") and name not in TRANSFORMS
)


class CompositeHooks(RuntimeHooks):
    """Several hooks as one, called in order. Transforms chain; a failing hook spares the others.

    Args:
        hooks: The parts; composites among them are taken apart.
    """

    def __init__(self, hooks: Iterable[RuntimeHooks]) -> None:
        self.hooks: tuple[RuntimeHooks, ...] = _flatten(hooks)


def _flatten(hooks: Iterable[RuntimeHooks]) -> tuple[RuntimeHooks, ...]:
    parts = (hook.hooks if isinstance(hook, CompositeHooks) else (hook,) for hook in hooks)
    return tuple(chain.from_iterable(parts))


def _overridden(hook: RuntimeHooks, name: str) -> Callable[[Any], Any] | None:
    method = getattr(hook, name, None)
    # Bound methods are new at each access; the functions beneath them are what can be compared.
    if method is None or getattr(method, "__func__", None) is getattr(RuntimeHooks, name):
        return None
    return method  # type: ignore[no-any-return]


def as_hooks(hooks: RuntimeHooks | Iterable[RuntimeHooks] | None) -> tuple[RuntimeHooks, ...]:
    """The hooks of a run one by one; one is whatever has a method of the right name."""
    given: list[Any] = [] if hooks is None else [hooks]
    if not _is_hook(hooks) and isinstance(hooks, Iterable) and not isinstance(hooks, (str, bytes)):
        given = list(hooks)
    for hook in given:
        if not _is_hook(hook):
            advice = "pass an instance of the class" if isinstance(hook, type) else "it has none"
            raise ConfigurationError(
                f"hooks have methods such as {OBSERVERS[3]} or {TRANSFORMS[0]}, got {hook!r}; "
                f"{advice}"
            )
    return _flatten(given)


def _is_hook(candidate: Any) -> bool:
    return not isinstance(candidate, type) and any(
        callable(getattr(candidate, name, None)) for name in (*OBSERVERS, *TRANSFORMS)
    )


class HookTable:
    """Which hooks listen to which event, looked up once when a run starts.

    The driver asks ``listens`` before it makes an event, so an event without listeners costs one
    dictionary look-up. ``make_log`` makes the event for the ``log`` hook.
    """

    def __init__(
        self, hooks: Sequence[RuntimeHooks], make_log: Callable[[int, str], LogEvent]
    ) -> None:
        self._make_log = make_log
        self._failed: set[tuple[int, str]] = set()
        self._table: dict[str, list[Callable[[Any], Any]]] = {}
        for name in (*OBSERVERS, *TRANSFORMS):
            found = [_overridden(hook, name) for hook in hooks]
            if listeners := [method for method in found if method is not None]:
                self._table[name] = listeners

    def listens(self, name: str) -> bool:
        """Whether any hook overrides this method."""
        return name in self._table

    def emit(self, name: str, event: Any) -> None:
        """Call every listener; what one raises is logged.

        An interrupt or ``sys.exit`` in one is raised when the others have heard of the event.
        """
        leaving: BaseException | None = None
        for position, method in enumerate(self._table.get(name, ())):
            try:
                method(event)
            except Exception as error:  # noqa: PERF203 - one hook must not spoil the next
                self._report(name, position, method, error)
            except BaseException as error:
                leaving = leaving or error
        if leaving is not None:
            raise leaving

    def log(self, level: int, message: str) -> None:
        """Log, and tell the ``log`` hooks."""
        _logger.log(level, "%s", message)
        if self.listens("log"):
            self.emit("log", self._make_log(level, message))

    def transform(self, name: str, event: E, value: Any, rebuild: Callable[[E, Any], E]) -> Any:
        """Chain a transform through every hook that overrides it; what one raises goes through.

        ``rebuild`` makes the next hook's event from the last one and a changed value; ``value`` is
        returned if no hook changes anything.
        """
        for method in self._table.get(name, ()):
            changed = method(event)
            if changed is not None:
                value = changed
                event = rebuild(event, changed)
        return value

    def _report(
        self, name: str, position: int, method: Callable[[Any], Any], error: Exception
    ) -> None:
        first = (position, name) not in self._failed
        self._failed.add((position, name))
        owner = type(getattr(method, "__self__", method)).__name__
        level, shown = (logging.ERROR, error) if first else (logging.DEBUG, None)
        _logger.log(level, "hook %s.%s raised; the run goes on", owner, name, exc_info=shown)
        if first and name != "log" and self.listens("log"):
            message = f"hook {owner}.{name} raised {type(error).__name__}: {error}"
            self.emit("log", self._make_log(logging.ERROR, message))
