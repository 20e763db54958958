"""RuntimeDriver: joins an environment and a model for one run, and sees it to its end.

The loop itself stands in :mod:`rlmesh_gym.runtime.loop`. Here is what surrounds it: connecting,
cancelling, letting go within bounds, and exactly one report on every way out.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uuid6

from rlmesh_gym.codec import same_space
from rlmesh_gym.errors import ConfigurationError, Error
from rlmesh_gym.runtime.calls import CancelledRunError, ThreadCall, Waiter
from rlmesh_gym.runtime.context import RunContext, TimedCalls
from rlmesh_gym.runtime.ends.adapters import as_runtime_envs, as_runtime_model
from rlmesh_gym.runtime.ends.endpoint_lanes import EndpointLanes, ResetWay
from rlmesh_gym.runtime.ends.lane_book import LaneBook
from rlmesh_gym.runtime.ends.predictor import Predictor
from rlmesh_gym.runtime.ends.rows import RowStore
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.hooks.table import HookTable, as_hooks
from rlmesh_gym.runtime.loop import RunLoop
from rlmesh_gym.runtime.report.bottleneck import TimeShares
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport
from rlmesh_gym.runtime.telemetry import Telemetry, TelemetryTicker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlmesh_gym.runtime.calls import EventLike
    from rlmesh_gym.runtime.ends.protocols import ModelNeeds, RuntimeEnv, RuntimeModel
    from rlmesh_gym.runtime.hooks.table import RuntimeHooks
    from rlmesh_gym.runtime.report.runtime_report import EpisodeSummary, TelemetrySnapshot
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec

__all__ = ["RuntimeDriver"]

logger = logging.getLogger(__name__)


class RuntimeDriver:
    """Runs a model in an environment: reset, then predict and step, until the spec is fulfilled.

    The driver mints the episode ids, decides which lane needs a plan, replays chunks lane by lane
    and keeps the book of episodes; what observations and actions hold it never looks at. It works
    for any number of lanes and endpoints in all three autoreset modes.

    Args:
        spec: What to do.
        env: The environment, or a list of endpoints of one environment: an address, an
            :class:`~rlmesh_gym.rpc.EnvSession`, a vector env or a single one, or any
            :class:`~rlmesh_gym.runtime.ends.protocols.RuntimeEnv`.
        model: An address, a :class:`~rlmesh_gym.rpc.ModelSession`, a
            :class:`~rlmesh_gym.RemotePolicy` for its connection, a handler, a function, or any
            :class:`~rlmesh_gym.runtime.ends.protocols.RuntimeModel`.
        hooks: Who watches and transforms; one, several, or none.

    Example:
        >>> import gymnasium as gym
        >>> from rlmesh_gym.runtime import RuntimeSessionSpec
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        >>> driver = RuntimeDriver(
        ...     RuntimeSessionSpec(max_episodes=3, base_seed=7),
        ...     envs,
        ...     lambda observations: (observations[:, 2] > 0).astype(int),
        ... )
        >>> report = driver.run()
        >>> len(report.episodes), report.stop_reason
        (3, 'max_episodes')
        >>> envs.close()
    """

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        env: Any,
        model: Any,
        hooks: RuntimeHooks | Iterable[RuntimeHooks] | None = None,
    ) -> None:
        self.spec = spec
        self.envs = as_runtime_envs(env)
        self.model = as_runtime_model(model)
        self.hooks = as_hooks(hooks)

    def run(
        self,
        cancellation: EventLike | None = None,
        reason: str | Callable[[], str | None] | None = None,
    ) -> RuntimeReport:
        """Run to the end.

        Every way out releases the model if it was set up and closes what the run opened, each
        within ``limits.close_timeout``, then delivers one telemetry snapshot of the session and
        ``session_ended`` or ``session_failed``.

        Args:
            cancellation: Ends the run when set, also while a call to a remote end hangs: a
                :class:`~rlmesh_gym.runtime.calls.Cancellation` or a ``threading.Event``. A call
                into this process is waited for.
            reason: Why, for the report; asked for after the cancellation if it is callable. Else
                the cancellation's own ``reason`` is taken.

        Returns:
            The report. A cancelled run returns one too, with the episodes it completed and, marked
            ``interrupted``, those it cut off.

        Raises:
            ConfigurationError: The spec is wrong, or does not go with the endpoints.
            Error: An end failed; the first error, whatever closing may add.
            Exception: A transform, or an end in this process, raised; it comes through as it is.
            KeyboardInterrupt: Comes through after the same orderly end.

        Whatever a run raises carries the report as its attribute ``report``.
        """
        if cancellation is not None and not callable(getattr(cancellation, "wait", None)):
            message = f"cancellation must be a Cancellation or an Event, got {cancellation!r}"
            raise ConfigurationError(message)
        return _Run(self.spec, self.envs, self.model, self.hooks).run(cancellation, reason)


class _Run:
    """One run of a driver, with all that it must let go of."""

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        envs: Sequence[RuntimeEnv],
        model: RuntimeModel,
        hooks: Sequence[RuntimeHooks],
    ) -> None:
        self.spec = spec
        self.envs = envs
        self.model = model
        self.run_id = str(uuid6.uuid7())
        self.env_id = ""
        self.hooks = HookTable(hooks, self._log_event)
        self.telemetry = Telemetry(spec.session_id, run_id=self.run_id)
        self.shares = TimeShares()
        self.parts: list[EndpointLanes] = []
        self.book: LaneBook | None = None
        self.loop: RunLoop | None = None
        self.ticker: TelemetryTicker | None = None
        self.is_valid = False
        self.is_resolving = False
        self.stop_reason = "failed"
        self.started_at = time.time()
        self.began = time.monotonic()
        self.loop_duration = 0.0

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.spec.session_id, self.run_id, self.env_id

    def _log_event(self, level: int, message: str) -> events.LogEvent:
        return events.LogEvent(*self.identity, level=level, message=message)

    def run(self, cancellation: EventLike | None, reason: Any) -> RuntimeReport:
        failure: BaseException | None = None
        with Waiter(cancellation) as waiter:
            try:
                self._play(waiter)
            except CancelledRunError:
                self.stop_reason = _cancel_text(cancellation, reason)
            except BaseException as error:
                failure = error
        return self._settle(failure)

    def _settle(self, failure: BaseException | None) -> RuntimeReport:
        """Let go, report, and tell the hooks; each of it also where Ctrl-C ended what was before.

        Returns:
            The report, where nothing failed.
        """
        first = failure

        def attempt(action: Callable[..., object], *arguments: Any) -> None:
            nonlocal first
            try:
                action(*arguments)
            except BaseException as error:
                # No Exception comes up to here. This is a Ctrl-C or a hook that calls sys.exit.
                first = first or error

        interrupted = self.loop.interrupted() if self.loop is not None else []
        for summary in interrupted:
            attempt(self._emit_interrupted, summary)
        for what, action in self._releases():
            attempt(self._quietly, what, action)
        telemetry = self.telemetry.session_snapshot()
        attempt(self.hooks.emit, "on_telemetry", telemetry)
        report = self._report(first, interrupted, telemetry)
        if first is None:
            ended = events.SessionEnded(*self.identity, stop_reason=self.stop_reason, report=report)
            attempt(self.hooks.emit, "session_ended", ended)
        else:
            failed = events.SessionFailed(*self.identity, error=first, report=report)
            attempt(self.hooks.emit, "session_failed", failed)
        if first is None:
            return report
        with contextlib.suppress(AttributeError):  # An exception with slots cannot carry it.
            first.report = report  # type: ignore[attr-defined]
        raise first

    def _emit_interrupted(self, summary: EpisodeSummary) -> None:
        if self.loop is not None:
            self.loop.emit_completed(summary)

    def _play(self, waiter: Waiter) -> None:
        self.spec = spec = self.spec.validate()
        self.is_valid = True
        waiter.check()
        if spec.limits.telemetry_window > 0 and self.hooks.listens("on_telemetry"):
            self.ticker = TelemetryTicker(
                self.telemetry, spec.limits.telemetry_window, self._deliver_window
            )
            self.ticker.start()
        self._connect(waiter)
        book = LaneBook(spec, self._lane_endpoints(), self.env_id, self.shares)
        self.book = book
        needs = self._resolve(waiter)
        calls = TimedCalls(waiter, self.telemetry, self.shares)
        context = RunContext(spec, book, self.hooks, calls, self.identity)
        observations = RowStore(book.num_lanes)
        first = self.parts[0].env
        predictor = Predictor(
            context,
            self.model,
            observations,
            (first.observation_format, first.action_format),
            wants_history=needs.wants_history,
            asks_apart=self._asks_apart(),
        )
        self.loop = RunLoop(context, self.parts, predictor, observations)
        self._emit_started()
        began = time.monotonic()
        try:
            self.stop_reason = self.loop.run()
        finally:
            # Connecting and setting up are no part of it.
            self.loop_duration = time.monotonic() - began

    # Connecting

    def _connect(self, waiter: Waiter) -> None:
        first = 0
        if not self.envs:
            raise ConfigurationError("a run needs at least one env endpoint, got none")
        for env in self.envs:
            self._connect_to(env, waiter)
            contract = env.contract
            self.env_id = self.telemetry.env_id = self.env_id or contract.env_id
            part = EndpointLanes(env, first, self.spec)
            first += contract.num_envs
            self.parts.append(part)
            if self.hooks.listens("env_connected"):
                connected = events.EnvConnected(
                    *self.identity,
                    endpoint=env.endpoint,
                    lanes=tuple(part.lanes),
                    autoreset_mode=part.mode.name,
                    capabilities=dict(env.capabilities),
                    contract=contract,
                )
                self.hooks.emit("env_connected", connected)
        self._check_spaces()

    def _connect_to(self, end: RuntimeEnv | RuntimeModel, waiter: Waiter) -> None:
        waiter.check()
        limits = self.spec.limits
        if waiter.can_be_cancelled:
            # Who does not answer is waited for elsewhere, and closed if the answer comes too late.
            connecting = ThreadCall(
                partial(end.connect, limits), partial(end.close, limits.close_timeout)
            )
            waiter.wait(connecting, None)
        else:
            end.connect(limits)

    def _check_spaces(self) -> None:
        first = self.parts[0].env
        for part in self.parts[1:]:
            for name in ("single_observation_space", "single_action_space"):
                expected, found = getattr(first.contract, name), getattr(part.env.contract, name)
                if not same_space(expected, found):
                    message = (
                        f"all endpoints of a run serve the same spaces: {name} is {expected} at "
                        f"{first.endpoint} and {found} at {part.env.endpoint}"
                    )
                    raise ConfigurationError(message)

    def _lane_endpoints(self) -> list[str]:
        return [part.env.endpoint for part in self.parts for _ in part.lanes]

    def _resolve(self, waiter: Waiter) -> ModelNeeds:
        spec = self.spec
        self._connect_to(self.model, waiter)
        self.is_resolving = True
        # The route is new in every run: releasing it must not take another client's adapter away.
        call = self.model.resolve(
            self.parts[0].env, self.run_id, spec.session_id, spec.execution_horizon
        )
        needs = waiter.wait(call, spec.limits.model_resolve_timeout)
        if self.hooks.listens("model_connected"):
            connected = events.ModelConnected(
                *self.identity,
                endpoint=self.model.endpoint,
                execution_horizon=spec.execution_horizon,
                native_chunk=needs.native_chunk,
                wants_history=needs.wants_history,
            )
            self.hooks.emit("model_connected", connected)
        return needs

    def _asks_apart(self) -> bool:
        chosen = self.spec.predict_rows
        if chosen != "auto":
            return chosen == "apart"
        if self.model.batches_lanes:
            return False
        has_single_lanes = all(part.way is ResetWay.LANES for part in self.parts)
        return self.spec.execution_horizon > 1 or has_single_lanes

    def _emit_started(self) -> None:
        if not self.hooks.listens("session_started"):
            return
        spec = self.spec
        started = events.SessionStarted(
            *self.identity,
            num_envs=len(self._lane_endpoints()),
            autoreset_mode=self._mode(),
            env_endpoints=self._env_endpoints(),
            model_endpoint=self.model.endpoint,
            base_seed=spec.base_seed,
            execution_horizon=spec.execution_horizon,
            max_episodes=spec.max_episodes,
            max_steps=spec.max_steps,
        )
        self.hooks.emit("session_started", started)

    def _mode(self) -> str:
        return "+".join(dict.fromkeys(part.mode.name for part in self.parts))

    def _env_endpoints(self) -> tuple[str, ...]:
        return tuple(env.endpoint for env in self.envs)

    # Letting go

    def _deliver_window(self, snapshot: TelemetrySnapshot) -> None:
        self.hooks.emit("on_telemetry", snapshot)

    def _releases(self) -> list[tuple[str, Callable[[], None]]]:
        """Return what must be done to let go of everything, with a name for each."""
        releases: list[tuple[str, Callable[[], None]]] = []
        if not self.is_valid:
            return releases  # Nothing was opened, and the limits may be none.
        timeout = self.spec.limits.close_timeout
        if self.ticker is not None:
            releases.append(("stopping the telemetry", self._stop_ticker))
        if self.is_resolving:
            releases.append(("releasing the model", self._release))
        releases.append(("closing the model", partial(self.model.close, timeout)))
        releases += [(f"closing {env.endpoint}", partial(env.close, timeout)) for env in self.envs]
        return releases

    def _stop_ticker(self) -> None:
        if self.ticker is not None and not self.ticker.stop(self.spec.limits.close_timeout):
            self.hooks.log(logging.WARNING, "an on_telemetry hook is still at work; left behind")

    def _release(self) -> None:
        self.model.release(self.stop_reason).result(self.spec.limits.close_timeout)

    def _quietly(self, what: str, action: Callable[[], None]) -> None:
        """Do one step of letting go; its failure is logged and never hides an earlier error."""
        try:
            action()
        except Error as error:
            self.hooks.log(logging.WARNING, f"{what} failed: {error}")
        except Exception as error:
            logger.exception("%s failed", what)
            self.hooks.log(logging.WARNING, f"{what} failed: {type(error).__name__}: {error}")

    # Reporting

    def _report(
        self,
        failure: BaseException | None,
        interrupted: list[EpisodeSummary],
        telemetry: TelemetrySnapshot,
    ) -> RuntimeReport:
        completed = [] if self.loop is None else self.loop.episodes
        book = self.book
        return RuntimeReport(
            session_id=self.spec.session_id,
            run_id=self.run_id,
            env_id=self.env_id,
            num_envs=0 if book is None else book.num_lanes,
            autoreset_mode=self._mode(),
            env_endpoints=self._env_endpoints(),
            model_endpoint=self.model.endpoint,
            base_seed=self.spec.base_seed,
            execution_horizon=self.spec.execution_horizon,
            episodes=(*sorted(completed, key=lambda episode: episode.index), *interrupted),
            total_steps=0 if book is None else book.total_steps,
            total_reward=0.0 if book is None else book.total_reward,
            started_at=self.started_at,
            duration=time.monotonic() - self.began,
            stop_reason=self.stop_reason if failure is None else "failed",
            error=None if failure is None else f"{type(failure).__name__}: {failure}",
            telemetry=telemetry,
            bottleneck=self.shares.bottleneck(self.loop_duration),
        )


def _cancel_text(cancellation: EventLike | None, reason: Any) -> str:
    try:
        text = reason() if callable(reason) else reason
    except Exception:
        logger.exception("asking for the reason of the cancellation failed")
        text = None
    if text is None:
        text = getattr(cancellation, "reason", None)
    return f"cancelled: {text}" if text and text != "cancelled" else "cancelled"
