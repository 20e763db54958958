"""What must be true before a call is sent; each check names the lanes and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.errors import ResetNeededError
from rlmesh_gym.lanes import any_true

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.lanes import LaneTable


def check_steppable(
    table: LaneTable, endpoints: Sequence[Endpoint], *, rolls: bool, restarts: bool
) -> None:
    """Check that every lane has an episode, or one that begins by itself.

    With ``rolls`` (NEXT_STEP) ended lanes begin anew by themselves; with ``restarts`` lost
    endpoints come back by themselves, once a step has told of the loss.
    """
    if not any_true(table.ended):
        return
    lost = [endpoint for endpoint in endpoints if endpoint.is_lost]
    if rolls and not lost and "" not in table.episode_ids:
        return
    if lost and not restarts:
        names = ", ".join(endpoint.address for endpoint in lost)
        lanes = [lane for endpoint in lost for lane in endpoint.lanes]
        raise ResetNeededError(
            f"step: {names} was lost, or interrupted at work, with its lanes {lanes}; call reset() "
            "first"
        )
    ended = np.flatnonzero(table.ended).tolist()
    fresh = [lane for lane in ended if not table.episode_ids[lane]]
    if fresh:
        raise ResetNeededError(f"step: lanes {fresh} were never reset; call reset() first")
    untold = {lane for endpoint in lost if not endpoint.is_loss_told for lane in endpoint.lanes}
    if not rolls and not untold.issuperset(ended):
        ended = [lane for lane in ended if lane not in untold]
        raise ResetNeededError(
            f"step: the episodes of lanes {ended} are over; reset them first with "
            "reset(options={'reset_mask': mask})"
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
