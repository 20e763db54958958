"""``on_failure="restart"``: what becomes of the lanes of an endpoint that was lost.

Nothing is made up: the lanes are truncated where they were last seen, with reward 0 and
``infos["interrupted"]``, and go on with new episodes in a new session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.drive.exchange import is_final
from rlmesh_gym.env.drive.resets import is_whole, reset_lanes
from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ProtocolError,
    UnavailableError,
)
from rlmesh_gym.restarts import Comeback, OnFailure, RestartBudget, check_patience
from rlmesh_gym.rpc import AnyPending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.env.open.sources import AnyEnvSession, Source


Beginning = Generator[AnyPending, Any, "list[tuple[int, dict[str, Any]]]"]
"""Episodes that are begun; returns the infos of their lanes, by env_index."""

INTERRUPTED = "interrupted"
"""Info key, True for lanes whose episode was cut off by the loss of their endpoint."""

_logger = logging.getLogger(__name__)


class Opener(Protocol):
    """What opens a lost session again, and waits between two tries; a run's can be cancelled."""

    def open(self, source: Source) -> AnyEnvSession:
        """Connect and shake hands."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class _PlainOpener:
    def open(self, source: Source) -> AnyEnvSession:
        return source.open()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def recovery_for(
    on_failure: OnFailure, patience: float, max_restarts: int | None
) -> Recovery | None:
    """Return what restarts lost endpoints, None where they raise."""
    return Recovery(patience, max_restarts) if on_failure == "restart" else None


class Recovery:
    """Opens lost sessions again, for ``patience`` seconds; 0 tries once.

    An endpoint that is lost more than ``max_restarts`` times without one step in between is given
    up; None never gives up. ``opener`` may be replaced at any time, None for the plain one.
    """

    def __init__(self, patience: float, max_restarts: int | None = None) -> None:
        check_patience(patience)
        self._patience = patience
        self._budget = RestartBudget(max_restarts)
        self.opener: Opener | None = None

    def covers(self, error: Error) -> bool:
        """Whether a lost endpoint is what the error tells of.

        A deadline is none: the endpoint may only be slow, and the request is still under way.
        """
        return isinstance(error, (UnavailableError, EnvError))

    def takes_on(self, endpoint: Endpoint, error: Error) -> bool:
        """Whether an endpoint that this error has just ended is to be restarted.

        Every loss is counted here. Where the endpoint is given up, the error tells what it was lost
        by before.
        """
        return self.covers(error) and self._budget.takes_on(
            endpoint.start, error, endpoint.num_steps
        )

    def report(
        self,
        endpoint: Endpoint,
        batch: Batch,
        mode: AutoresetMode,
        *,
        rolls_by_lanes: bool,
        moved: bool = False,
    ) -> Exchange:
        """Tell the user what became of the lanes of a lost endpoint.

        Those that were running are truncated where they were last seen; those whose episodes had
        ended before are not: nothing of theirs was cut off. Where the mode shows a first
        observation now, the new session is opened now; if nobody is there in time, that is left to
        the next step. ``rolls_by_lanes``: a step resets the lanes that have ended. ``moved``: the
        step was answered before the endpoint was lost, so its numbers count.
        """
        lanes = endpoint.rows
        running = np.ones(endpoint.num_envs, np.bool_)
        running[endpoint.over] = False
        batch.put_rows(lanes, endpoint.last.rows())
        rewards, terminations, truncations = batch.numbers
        if moved:
            truncations[lanes] |= running & ~terminations[lanes]
        else:
            rewards[lanes], terminations[lanes], truncations[lanes] = 0.0, False, running
        _logger.warning(
            "connection to %s lost; lanes %s are interrupted",
            endpoint.address,
            list(endpoint.lanes),
        )
        infos: list[tuple[int, dict[str, Any]]]
        infos = [(index, {INTERRUPTED: True}) for index in range(endpoint.num_envs)]
        if mode is AutoresetMode.SAME_STEP:
            infos += [(index, _final(endpoint, batch, index)) for index in range(endpoint.num_envs)]
        try:
            infos += yield from self._begin_now(endpoint, batch, mode, running, rolls_by_lanes)
        except (UnavailableError, DeadlineError) as error:
            _logger.warning("%s stays away: %s", endpoint.address, error)
        endpoint.is_loss_told = True
        return sorted(infos, key=lambda row: row[0])

    def _begin_now(
        self,
        endpoint: Endpoint,
        batch: Batch,
        mode: AutoresetMode,
        running: NDArray[np.bool_],
        rolls_by_lanes: bool,
    ) -> Beginning:
        """Begin the episodes whose first observations are due in the step that tells of a loss."""
        rolls_now = mode is AutoresetMode.NEXT_STEP and not running.any()
        if mode is AutoresetMode.SAME_STEP or rolls_now:
            first = yield from self.begin_anew(endpoint, batch)
        elif rolls_by_lanes and endpoint.over:
            # The others are rolled by the next step, as after any other end.
            first = yield from self._open_and_reset(endpoint, endpoint.over, batch)
        else:
            return []
        return [(index, {**info, INTERRUPTED: True}) for index, info in first]

    def begin_anew(
        self,
        endpoint: Endpoint,
        batch: Batch,
        seeds: Sequence[int | None] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Beginning:
        """Open a new session, with growing pauses in between, and reset all lanes.

        Blocks while there is nobody to connect to. A reset is sent again where it failed for want
        of a connection; unlike a step it may be. An UnavailableError means that nobody came back in
        time, a ConfigurationError that another environment did.
        """
        every = range(endpoint.num_envs)
        return (yield from self._open_and_reset(endpoint, every, batch, seeds, options))

    def _open_and_reset(
        self,
        endpoint: Endpoint,
        indices: Sequence[int],
        batch: Batch,
        seeds: Sequence[int | None] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Beginning:
        seeds = seeds or [None] * len(indices)
        opener = self.opener or _PlainOpener()
        comeback = Comeback(self._patience, opener.sleep)
        while True:
            try:
                self._reconnect(endpoint, opener)
                # All at once brings the endpoint back by itself; else it is back for two requests.
                endpoint.is_lost = is_whole(endpoint, indices, seeds)
                by_index = yield from reset_lanes(endpoint, indices, batch, seeds, options)
            except (UnavailableError, DeadlineError, EnvError) as error:  # noqa: PERF203
                # A deadline here is one of connecting; answers are waited for elsewhere.
                if not is_final(error):
                    raise
                endpoint.is_lost = True
                # An env that fails in its first reset may do so for ever.
                if isinstance(error, EnvError) and not self.takes_on(endpoint, error):
                    raise
                comeback.pause_after(error)
            else:
                _logger.info("%s is back", endpoint.address)
                return sorted(by_index.items())

    def _reconnect(self, endpoint: Endpoint, opener: Opener) -> None:
        old, source = endpoint.session, endpoint.source
        source.prepare()
        old.close()
        session = opener.open(source)
        expected, got = old.contract, session.contract
        if (expected.num_envs, expected.autoreset_mode) != (got.num_envs, got.autoreset_mode) or (
            expected.single_observation_space,
            expected.single_action_space,
        ) != (got.single_observation_space, got.single_action_space):
            session.close()
            raise ConfigurationError(
                f"{source.label} came back with another environment: expected "
                f"{expected.num_envs} lanes of {expected.env_id}, {expected.autoreset_mode.value}; "
                f"got {got.num_envs} of {got.env_id}, {got.autoreset_mode.value}"
            )
        if (session.has_partial_reset, session.has_lane_operations) != (
            old.has_partial_reset,
            old.has_lane_operations,
        ):
            session.close()
            raise ProtocolError(
                "came back with other capabilities", endpoint=source.label, operation="handshake"
            )
        endpoint.session = session


def _final(endpoint: Endpoint, batch: Batch, index: int) -> dict[str, Any]:
    """Return what a lane's last episode ended with, as SAME_STEP has it."""
    lane = endpoint.start + index
    episode_id = endpoint.table.episode_ids[lane]
    record = next((one for one in reversed(endpoint.log) if one.episode_id == episode_id), None)
    # It may have ended by itself in the very step whose reset was lost.
    by_itself = record is not None and not record.interrupted
    info = dict(record.final_info) if record is not None and by_itself else {INTERRUPTED: True}
    return {"final_obs": batch.sample(lane), "final_info": info}
