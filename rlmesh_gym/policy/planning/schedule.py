"""Which lanes get a plan now: the rules, on plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import MAX_EXECUTION_HORIZON

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PlanSchedule:
    """The rules of planning, on arrays with an element per lane.

    ``active`` lanes have a running episode, ``remaining`` frames are left of their chunk, and the
    observation of their newest plan is ``ages`` steps old.

    - A running lane with nothing left is due.
    - So is one whose newest plan is ``replan_interval`` steps old.
    - When any lane is due, lanes with at most ``coalesce`` frames left go along.
    - With ``prefetch`` the interval makes no lane due at once; instead lanes ask ahead of time that
      have few enough frames left that an answer comes just in time.
    """

    def __init__(
        self,
        horizon: int,
        replan_interval: int | None = None,
        coalesce: int = 0,
        *,
        prefetch: bool = False,
    ) -> None:
        for number in (horizon, replan_interval, coalesce):
            if number is not None and not isinstance(number, (int, np.integer)):
                message = f"horizon, interval and coalesce are whole numbers, got {number!r}"
                raise ConfigurationError(message)
        if not 1 <= horizon <= MAX_EXECUTION_HORIZON:
            message = f"execution_horizon is 1 to {MAX_EXECUTION_HORIZON}, got {horizon}"
            raise ConfigurationError(message)
        if replan_interval is not None and not 1 <= replan_interval <= horizon:
            message = f"replan_interval is 1 to execution_horizon={horizon}, got {replan_interval}"
            raise ConfigurationError(message)
        if coalesce < 0:
            raise ConfigurationError(f"coalesce is not negative, got {coalesce}")
        if prefetch and horizon < 2:  # noqa: PLR2004 - the least that leaves a frame to replay
            message = "prefetch needs an execution_horizon of 2 or more: nothing replays meanwhile"
            raise ConfigurationError(message)
        self.horizon = horizon
        self.replan_interval: int = horizon if replan_interval is None else replan_interval
        self.coalesce = coalesce
        self.prefetch = prefetch

    @property
    def overlaps(self) -> bool:
        """Whether lanes are planned again on purpose before their chunk is used up."""
        return self.replan_interval < self.horizon

    def due(
        self, active: NDArray[np.bool_], remaining: NDArray[np.intp], ages: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return a mask of the lanes that need a plan before they can act."""
        due: NDArray[np.bool_] = active & (remaining == 0)
        if self.overlaps and not self.prefetch:
            due |= active & (ages >= self.replan_interval)
        return due

    def along(
        self, active: NDArray[np.bool_], remaining: NDArray[np.intp], ages: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return a mask of the lanes that go along with a request that goes out anyway.

        A lane planned from this very observation, age 0, stays: that is one whose neighbours'
        request failed, so that the step is tried again.
        """
        return active & (remaining <= self.coalesce) & (ages > 0)

    def ahead(
        self,
        active: NDArray[np.bool_],
        remaining: NDArray[np.intp],
        ages: NDArray[np.int64],
        delay: int,
    ) -> NDArray[np.bool_]:
        """Return a mask of the lanes that must ask now to have their next plan in time.

        Those that go along are included. A lane planned from this very observation, age 0, is never
        among them: a second plan from it would tell nothing new. ``remaining`` is what is left
        after this step, and an answer takes ``delay`` steps.
        """
        old = active & (ages > 0)
        ahead = remaining < delay
        if self.overlaps:
            ahead |= ages >= self.replan_interval
        ahead &= old
        if ahead.any():
            ahead |= old & (remaining < delay + self.coalesce)
        return ahead
