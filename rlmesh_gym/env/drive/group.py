"""All endpoints of one vector, driven as one: everybody is sent to first, then all are awaited."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.env.autoreset.choice import choose_conversion
from rlmesh_gym.env.drive.batch import Batch
from rlmesh_gym.env.drive.endpoint import Endpoint
from rlmesh_gym.env.drive.exchange import ActiveExchange, VectorCall, is_final
from rlmesh_gym.env.drive.readiness import (
    check_observed,
    check_reset_of_undelivered,
    check_steppable,
)
from rlmesh_gym.env.drive.recovery import INTERRUPTED, Opener, Recovery, Way
from rlmesh_gym.env.drive.undelivered import Undelivered
from rlmesh_gym.env.reading.frames import FrameReader
from rlmesh_gym.episodes import EpisodeLog
from rlmesh_gym.errors import (
    ClosedError,
    DeadlineError,
    EnvError,
    Error,
    ForkedError,
    NoPendingCallError,
    PendingCallError,
    RemoteError,
    UnavailableError,
)
from rlmesh_gym.lanes import LaneTable
from rlmesh_gym.threads import run_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.autoreset.conversion import Conversion
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.env.open.sources import AnyEnvSession, Source
    from rlmesh_gym.env.reading.infos import InfoRows
    from rlmesh_gym.rpc import Timeouts


_HALVED = ("step", "reset", "call")
"""Calls that AsyncVectorEnv makes in two halves, and names by the first."""


class EndpointGroup:
    """The lanes of several endpoints as one vector, in leaves rather than Gymnasium's forms.

    It owns the ``sessions``, which are in the order of their ``sources``; without a ``recovery``
    lost endpoints raise. An AutoresetError means that an endpoint cannot serve the mode.

    ``pending`` names the call that its caller has yet to wait for, None without one. It is set by
    whoever leaves the waiting to a later call.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sessions: Sequence[AnyEnvSession],
        *,
        autoreset_mode: AutoresetMode,
        timeouts: Timeouts,
        max_episode_steps: int | None = None,
        recovery: Recovery | None = None,
        episodes_kept: int | None = 1000,
    ) -> None:
        contract = sessions[0].contract
        self.mode = autoreset_mode
        self.timeouts = timeouts
        self.num_envs: int = sum(session.contract.num_envs for session in sessions)
        self.codec: SpaceCodec = SpaceCodec(contract.single_observation_space)
        self.action_codec: SpaceCodec = SpaceCodec(contract.single_action_space)
        self.table: LaneTable = LaneTable(self.num_envs)
        self.log: EpisodeLog = EpisodeLog(episodes_kept)
        self.endpoints: list[Endpoint] = []
        self.conversions: list[Conversion] = []
        self.pending: str | None = None
        self._call: VectorCall | None = None
        self._recovery = recovery
        self._once = Recovery(patience=0.0)
        self._frames = FrameReader()
        self._pid = os.getpid()
        self._is_closed = False
        self._rolls = autoreset_mode is AutoresetMode.NEXT_STEP
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        start = 0
        for source, session in zip(sources, sessions, strict=True):
            endpoint = Endpoint(
                source,
                session,
                start,
                codec=self.codec,
                action_codec=self.action_codec,
                table=self.table,
                log=self.log,
                max_episode_steps=max_episode_steps,
            )
            self.endpoints.append(endpoint)
            self.conversions.append(choose_conversion(endpoint, autoreset_mode))
            start += endpoint.num_envs

    @property
    def ignored_actions(self) -> NDArray[np.bool_] | None:
        """Lanes whose next action is not used; None where all are."""
        return self.table.ended if self._rolls else None

    def check_ready(self, operation: str) -> None:
        """Check that a call may begin: not closed, not forked, and no other call in flight."""
        if self._is_closed:
            raise ClosedError(f"{operation}: the environment was closed")
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{operation}: the environment was made in another process, and its connections "
                "do not survive a fork; make it here, or start the process with 'spawn'"
            )
        if self.pending is not None:
            called = f"{operation}_async" if operation in _HALVED else operation
            raise PendingCallError(
                f"Calling `{called}` while waiting for a pending call to `{self.pending}` to "
                f"complete. Call {self.pending}_wait() first",
                name=self.pending,
            )

    def open_by(self, opener: Opener | None) -> None:
        """Have lost sessions opened again by this, None for the plain way."""
        self._once.opener = opener
        if self._recovery is not None:
            self._recovery.opener = opener

    # Steps

    def prepare_step(self) -> None:
        """Take in what was late, and check that every lane can be stepped."""
        self._take_in_late(self.timeouts.step)
        restarts = self._recovery is not None
        check_steppable(self.table, self.endpoints, self.mode, restarts=restarts)

    def start_step(
        self,
        actions: Leaves,
        buffers: Leaves | None = None,
        *,
        stepped: NDArray[np.bool_] | None = None,
        read_only: bool = False,
    ) -> None:
        """Send a step with a checked row of ``actions`` per lane.

        ``stepped`` marks the lanes to step, which must then have lane operations; None for all. For
        ``buffers`` and ``read_only`` see :class:`Batch`.
        """
        batch = Batch(self.codec, self.num_envs, buffers, read_only=read_only)
        call = VectorCall("step", batch)
        if stepped is not None and not stepped.all():
            for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
                chosen = np.flatnonzero(stepped[endpoint.rows]).tolist()
                batch.put_rows(endpoint.rows, endpoint.last.rows())
                if chosen:
                    rows = [leaf[endpoint.rows] for leaf in actions]
                    exchange = self._stand_in(endpoint, batch)
                    if exchange is None:
                        exchange = conversion.step_some(chosen, rows, batch)
                    call.runs.append(self._run(endpoint, exchange))
        elif len(self.endpoints) == 1 and self._is_plain(self.endpoints[0]):
            call.runs.append(
                ActiveExchange(self.endpoints[0], self.conversions[0].step(actions, batch))
            )
        else:
            for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
                exchange = self._stand_in(endpoint, batch)
                if exchange is None:
                    exchange = conversion.step([leaf[endpoint.rows] for leaf in actions], batch)
                call.runs.append(self._run(endpoint, exchange))
        self._begin(call)

    def _is_plain(self, endpoint: Endpoint) -> bool:
        return not endpoint.is_lost and endpoint.undelivered is None

    def _stand_in(self, endpoint: Endpoint, batch: Batch) -> Exchange | None:
        """Return what a step does in place of stepping this endpoint, if anything."""
        undelivered, recovery = endpoint.undelivered, self._recovery
        if undelivered is not None:
            return _hand_out(endpoint, undelivered, batch)
        if not endpoint.is_lost or recovery is None:
            return None
        if endpoint.is_loss_told:
            return recovery.begin_anew(endpoint, batch)
        return recovery.report(endpoint, batch, self._way(endpoint))

    def _way(self, endpoint: Endpoint) -> Way:
        conversion = self.conversions[self.endpoints.index(endpoint)]
        return Way(self._is_same_step, self._rolls, conversion.rolls_by_lanes)

    def _run(self, endpoint: Endpoint, exchange: Exchange) -> ActiveExchange:
        # Only what others fail in can leave an endpoint's share of a step undelivered.
        before = endpoint.last.mark() if len(self.endpoints) > 1 else None
        return ActiveExchange(endpoint, exchange, before=before)

    # Resets

    def start_reset(
        self,
        seeds: Sequence[int | None],
        mask: NDArray[np.bool_] | None,
        options: Mapping[str, Any] | None,
        buffers: Leaves | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Send a reset of the lanes in ``mask``, None for all, with one seed per lane of *all*.

        After a DeadlineError or ResetNeededError nothing was sent.
        """
        self._take_in_late(self.timeouts.reset)
        if mask is not None:
            check_observed(self.endpoints, mask)
        batch = Batch(self.codec, self.num_envs, buffers, read_only=read_only)
        call = VectorCall("reset", batch)
        for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
            chosen = None if mask is None else np.flatnonzero(mask[endpoint.rows]).tolist()
            if chosen is not None and len(chosen) < endpoint.num_envs:
                batch.put_rows(endpoint.rows, endpoint.shown())
            if chosen == []:
                continue
            indices = range(endpoint.num_envs) if chosen is None else chosen
            own_seeds = [seeds[endpoint.start + index] for index in indices]
            check_reset_of_undelivered(endpoint, indices)
            conversion.check_reset(indices, own_seeds, options)
            if endpoint.is_lost and len(indices) == endpoint.num_envs:
                conversion.forget()
                exchange: Exchange = (self._recovery or self._once).begin_anew(
                    endpoint, batch, own_seeds, options
                )
            else:
                exchange = conversion.reset(indices, own_seeds, options, batch)
            call.runs.append(
                ActiveExchange(
                    endpoint, exchange, indices=indices, seeds=own_seeds, options=options
                )
            )
        for run in call.runs:
            run.endpoint.undelivered = None
        self._begin(call)

    # Frames

    def render(self) -> list[NDArray[np.uint8] | None]:
        """Return one frame per lane, None for lanes that cannot be rendered.

        An endpoint that fails counts as lost if its session has ended.
        """
        frames: list[NDArray[np.uint8] | None] = []
        for endpoint in self.endpoints:
            try:
                frames += self._frames.fetch(endpoint, self.timeouts.render)
            except RemoteError as error:  # noqa: PERF203 - endpoint by endpoint
                if self._once.covers(error) and is_final(error):
                    self._takes_on(endpoint, error)
                    self._lose_endpoint(endpoint)
                    endpoint.is_loss_told = False
                raise
        return frames

    def render_lane(self, lane: int, timeout: float | None) -> NDArray[np.uint8] | None:
        """Return one lane's frame; None where it cannot be rendered."""
        endpoint = next(end for end in self.endpoints if lane in end.lanes)
        return self._frames.fetch_lane(endpoint, lane - endpoint.start, timeout)

    # Calls

    def _begin(self, call: VectorCall) -> None:
        # A lost endpoint blocks until it is back. It comes first: where it stays away, nothing has
        # been sent to the others.
        runs = call.runs
        if len(runs) > 1:
            runs = sorted(runs, key=lambda run: not run.endpoint.is_lost)
        self._call = call
        for place, run in enumerate(runs):
            was_lost = run.endpoint.is_lost
            run.go_on()
            error = run.error
            if error is not None and (was_lost or not isinstance(error, RemoteError)):
                # The next call takes in what was sent before.
                call.runs = [one for one in runs[:place] if one.error is None]
                if not call.runs:
                    self._call = None
                raise error

    def finish(self, timeout: float | None) -> tuple[Batch, list[tuple[Endpoint, InfoRows]]]:
        """Wait for the call that was begun last.

        Returns the filled batch, and the infos of each endpoint that took part. After an error, the
        next step hands out what had come for the lanes of other endpoints.
        """
        call = self._call
        if call is None and self._is_closed:
            raise ClosedError("the environment was closed before the answer came")
        if call is None:
            raise NoPendingCallError("nothing is in flight", name=str(self.pending))
        self.pending = None
        try:
            call.finish(timeout)
        except DeadlineError:
            if not self._give_up_hung(call):
                raise
            call.finish(0.0)
        failed = [(run, run.error) for run in call.runs if run.error is not None]
        if failed:
            try:
                self._settle(call, failed)
            except Error as error:
                done = [run for run in call.runs if run.is_done]
                _tell_moved_on(call.name, error, self._keep(call, done))
                self._call = None
                raise
        self._call = None
        if call.name == "reset":
            for endpoint in self.endpoints:
                endpoint.is_shown = True
        return call.batch, [(run.endpoint, run.infos) for run in call.runs]

    def _give_up_hung(self, call: VectorCall) -> bool:
        """Count late endpoints that answer nobody any more as lost; return whether there are."""
        if self._recovery is None:
            return False
        hung = [run for run in call.runs if run.pending and run.endpoint.source.is_hung()]
        for run in hung:
            if run.pending is not None:
                text = f"{call.name}: the process answers no more; it is started anew"
                run.pending.abandon(UnavailableError(text, endpoint=run.endpoint.address))
        return bool(hung)

    def _keep(self, call: VectorCall, runs: Sequence[ActiveExchange]) -> list[int]:
        """Keep what came in a call that failed elsewhere; return the lanes that moved on."""
        for run in runs:
            endpoint = run.endpoint
            if call.name == "step":
                shown = None if run.before is None else endpoint.last.rows_of(run.before)
                endpoint.undelivered = Undelivered.take(call.batch, endpoint.rows, run.infos, shown)
            else:
                endpoint.is_shown = False
        return [lane for run in runs for lane in run.endpoint.lanes]

    def _take_in_late(self, timeout: float | None) -> None:
        """End the last call first, where it came too late or was interrupted.

        What was late is dropped; what had come in time, while others were late, is kept.
        """
        call = self._call
        if call is None:
            return
        in_time = [run for run in call.runs if run.is_done]
        try:
            call.finish(timeout)
        except DeadlineError as error:
            raise DeadlineError(
                f"the {call.name} before this call is still under way: {error}; nothing new was "
                "sent",
                operation=call.name,
            ) from error
        self._call = None
        if len(in_time) < len(call.runs):
            self._keep(call, in_time)
        given_up: Error | None = None
        for run in call.runs:
            failure = run.error
            if run.is_torn or (failure is not None and is_final(failure)):
                if failure is not None and not self._takes_on(run.endpoint, failure):
                    given_up = given_up or failure
                self._lose(run)
                run.endpoint.is_loss_told = False
        if given_up is not None:
            raise given_up

    def _takes_on(self, endpoint: Endpoint, error: Error) -> bool:
        """Whether an endpoint that was lost by this error goes on; without restarts, by a reset."""
        return self._recovery is None or self._recovery.takes_on(endpoint, error)

    def _settle(self, call: VectorCall, failed: list[tuple[ActiveExchange, Error]]) -> None:
        """Deal with the runs that failed."""
        recoverable: list[ActiveExchange] = []
        first: Error | None = None
        for run, error in failed:
            cut_off: list[str] = []
            if is_final(error):
                recovery = None if run.endpoint.is_lost else self._recovery
                goes_on = recovery is not None and recovery.takes_on(run.endpoint, error)
                cut_off = self._lose(run)
                if goes_on:
                    run.endpoint.is_loss_told = False
                    recoverable.append(run)
                    continue
            if isinstance(error, EnvError):
                self._complete(error, run.endpoint, cut_off)
            first = first or error
        if first is not None:
            raise first  # The next step tells of those that go on.
        for run in recoverable:
            call.runs[call.runs.index(run)] = self._recover(call, run)

    def _lose(self, run: ActiveExchange) -> list[str]:
        return self._lose_endpoint(run.endpoint, run.over_before)

    def _lose_endpoint(self, endpoint: Endpoint, over: Sequence[int] | None = None) -> list[str]:
        self.conversions[self.endpoints.index(endpoint)].forget()
        return endpoint.lose(over)

    def _complete(self, error: EnvError, endpoint: Endpoint, cut_off: Sequence[str]) -> None:
        """Say in the vector's terms which lanes and episodes an error is about."""
        if not error.interrupted_episodes:
            error.interrupted_episodes = tuple(cut_off)
        if len(self.endpoints) > 1:
            indices = error.lanes or range(endpoint.num_envs)
            error.lanes = tuple(endpoint.start + index for index in indices)

    def _recover(self, call: VectorCall, lost: ActiveExchange) -> ActiveExchange:
        """Stand in for a run whose endpoint was lost during the call."""
        recovery = self._recovery or self._once
        endpoint = lost.endpoint
        if call.name == "reset":
            by_index = dict(zip(lost.indices, lost.seeds, strict=True))
            seeds = [by_index.get(index) for index in range(endpoint.num_envs)]
            exchange: Exchange = recovery.begin_anew(endpoint, call.batch, seeds, lost.options)
        else:
            moved = endpoint.num_steps != lost.steps_before
            exchange = recovery.report(endpoint, call.batch, self._way(endpoint), moved=moved)
        again = VectorCall("reset", call.batch)
        run = ActiveExchange(endpoint, exchange)
        again.runs.append(run)
        run.go_on()
        again.finish(self.timeouts.reset)
        if run.error is not None:
            raise run.error
        if call.name == "reset" and isinstance(run.infos, list):
            # Lanes that nobody asked to reset have begun anew as well.
            cut_off = [index for index in range(endpoint.num_envs) if index not in lost.indices]
            run.infos += [(index, {INTERRUPTED: True}) for index in cut_off]
        return run

    def close(self, timeout: float | None = None) -> None:
        """End all sessions and embedded servers, side by side; may be called again.

        Embedded servers get ``timeout`` seconds for closing their environments, None for
        ``timeouts.close``.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._call = None
        self.pending = None
        if os.getpid() != self._pid:
            return  # The sessions belong to the parent.
        limit = self.timeouts.close if timeout is None else timeout
        run_together([partial(endpoint.close, limit) for endpoint in self.endpoints])


def _hand_out(endpoint: Endpoint, undelivered: Undelivered, batch: Batch) -> Exchange:
    """Stand in for a step of an endpoint whose lanes have moved on already."""
    endpoint.undelivered = None
    undelivered.put(batch, endpoint.rows)
    return undelivered.infos
    yield  # A generator that waits for nothing.


def _tell_moved_on(name: str, error: Error, lanes: Sequence[int]) -> None:
    """Say in an error which lanes it is not about."""
    if lanes and error.args:
        done = "were reset" if name == "reset" else "moved on"
        rest = "" if name == "reset" else "; the next step() hands out what came for them"
        error.args = (f"{error} (lanes {list(lanes)} {done}{rest})", *error.args[1:])
