"""What a run says when an end did not answer in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlmesh_gym.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CallPlace", "late"]

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


def late(
    error: DeadlineError, limit: str, place: CallPlace, timeout: float | None = None
) -> DeadlineError:
    """Return the run's own error for a call that was late.

    Args:
        error: What the engine or the policy raised; to be its cause.
        limit: The run's limit that was met; empty where it was the policy's own.
        place: What the call was for.
        timeout: Seconds of the limit, where the run waits by it.
    """
    episodes = ", ".join(place.episode_ids[:_NAMED])
    more = len(place.episode_ids) - _NAMED
    if more > 0:
        episodes += f" and {more} more"
    where = f"at step {place.step}, lanes {list(place.lanes)}, episodes {episodes}"
    what = str(error).removeprefix(f"{error.endpoint}: ")
    if limit:
        waited = "in time" if timeout is None else f"within {timeout:g} s"
        what = (
            f"{error.operation}: no answer {waited}; the endpoint may still be at work, raise "
            f"limits.{limit} for slow ones"
        )
    return DeadlineError(f"{what} ({where})", endpoint=error.endpoint, operation=error.operation)
