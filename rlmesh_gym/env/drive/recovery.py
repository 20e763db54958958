"""``on_failure="restart"``: what becomes of the lanes of an endpoint that was lost.

Nothing is made up: the lanes are truncated where they were last seen, with reward 0 and
``infos["interrupted"]``, and go on with new episodes in a new session.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from rlmesh_gym.env.drive.resets import is_whole, reset_lanes, reset_whole
from rlmesh_gym.env.reading.infos import all_rows
from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ProtocolError,
    SessionRefusedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.exchange import Exchange
    from rlmesh_gym.rpc import AnyPending


INTERRUPTED = "interrupted"
"""Info key, True for lanes whose episode was cut off by the loss of their endpoint."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_SLOT_PATIENCE = 10.0
"""Until a server that is there sees that the lost session is over, and takes another."""

_logger = logging.getLogger(__name__)


class Recovery:
    """Opens lost sessions again, for ``patience`` seconds; 0 tries once.

    An endpoint that is lost more than ``max_restarts`` times without one step in between is given
    up; None never gives up.
    """

    def __init__(self, patience: float, max_restarts: int | None = None) -> None:
        given: object = patience
        if not isinstance(given, (int, float)) or not given >= 0:
            raise ConfigurationError(f"restart_patience must be seconds, got {patience!r}")
        count: object = max_restarts
        is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        if count is not None and not is_count:
            raise ConfigurationError(
                f"max_restarts must be a whole number of at least 0 or None, got {max_restarts!r}"
            )
        self._patience = patience
        self._max_restarts = max_restarts
        # What an endpoint was lost by, since its last step.
        self._causes: dict[int, list[str]] = {}
        self._slot_patience = max(patience, _SLOT_PATIENCE)

    def covers(self, error: Error) -> bool:
        """Whether a lost endpoint is what the error tells of.

        A deadline is none: the endpoint may only be slow, and the request is still under way.
        """
        return isinstance(error, (UnavailableError, EnvError))

    def takes_on(self, endpoint: Endpoint, error: Error) -> bool:
        """Whether an endpoint that this error has just ended is to be restarted.

        Call it before the endpoint's episodes are ended. Where it is given up, the error tells what
        it was lost by before.
        """
        if not self.covers(error):
            return False
        causes = self._causes.setdefault(endpoint.start, [])
        if endpoint.lengths.any():
            causes.clear()
        causes.append(str(error))
        if self._max_restarts is None or len(causes) <= self._max_restarts:
            return True
        history = "; ".join(f"{number}. {cause}" for number, cause in enumerate(causes, 1))
        error.args = (
            f"{error} (given up after {self._max_restarts} restarts without a step in between; the "
            f"causes were: {history})",
        )
        causes.clear()
        return False

    def report(self, endpoint: Endpoint, batch: Batch, *, begin_anew: bool) -> Exchange:
        """Tell the user that the lanes of a lost endpoint are truncated.

        With ``begin_anew`` (SAME_STEP) the new session is opened now and its first observations
        are returned, the last real ones as ``final_obs``.
        """
        lanes = endpoint.rows
        endpoint.is_loss_told = True
        batch.put_rows(lanes, endpoint.last.rows())
        rewards, terminations, truncations = batch.numbers
        rewards[lanes] = 0.0
        terminations[lanes] = False
        truncations[lanes] = True
        _logger.warning(
            "connection to %s lost; lanes %s are truncated", endpoint.address, list(endpoint.lanes)
        )
        if not begin_anew:
            return [(index, {INTERRUPTED: True}) for index in range(endpoint.num_envs)]
        final = [
            {"final_obs": batch.sample(lane), "final_info": {INTERRUPTED: True}}
            for lane in endpoint.lanes
        ]
        first = dict((yield from self.begin_anew(endpoint, batch)))
        rows: list[tuple[int, dict[str, Any]]] = []
        for index in range(endpoint.num_envs):
            rows.append((index, final[index]))
            rows.append((index, {**first.get(index, {}), INTERRUPTED: True}))
        return rows

    def begin_anew(
        self,
        endpoint: Endpoint,
        batch: Batch,
        seeds: Sequence[int | None] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Generator[AnyPending, Any, list[tuple[int, dict[str, Any]]]]:
        """Open a new session, with growing pauses in between, and reset all lanes.

        Blocks while there is nobody to connect to. A reset is sent again where it failed for want
        of a connection; unlike a step it may be. An UnavailableError means that nobody came back in
        time, a ConfigurationError that another environment did.
        """
        begun = time.monotonic()
        pause = _FIRST_PAUSE
        every = range(endpoint.num_envs)
        while True:
            try:
                self._reconnect(endpoint)
                if is_whole(endpoint, every, seeds):
                    infos = yield from reset_whole(endpoint, batch, seeds, options)
                    break
                endpoint.is_lost = False  # Seeds for some lanes only: two requests.
                by_index = yield from reset_lanes(endpoint, every, batch, seeds, options)
                return sorted(by_index.items())
            except (UnavailableError, DeadlineError) as error:
                # A deadline here is one of connecting; answers are waited for elsewhere.
                endpoint.is_lost = True
                refused = isinstance(error, SessionRefusedError)
                patience = self._slot_patience if refused else self._patience
                left = begun + patience - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(pause, left))  # The last try is made when the time is up.
                pause = min(2 * pause, _LONGEST_PAUSE)
        _logger.info("%s is back", endpoint.address)
        return all_rows(infos, endpoint.num_envs)

    def _reconnect(self, endpoint: Endpoint) -> None:
        old, source = endpoint.session, endpoint.source
        old.close()
        session = source.open()
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
