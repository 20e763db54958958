"""What a run says when an end did not answer in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.errors import DeadlineError

__all__ = ["CallPlace", "add_place"]

_NAMED = 4  # More than that nobody reads.


class CallPlace(NamedTuple):
    """What a call of a run was for.

    Attributes:
        step: Number of the vector step.
        lanes: Its lanes, as the run numbers them.
        episode_ids: Their episodes.
    """

    step: int
    lanes: Sequence[int]
    episode_ids: Sequence[str]


def add_place(error: DeadlineError, place: CallPlace) -> None:
    """Add step, lanes and episodes to the message of an error that is about to be raised.

    The error names endpoint, operation and limit already; it is changed in place, so that cause
    and traceback stay.
    """
    episodes = ", ".join(place.episode_ids[:_NAMED])
    more = len(place.episode_ids) - _NAMED
    if more > 0:
        episodes += f" and {more} more"
    lanes = [int(lane) for lane in place.lanes]
    error.args = (f"{error} (at step {place.step}, lanes {lanes}, episodes {episodes})",)
