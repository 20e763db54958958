"""What surrounds the loop: cancelling, letting go within bounds, one report on every way out."""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uuid6

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import Error
from rlmesh_gym.policy.caller_warning import warn_caller
from rlmesh_gym.runtime.cancellation import CancellationWatch, CancelledRunError
from rlmesh_gym.runtime.context import CallClock, RunContext
from rlmesh_gym.runtime.ends.env_lanes import EnvLanes, ResetWay
from rlmesh_gym.runtime.ends.finding import connect
from rlmesh_gym.runtime.ends.plan import EpisodePlan
from rlmesh_gym.runtime.ends.policies import PolicySetup
from rlmesh_gym.runtime.ends.watcher import RunWatcher
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.hooks.table import HookTable
from rlmesh_gym.runtime.loop import RunLoop
from rlmesh_gym.runtime.report.bottleneck import TimeShares
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport
from rlmesh_gym.runtime.telemetry import Telemetry, TelemetryTicker
from rlmesh_gym.threads import run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.env.drive.group import EndpointGroup
    from rlmesh_gym.episodes import EpisodeRecord
    from rlmesh_gym.runtime.cancellation import EventLike
    from rlmesh_gym.runtime.ends.finding import RunEnv
    from rlmesh_gym.runtime.ends.policies import RunPolicy
    from rlmesh_gym.runtime.hooks.table import RuntimeHooks
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec


_logger = logging.getLogger(__name__)


