"""What becomes of a call whose endpoints failed, were late or were lost, and of their lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.env.drive.exchange import MOVED_ON, ActiveExchange, VectorCall, is_final
from rlmesh_gym.env.drive.recovery import INTERRUPTED, Opener, Recovery
from rlmesh_gym.env.drive.undelivered import Undelivered
from rlmesh_gym.errors import EnvError, Error, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium.vector import AutoresetMode

    from rlmesh_gym.env.autoreset.conversion import Conversion
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.errors import RemoteError
    from rlmesh_gym.rpc import Timeouts


class Losses:
    """The endpoints of one vector, looked at for what is lost of them.

    Without a ``recovery`` losses raise, and a reset tries once to connect anew.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        conversions: Sequence[Conversion],
        *,
        mode: AutoresetMode,
        recovery: Recovery | None,
        timeouts: Timeouts,
    ) -> None:
        self._endpoints = endpoints
        self._conversions = conversions
        self._timeouts = timeouts
        self._recovery = recovery
        self._once = Recovery(patience=0.0)
        self._mode = mode

    @property
    def restarts(self) -> bool:
        """Whether lost endpoints come back by themselves."""
        return self._recovery is not None

    @property
    def recovery(self) -> Recovery:
        """How a reset connects anew."""
        return self._recovery or self._once

    def stand_in(self, endpoint: Endpoint, batch: Batch) -> Exchange | None:
        """Return what a step does in place of stepping this endpoint, if anything."""
        undelivered, recovery = endpoint.undelivered, self._recovery
        if undelivered is not None:
            return _hand_out(endpoint, undelivered, batch)
        if not endpoint.is_lost or recovery is None:
            return None
        if endpoint.is_loss_told:
            return recovery.begin_anew(endpoint, batch)
        return self._report(recovery, endpoint, batch)

    def _report(
        self, recovery: Recovery, endpoint: Endpoint, batch: Batch, *, moved: bool = False
    ) -> Exchange:
        by_lanes = self._conversion(endpoint).rolls_by_lanes
        return recovery.report(endpoint, batch, self._mode, rolls_by_lanes=by_lanes, moved=moved)

    def _conversion(self, endpoint: Endpoint) -> Conversion:
        return self._conversions[self._endpoints.index(endpoint)]

    def open_by(self, opener: Opener | None) -> None:
        """Have lost sessions opened again by this, None for the plain way."""
        self._once.opener = opener
        if self._recovery is not None:
            self._recovery.opener = opener

    def give_up_hung(self, call: VectorCall) -> bool:
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

    def take_in(self, call: VectorCall, in_time: Sequence[ActiveExchange]) -> None:
        """Take in a call that is over, late or broken off, of which these runs had come in time.

        What was late is dropped; what had come in time, while others were late, is kept.
        """
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

    def note_aside(self, endpoint: Endpoint, error: RemoteError) -> None:
        """Take in what failed beside a step or a reset; the next step tells of a loss."""
        if self._once.covers(error) and is_final(error):
            self._takes_on(endpoint, error)
            self._lose_endpoint(endpoint)
            endpoint.is_loss_told = False

    def _takes_on(self, endpoint: Endpoint, error: Error) -> bool:
        """Whether an endpoint that was lost by this error goes on; without restarts, by a reset."""
        return self._recovery is None or self._recovery.takes_on(endpoint, error)

    def settle(self, call: VectorCall, failed: list[tuple[ActiveExchange, Error]]) -> None:
        """Deal with the runs that failed: restart, or raise the first error.

        What came for other endpoints is kept then, and the error says so.
        """
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
        try:
            if first is not None:
                raise first  # The next step tells of those that go on.
            for run in recoverable:
                call.runs[call.runs.index(run)] = self._recover(call, run)
        except Error as error:
            _tell_moved_on(call.name, error, self._keep(call, call.done))
            raise

    def _lose(self, run: ActiveExchange) -> list[str]:
        return self._lose_endpoint(run.endpoint, run.over_before)

    def _lose_endpoint(self, endpoint: Endpoint, over: Sequence[int] | None = None) -> list[str]:
        self._conversion(endpoint).forget()
        return endpoint.lose(over)

    def _complete(self, error: EnvError, endpoint: Endpoint, cut_off: Sequence[str]) -> None:
        """Say in the vector's terms which lanes and episodes an error is about."""
        if not error.interrupted_episodes:
            error.interrupted_episodes = tuple(cut_off)
        if len(self._endpoints) > 1:
            indices = error.lanes or range(endpoint.num_envs)
            error.lanes = tuple(endpoint.start + index for index in indices)

    def _recover(self, call: VectorCall, lost: ActiveExchange) -> ActiveExchange:
        """Stand in for a run whose endpoint was lost during the call."""
        recovery, endpoint = self.recovery, lost.endpoint
        if call.name == "reset":
            by_index = dict(zip(lost.indices, lost.seeds, strict=True))
            seeds = [by_index.get(index) for index in range(endpoint.num_envs)]
            exchange: Exchange = recovery.begin_anew(endpoint, call.batch, seeds, lost.options)
        else:
            moved = endpoint.num_steps != lost.steps_before
            exchange = self._report(recovery, endpoint, call.batch, moved=moved)
        again = VectorCall("reset", call.batch)
        run = ActiveExchange(endpoint, exchange)
        again.runs.append(run)
        run.go_on()
        again.finish(self._timeouts.reset)
        if run.error is not None:
            raise run.error
        if call.name == "reset" and isinstance(run.infos, list):
            # Lanes that nobody asked to reset have begun anew as well.
            cut_off = [index for index in range(endpoint.num_envs) if index not in lost.indices]
            run.infos += [(index, {INTERRUPTED: True}) for index in cut_off]
        return run


def _hand_out(endpoint: Endpoint, undelivered: Undelivered, batch: Batch) -> Exchange:
    """Stand in for a step of an endpoint whose lanes have moved on already."""
    endpoint.undelivered = None
    undelivered.put(batch, endpoint.rows)
    return undelivered.infos
    yield  # A generator that waits for nothing.


def _tell_moved_on(name: str, error: Error, lanes: Sequence[int]) -> None:
    """Say in an error which lanes it is not about."""
    if lanes and error.args:
        done = "were reset" if name == "reset" else MOVED_ON
        error.args = (f"{error} (lanes {list(lanes)} {done})", *error.args[1:])
