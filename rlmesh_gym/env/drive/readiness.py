"""What must be true before a call is sent; each check names the lanes and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import ResetNeededError
from rlmesh_gym.lanes import any_true

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.lanes import LaneTable


def check_steppable(
    table: LaneTable, endpoints: Sequence[Endpoint], mode: AutoresetMode, *, restarts: bool
) -> None:
    """Check that every lane has an episode, or one that begins by itself.

    Under NEXT_STEP ended lanes begin anew by themselves. With ``restarts`` lost endpoints come back
    by themselves; under DISABLED a step tells of the loss, and the user resets their lanes.
    """
    rolls = mode is AutoresetMode.NEXT_STEP
    unseen = [lane for endpoint in endpoints if not endpoint.is_shown for lane in endpoint.lanes]
    if unseen:
        raise ResetNeededError(
            f"step: lanes {unseen} were reset in a call that failed, and nobody has seen their "
            "first observations; call reset() again"
        )
    if not any_true(table.ended):
        return
    # What came for some lanes is handed out first, whatever has become of them since.
    endpoints = [endpoint for endpoint in endpoints if endpoint.undelivered is None]
    lost = [endpoint for endpoint in endpoints if endpoint.is_lost]
    if rolls and not lost and "" not in table.episode_ids:
        return
    if lost and not restarts:
        names = ", ".join(endpoint.address for endpoint in lost)
        lanes = [lane for endpoint in lost for lane in endpoint.lanes]
        raise ResetNeededError(
            f"step: connection to {names} lost (lanes {lanes}); call reset() to reconnect"
        )
    ended = [
        endpoint.start + index
        for endpoint in endpoints
        for index in np.flatnonzero(endpoint.ended).tolist()
    ]
    fresh = [lane for lane in ended if not table.episode_ids[lane]]
    if fresh:
        raise ResetNeededError(f"step: lanes {fresh} were never reset; call reset() first")
    comes_back = mode is AutoresetMode.SAME_STEP
    lanes_back = {
        lane
        for endpoint in lost
        if comes_back or not endpoint.is_loss_told
        for lane in endpoint.lanes
    }
    if not rolls and not lanes_back.issuperset(ended):
        ended = [lane for lane in ended if lane not in lanes_back]
        raise ResetNeededError(
            f"step: the episodes of lanes {ended} are over; reset them first with "
            "reset(options={'reset_mask': mask})"
        )


def check_reset_of_undelivered(endpoint: Endpoint, indices: Sequence[int]) -> None:
    """Check that no part of what is to be handed out would be cut off."""
    if endpoint.undelivered is not None and len(indices) < endpoint.num_envs:
        raise ResetNeededError(
            f"reset: lanes {list(endpoint.lanes)} of {endpoint.address} moved on in a step that "
            "failed elsewhere; call step() for what came, or reset them together"
        )


def check_observed(endpoints: Sequence[Endpoint], mask: NDArray[np.bool_]) -> None:
    """Check that every lane outside the mask has an observation to show."""
    missing = [
        endpoint.start + index
        for endpoint in endpoints
        for index in np.flatnonzero(~endpoint.last.known).tolist()
        if not mask[endpoint.start + index]
    ]
    if missing:
        raise ResetNeededError(
            f"reset: lanes {missing} have no observation yet, so the first reset must include "
            "them; call reset() without reset_mask first"
        )
