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
from rlmesh_gym.env.drive.exchange import ActiveExchange, VectorCall
from rlmesh_gym.env.drive.losses import Losses
from rlmesh_gym.env.drive.readiness import (
    check_observed,
    check_reset_of_undelivered,
    check_steppable,
)
from rlmesh_gym.env.reading.frames import FrameReader
from rlmesh_gym.episodes import EpisodeLog
from rlmesh_gym.errors import (
    ClosedError,
    DeadlineError,
    Error,
    ForkedError,
    NoPendingCallError,
    PendingCallError,
    RemoteError,
)
from rlmesh_gym.lanes import LaneTable
from rlmesh_gym.threads import run_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.autoreset.conversion import Conversion
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.env.drive.recovery import Opener, Recovery
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
        self._frames = FrameReader()
        self._pid = os.getpid()
        self._is_closed = False
        self._rolls = autoreset_mode is AutoresetMode.NEXT_STEP
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
        self._losses = Losses(
            self.endpoints,
            self.conversions,
            mode=autoreset_mode,
            recovery=recovery,
            timeouts=timeouts,
        )

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
        self._losses.open_by(opener)

    # Steps

    def prepare_step(self) -> None:
        """Take in what was late, and check that every lane can be stepped."""
        self._take_in_late(self.timeouts.step)
        check_steppable(self.table, self.endpoints, self.mode, restarts=self._losses.restarts)

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
                    exchange = self._losses.stand_in(endpoint, batch)
                    if exchange is None:
                        exchange = conversion.step_some(chosen, rows, batch)
                    call.runs.append(self._run(endpoint, exchange))
        elif len(self.endpoints) == 1 and self._is_plain(self.endpoints[0]):
            call.runs.append(
                ActiveExchange(self.endpoints[0], self.conversions[0].step(actions, batch))
            )
        else:
            for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
                exchange = self._losses.stand_in(endpoint, batch)
                if exchange is None:
                    exchange = conversion.step([leaf[endpoint.rows] for leaf in actions], batch)
                call.runs.append(self._run(endpoint, exchange))
        self._begin(call)

    def _is_plain(self, endpoint: Endpoint) -> bool:
        return not endpoint.is_lost and endpoint.undelivered is None

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
                exchange: Exchange = self._losses.recovery.begin_anew(
                    endpoint, batch, own_seeds, options
                )
            else:
                exchange = conversion.reset(indices, own_seeds, options, batch)
            call.runs.append(
                ActiveExchange(
                    endpoint, exchange, indices=indices, seeds=own_seeds, options=options
                )
            )
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
                self._losses.note_aside(endpoint, error)
                raise
        return frames

    def endpoint_of(self, lane: int) -> Endpoint:
        """Return the endpoint that serves a lane."""
        return next(endpoint for endpoint in self.endpoints if lane in endpoint.lanes)

    def render_lane(self, lane: int, timeout: float | None) -> NDArray[np.uint8] | None:
        """Return one lane's frame; None where it cannot be rendered."""
        endpoint = self.endpoint_of(lane)
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
            if error is None and call.name == "reset":
                run.endpoint.undelivered = None  # Its lanes begin anew.
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
            if not self._losses.give_up_hung(call):
                raise
            call.finish(0.0)
        failed = [(run, run.error) for run in call.runs if run.error is not None]
        if failed:
            try:
                self._losses.settle(call, failed)
            except Error:
                self._call = None
                raise
        self._call = None
        if call.name == "reset":
            for endpoint in self.endpoints:
                endpoint.is_shown = True
        return call.batch, [(run.endpoint, run.infos) for run in call.runs]

    def _take_in_late(self, timeout: float | None) -> None:
        """End the last call first, where it came too late or was interrupted.

        What was late is dropped; what had come in time, while others were late, is kept.
        """
        call = self._call
        if call is None:
            return
        in_time = call.done
        try:
            call.finish(timeout)
        except DeadlineError as error:
            raise DeadlineError(
                f"the {call.name} before this call is still under way: {error}; nothing new was "
                "sent",
                operation=call.name,
            ) from error
        self._call = None
        self._losses.take_in(call, in_time)

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
