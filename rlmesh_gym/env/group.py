"""All endpoints of one vector, driven as one: everybody is sent to first, then all are awaited."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.env.autoreset import choose_conversion
from rlmesh_gym.env.batch import Batch
from rlmesh_gym.env.endpoint import Endpoint
from rlmesh_gym.env.exchange import Call, Run, is_final
from rlmesh_gym.env.infos import BatchedInfos
from rlmesh_gym.env.recovery import Recovery
from rlmesh_gym.errors import (
    ClosedError,
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ForkedError,
    NoPendingCallError,
    PendingCallError,
    RemoteError,
    ResetNeededError,
)
from rlmesh_gym.lanes import EpisodeLog, LaneTable, any_true

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.autoreset import Conversion
    from rlmesh_gym.env.exchange import Exchange, InfoRows
    from rlmesh_gym.env.sources import Source
    from rlmesh_gym.rpc import EnvSession, Timeouts

__all__ = ["EndpointGroup"]


class EndpointGroup:
    """The lanes of several endpoints as one vector, in leaves rather than Gymnasium's forms.

    Args:
        sources: Where the endpoints come from.
        sessions: Open sessions with them, in that order; owned by this object.
        autoreset_mode: Mode that the user sees.
        timeouts: Of every kind of call.
        max_episode_steps: Length at which the client truncates; None for no limit.
        recovery: What to do about lost endpoints; None raises.
        episodes_kept: Size of the episode log.

    Attributes:
        num_envs: Lanes in total.
        codec: Codec of the single observation space.
        action_codec: Codec of the single action space.
        table: The lane table.
        log: Episodes that are over.
        pending: Name of the call in flight, None without one.

    Raises:
        AutoresetError: An endpoint cannot serve the mode.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sessions: Sequence[EnvSession],
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
        self.num_envs = sum(session.contract.num_envs for session in sessions)
        self.codec = SpaceCodec(contract.single_observation_space)
        self.action_codec = SpaceCodec(contract.single_action_space)
        self.table = LaneTable(self.num_envs)
        self.log = EpisodeLog(episodes_kept)
        self.endpoints: list[Endpoint] = []
        self.conversions: list[Conversion] = []
        self.pending: str | None = None
        self._call: Call | None = None
        self._outstanding: Call | None = None
        self._recovery = recovery
        self._once = Recovery(patience=0.0)
        self._pid = os.getpid()
        self._is_closed = False
        self._rolls = autoreset_mode is AutoresetMode.NEXT_STEP
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        start = 0
        for session in sessions:
            endpoint = Endpoint(
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
        # Last, so that a forgotten vector drops its sessions before the servers that it embeds.
        self.sources = list(sources)

    @property
    def ignored_actions(self) -> NDArray[np.bool_] | None:
        """Lanes whose next action is not used; None where all are."""
        return self.table.ended if self._rolls else None

    def check_ready(self, operation: str) -> None:
        """Check that a call may begin.

        Raises:
            ClosedError: After ``close``.
            ForkedError: In a forked child.
            PendingCallError: Another call is in flight.
        """
        if self._is_closed:
            raise ClosedError(f"{operation}: the environment was closed")
        if os.getpid() != self._pid:
            raise ForkedError(
                f"{operation}: the environment was made in another process, and its connections "
                "do not survive a fork; make it here, or start the process with 'spawn'"
            )
        if self.pending is not None:
            raise PendingCallError(
                f"{operation}: a {self.pending} is in flight; call {self.pending}_wait() first",
                name=self.pending,
            )

    # Steps

    def prepare_step(self) -> None:
        """Take in what was late, and check that every lane can be stepped.

        Raises:
            DeadlineError: A call that was late before is still not over.
            ResetNeededError: Some lane has no episode and none begins by itself.
        """
        self._take_in_late(self.timeouts.step)
        self.check_steppable()

    def check_steppable(self) -> None:
        """Check that every lane can be stepped.

        Raises:
            ResetNeededError: Some lane has no episode and none begins by itself.
        """
        table = self.table
        if not any_true(table.ended):
            return
        lost = [endpoint for endpoint in self.endpoints if endpoint.is_lost]
        if lost and self._recovery is None:
            names = ", ".join(endpoint.address for endpoint in lost)
            lanes = [lane for endpoint in lost for lane in endpoint.lanes]
            raise ResetNeededError(
                f"step: {names} was lost with its lanes {lanes}; call reset() first"
            )
        ended = np.flatnonzero(table.ended).tolist()
        fresh = [lane for lane in ended if not table.episode_ids[lane]]
        if fresh:
            raise ResetNeededError(f"step: lanes {fresh} were never reset; call reset() first")
        if not self._rolls:
            raise ResetNeededError(
                f"step: the episodes of lanes {ended} are over; reset them first with "
                "reset(options={'reset_mask': mask})"
            )

    def start_step(self, actions: Leaves, buffers: Leaves | None = None) -> None:
        """Send a step of all lanes.

        Args:
            actions: One row per lane, checked.
            buffers: Where observations go; new ones where None.
        """
        batch = Batch(self.codec, self.num_envs, buffers)
        call = Call("step", batch)
        if len(self.endpoints) == 1 and not self.endpoints[0].is_lost:
            call.runs.append(Run(self.endpoints[0], self.conversions[0].step(actions, batch)))
        else:
            for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
                rows = [leaf[endpoint.rows] for leaf in actions]
                recovery = self._recovery
                if endpoint.is_lost and recovery is not None:
                    source = self._source_of(endpoint)
                    if endpoint.is_loss_told:
                        exchange: Exchange = recovery.begin_anew(endpoint, source, batch)
                    else:
                        exchange = recovery.report(
                            endpoint, source, batch, begin_anew=self._is_same_step
                        )
                else:
                    exchange = conversion.step(rows, batch)
                call.runs.append(Run(endpoint, exchange))
        self._begin(call)

    # Resets

    def start_reset(
        self,
        seeds: Sequence[int | None],
        mask: NDArray[np.bool_] | None,
        options: Mapping[str, Any] | None,
        buffers: Leaves | None = None,
    ) -> None:
        """Send a reset.

        Args:
            seeds: One per lane; those of lanes outside the mask are not used.
            mask: Lanes to reset; None for all.
            options: For the environments.
            buffers: Where observations go; new ones where None.

        Raises:
            ResetNeededError: A lane outside the mask has no observation yet.
            DeadlineError: A call that was late before is still not over; nothing was sent.
        """
        self._take_in_late(self.timeouts.reset)
        if mask is not None:
            self._check_observed(mask)
        batch = Batch(self.codec, self.num_envs, buffers)
        call = Call("reset", batch)
        for endpoint, conversion in zip(self.endpoints, self.conversions, strict=True):
            chosen = None if mask is None else np.flatnonzero(mask[endpoint.rows]).tolist()
            if chosen is not None and len(chosen) < endpoint.num_envs:
                batch.put_rows(endpoint.rows, endpoint.last.rows())
            if chosen == []:
                continue
            indices = range(endpoint.num_envs) if chosen is None else chosen
            own_seeds = [seeds[endpoint.start + index] for index in indices]
            conversion.check_reset(indices, own_seeds, options)
            if endpoint.is_lost and len(indices) == endpoint.num_envs:
                conversion.forget()
                exchange: Exchange = (self._recovery or self._once).begin_anew(
                    endpoint, self._source_of(endpoint), batch, own_seeds, options
                )
            else:
                exchange = conversion.reset(indices, own_seeds, options, batch)
            call.runs.append(Run(endpoint, exchange))
        self._begin(call)

    def _check_observed(self, mask: NDArray[np.bool_]) -> None:
        missing = [
            endpoint.start + index
            for endpoint in self.endpoints
            for index in np.flatnonzero(~endpoint.last.known).tolist()
            if not mask[endpoint.start + index]
        ]
        if missing:
            raise ResetNeededError(
                f"reset: lanes {missing} have no observation yet, so the first reset must include "
                "them; call reset() without reset_mask first"
            )

    # Calls

    def _begin(self, call: Call) -> None:
        # A lost endpoint blocks until it is back; the others are sent to before that.
        runs = call.runs
        if len(runs) > 1:
            runs = sorted(runs, key=lambda run: run.endpoint.is_lost)
        for run in runs:
            run.begin()
            if run.error is not None and not any(other.pending for other in call.runs):
                # Nothing is in flight, so there is nothing to wait for either.
                if not isinstance(run.error, RemoteError):
                    raise run.error
                break
        self._call = call
        self.pending = call.name

    def finish(self, timeout: float | None) -> tuple[Batch, list[tuple[Endpoint, InfoRows]]]:
        """Wait for the call in flight.

        Args:
            timeout: Seconds; None waits for ever.

        Returns:
            The filled batch, and the infos of each endpoint that took part.

        Raises:
            DeadlineError: Not in time; the rest of the call is done by the next one.
            RemoteError: An endpoint failed.
        """
        call = self._call
        if call is None:
            raise NoPendingCallError("nothing is in flight", name=str(self.pending))
        self.pending = None
        self._call = None
        try:
            call.finish(timeout)
        except BaseException:
            self._outstanding = call
            raise
        self._settle(call)
        return call.batch, [(run.endpoint, run.infos) for run in call.runs]

    def _take_in_late(self, timeout: float | None) -> None:
        call = self._outstanding
        if call is None:
            return
        try:
            call.finish(timeout)
        except DeadlineError as error:
            raise DeadlineError(
                f"the {call.name} before this call is still under way: {error}; nothing new was "
                "sent",
                operation=call.name,
            ) from error
        self._outstanding = None
        for run in call.runs:
            if run.error is not None and is_final(run.error):
                run.endpoint.lose()
                run.endpoint.is_loss_told = False

    def _settle(self, call: Call) -> None:
        """Deal with the runs that failed."""
        first: Error | None = None
        for position, run in enumerate(call.runs):
            error = run.error
            if error is None:
                continue
            endpoint = run.endpoint
            was_lost = endpoint.is_lost
            if is_final(error):
                cut_off = endpoint.lose()
                self.conversions[self.endpoints.index(endpoint)].forget()
                if self._recovery is not None and not was_lost and self._recovery.covers(error):
                    call.runs[position] = self._recover(call, endpoint)
                    continue
                if isinstance(error, EnvError) and not error.interrupted_episodes:
                    error.interrupted_episodes = tuple(cut_off)
            if isinstance(error, EnvError) and len(self.endpoints) > 1:
                indices = error.lanes or range(endpoint.num_envs)
                error.lanes = tuple(endpoint.start + index for index in indices)
            first = first or error
        if first is not None:
            raise first

    def _recover(self, call: Call, endpoint: Endpoint) -> Run:
        """Stand in for a run whose endpoint was lost during the call."""
        recovery = self._recovery
        if recovery is None:
            raise ConfigurationError("no recovery")
        source = self._source_of(endpoint)
        if call.name == "reset":
            exchange: Exchange = recovery.begin_anew(endpoint, source, call.batch)
        else:
            exchange = recovery.report(endpoint, source, call.batch, begin_anew=self._is_same_step)
        again = Call("reset", call.batch)
        run = Run(endpoint, exchange)
        again.runs.append(run)
        run.begin()
        again.finish(self.timeouts.reset)
        if run.error is not None:
            raise run.error
        return run

    def _source_of(self, endpoint: Endpoint) -> Source:
        return self.sources[self.endpoints.index(endpoint)]

    def rows_of_infos(
        self, parts: Sequence[tuple[Endpoint, InfoRows]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return ``(lane, info)`` of all endpoints, in lane order."""
        for endpoint, infos in parts:
            if isinstance(infos, BatchedInfos):
                for index in range(endpoint.num_envs):
                    yield endpoint.start + index, infos.row(index)
            elif infos is not None:
                for index, info in infos:
                    yield endpoint.start + index, info

    # The end

    def close(self, timeout: float | None = None) -> None:
        """End all sessions and embedded servers, side by side; may be called again.

        Args:
            timeout: Seconds that an embedded server gets for closing its environments;
                ``timeouts.close`` where None.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._call = self._outstanding = None
        self.pending = None
        if os.getpid() != self._pid:
            return  # The sessions belong to the parent.
        limit = self.timeouts.close if timeout is None else timeout
        pairs = list(zip(self.endpoints, self.sources, strict=True))
        if len(pairs) == 1:
            _close(*pairs[0], limit)
            return
        threads = [
            threading.Thread(target=_close, args=(endpoint, source, limit), daemon=True)
            for endpoint, source in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _close(endpoint: Endpoint, source: Source, timeout: float | None) -> None:
    endpoint.session.close()
    source.close(5.0 if timeout is None else timeout)