class OneRun:
    """One run of a driver, with all that it must let go of."""

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        envs: Sequence[RunEnv],
        policy: RunPolicy,
        hooks: Sequence[RuntimeHooks],
    ) -> None:
        self.spec: RuntimeSessionSpec = spec
        self.envs = envs
        self.policy = policy
        self.run_id: str = str(uuid6.uuid7())
        self.env_id: str = ""
        self.hooks: HookTable = HookTable(hooks, self._log_event)
        self.telemetry: Telemetry = Telemetry(spec.session_id, run_id=self.run_id)
        self.shares: TimeShares = TimeShares()
        self.owned: list[EndpointGroup] = []
        self.lanes: list[EnvLanes] = []
        self.plan: EpisodePlan | None = None
        self.watcher: RunWatcher | None = None
        self.loop: RunLoop | None = None
        self.ticker: TelemetryTicker | None = None
        self.is_valid: bool = False
        self.is_resolving: bool = False
        self.stop_reason: str = "failed"
        self.release_reason: str = "failed"
        self.started_at: float = time.time()
        self.began: float = time.monotonic()
        self.loop_duration: float = 0.0

    @property
    def identity(self) -> tuple[str, str, str]:
        """The first three fields of every event."""
        return self.spec.session_id, self.run_id, self.env_id

    def _log_event(self, level: int, message: str) -> events.LogEvent:
        return events.LogEvent(*self.identity, level=level, message=message)

    def _emit(self, kind: type[events.RuntimeEvent], **fields: Any) -> None:
        if self.hooks.listens(kind.name):
            self.hooks.emit(kind.name, kind(*self.identity, **fields))

    def run(self, cancellation: EventLike | None, reason: Any) -> RuntimeReport:
        """Play, let go and report; see ``RuntimeDriver.run``."""
        failure: BaseException | None = None
        with CancellationWatch(cancellation) as watch:
            try:
                self._play(watch)
            except CancelledRunError:
                self.stop_reason = self.release_reason = _cancel_text(cancellation, reason)
            except BaseException as error:
                failure = error
                self.release_reason = f"failed: {type(error).__name__}: {error}"
        return self._settle(failure)

    def _settle(self, failure: BaseException | None) -> RuntimeReport:
        """Let go, report, tell the hooks; each of it also where Ctrl-C ended what was before."""
        first = failure

        def attempt(action: Callable[..., object], *arguments: Any, **named: Any) -> None:
            nonlocal first
            try:
                action(*arguments, **named)
            except BaseException as error:
                # No Exception comes up to here. This is a Ctrl-C or a hook that calls sys.exit.
                first = first or error

        for env in self.lanes:
            env.group.open_by(None)
        interrupted = self.loop.close() if self.loop is not None else []
        for record in interrupted:
            attempt(self._emit, events.EpisodeCompleted, episode=record)
        if self.ticker is not None:
            attempt(self._quietly, "stopping the telemetry", self._stop_ticker, self.ticker)
        if self.is_resolving:
            attempt(self._quietly, "releasing the model", self._release)
        if self.is_valid:  # Else nothing was opened, and the limits may be none.
            attempt(self._quietly, "closing the ends", self._close_ends)
        telemetry = self.telemetry.session_snapshot()
        attempt(self.hooks.emit, "on_telemetry", telemetry)
        report = self._report(first, interrupted, telemetry)
        if first is None:
            reason = self.stop_reason
            attempt(self._emit, events.SessionEnded, stop_reason=reason, report=report)
        else:
            attempt(self._emit, events.SessionFailed, error=first, report=report)
        if first is None:
            return report
        with contextlib.suppress(AttributeError):  # An exception with slots cannot carry it.
            first.report = report  # type: ignore[attr-defined]
        raise first

    def _play(self, watch: CancellationWatch) -> None:
        self.spec = spec = self.spec.validate()
        self.is_valid = True
        watch.check()
        if spec.limits.telemetry_window > 0 and self.hooks.listens("on_telemetry"):
            deliver = partial(self.hooks.emit, "on_telemetry")
            self.ticker = TelemetryTicker(self.telemetry, spec.limits.telemetry_window, deliver)
            self.ticker.start()
        for env, group in connect(self.envs, spec, watch):
            self._add_env(env, group)
        contract = self.lanes[0].group.endpoints[0].session.contract
        codecs = (
            SpaceCodec(contract.single_observation_space, "observation"),
            SpaceCodec(contract.single_action_space, "action"),
        )
        self.plan = plan = EpisodePlan(spec, sum(len(env.lanes) for env in self.lanes))
        clock = CallClock(self.telemetry, self.shares)
        context = RunContext(spec, plan, self.hooks, clock, self.identity, self._note_held)
        self.watcher = RunWatcher(context, codecs)
        self._set_up(watch, contract, codecs, plan.num_lanes)
        self.loop = RunLoop(
            context,
            self.lanes,
            self.policy,
            self.watcher,
            codecs=codecs,
            shares=self.shares,
            watch=watch,
        )
        self._emit_started(plan.num_lanes)
        began = time.monotonic()
        try:
            self.stop_reason = self.release_reason = self.loop.run()
        finally:
            # Connecting and setting up are no part of it.
            self.loop_duration = time.monotonic() - began

    def _note_held(self, episodes: int, state_bytes: int | None) -> None:
        live = 0 if self.plan is None else int(self.plan.playing.sum())
        self.telemetry.note_held(episodes, state_bytes, live)

    def _add_env(self, env: RunEnv, group: EndpointGroup) -> None:
        if env.is_owner:
            self.owned.append(group)
        contract = group.endpoints[0].session.contract
        self.env_id = self.telemetry.env_id = self.env_id or contract.env_id
        lanes = EnvLanes(group, sum(len(other.lanes) for other in self.lanes), self.spec)
        self.lanes.append(lanes)
        for endpoint in group.endpoints:
            self._emit(
                events.EnvConnected,
                endpoint=endpoint.address,
                lanes=tuple(lane + lanes.rows.start for lane in endpoint.lanes),
                autoreset_mode=lanes.mode.name,
                capabilities=dict(endpoint.session.capabilities),
                contract=endpoint.session.contract,
            )

    def _set_up(
        self,
        watch: CancellationWatch,
        contract: EnvContract,
        codecs: tuple[SpaceCodec, SpaceCodec],
        num_lanes: int,
    ) -> None:
        spec, policy = self.spec, self.policy
        watch.add(watch.run(partial(policy.open, spec.limits), lambda _: policy.close()))
        self.is_resolving = True
        is_single = all(env.way is ResetWay.LANES for env in self.lanes)
        policy.set_up(
            PolicySetup(spec, self.run_id, contract, codecs, num_lanes, is_single, self._warn)
        )
        adapter = policy.lanes.adapter
        adapter.watcher = self.watcher
        self._emit(
            events.ModelConnected,
            endpoint=policy.endpoint,
            execution_horizon=spec.execution_horizon,
            native_chunk=adapter.native_chunk,
            wants_history=adapter.history is not None,
        )

    def _warn(self, message: str) -> None:
        warn_caller(message)
        self.hooks.log(logging.WARNING, message)

    def _emit_started(self, num_envs: int) -> None:
        spec = self.spec
        self._emit(
            events.SessionStarted,
            num_envs=num_envs,
            autoreset_mode=self._mode(),
            env_endpoints=self._env_endpoints(),
            model_endpoint=self.policy.endpoint,
            base_seed=spec.base_seed,
            execution_horizon=spec.execution_horizon,
            max_episodes=spec.max_episodes,
            max_steps=spec.max_steps,
        )

    def _mode(self) -> str:
        return "+".join(dict.fromkeys(env.mode.name for env in self.lanes))

    def _env_endpoints(self) -> tuple[str, ...]:
        return tuple(
            address
            for place, env in enumerate(self.envs)
            for address in (
                dict.fromkeys(self.lanes[place].addresses)
                if place < len(self.lanes)
                else env.endpoints
            )
        )

    # Letting go

    def _close_ends(self) -> None:
        timeout = self.spec.limits.close_timeout
        # Side by side: letting go of many endpoints takes one close timeout, not many.
        run_together([self.policy.close, *(partial(group.close, timeout) for group in self.owned)])

    def _stop_ticker(self, ticker: TelemetryTicker) -> None:
        if not ticker.stop(self.spec.limits.close_timeout):
            self.hooks.log(logging.WARNING, "an on_telemetry hook is still at work; left behind")

    def _release(self) -> None:
        lanes = getattr(self.policy, "lanes", None)
        if lanes is None:
            return  # Setting up ended before there was anything to release.
        lanes.adapter.watcher = None
        self.policy.release(self.release_reason, self.spec.limits.close_timeout)

    def _quietly(self, what: str, action: Callable[..., None], *arguments: Any) -> None:
        """Do one step of letting go; its failure is logged and never hides an earlier error."""
        try:
            action(*arguments)
        except Error as error:
            self.hooks.log(logging.WARNING, f"{what} failed: {error}")
        except Exception as error:
            _logger.exception("%s failed", what)
            self.hooks.log(logging.WARNING, f"{what} failed: {type(error).__name__}: {error}")

    # Reporting

    def _report(
        self,
        failure: BaseException | None,
        interrupted: list[EpisodeRecord],
        telemetry: TelemetrySnapshot,
    ) -> RuntimeReport:
        plan, watcher, loop = self.plan, self.watcher, self.loop
        completed = [] if loop is None else loop.episodes
        asked = self.spec.execution_horizon
        executed = (watcher.most_frames if watcher else 0) or asked
        return RuntimeReport(
            session_id=self.spec.session_id,
            run_id=self.run_id,
            env_id=self.env_id,
            num_envs=0 if plan is None else plan.num_lanes,
            autoreset_mode=self._mode(),
            env_endpoints=self._env_endpoints(),
            model_endpoint=self.policy.endpoint,
            base_seed=self.spec.base_seed,
            execution_horizon=executed,
            requested_horizon=asked,
            predict_calls=watcher.calls if watcher else 0,
            predict_rows=watcher.rows if watcher else 0,
            episodes=(*sorted(completed, key=lambda episode: episode.index), *interrupted),
            total_steps=0 if loop is None else loop.total_steps,
            total_reward=0.0 if loop is None else loop.total_reward,
            started_at=self.started_at,
            duration=time.monotonic() - self.began,
            stop_reason=self.stop_reason if failure is None else "failed",
            error=None if failure is None else f"{type(failure).__name__}: {failure}",
            telemetry=telemetry,
            bottleneck=self.shares.bottleneck(
                self.loop_duration, longer_horizon_helps=executed >= asked
            ),
        )


def _cancel_text(cancellation: EventLike | None, reason: Any) -> str:
    try:
        text = reason() if callable(reason) else reason
    except Exception:
        _logger.exception("asking for the reason of the cancellation failed")
        text = None
    if text is None:
        text = getattr(cancellation, "reason", None)
    return f"cancelled: {text}" if text and text != "cancelled" else "cancelled"
