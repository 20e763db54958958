"""The plan of a run: which episodes each lane plays, and which it is playing now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.lanes import any_true

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.runtime.spec import RuntimeSessionSpec


class RunPlan:
    """What is planned for every lane of a run, and how far it has come.

    A lane is ``playing`` in an episode that counts, with an observation to act on. One that is not
    may still be stepped along with others.
    """

    def __init__(self, spec: RuntimeSessionSpec, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.playing: NDArray[np.bool_] = np.zeros(num_lanes, np.bool_)
        self._spec = spec
        self._quotas = [spec.quota(lane, num_lanes) for lane in range(num_lanes)]
        # Episodes begun per lane, those that do not count included: also the reset generation.
        self._begun = [0] * num_lanes

    def has_next(self, lane: int) -> bool:
        """Whether there is another episode for this lane after the one that it plays."""
        quota = self._quotas[lane]
        return quota is None or self._begun[lane] < quota

    def is_fresh(self, lane: int) -> bool:
        """Whether the lane has not been reset yet in this run."""
        return self._begun[lane] == 0

    @property
    def is_done(self) -> bool:
        """Whether every episode has been played."""
        return not any_true(self.playing) and not any(map(self.has_next, range(self.num_lanes)))

    def next_seed(self, lane: int) -> int | None:
        """Return the seed for the lane's coming reset; None when unseeded."""
        return self._spec.seed_for(lane, self._begun[lane], self.num_lanes)

    def index(self, lane: int) -> int:
        """Return the number in the plan of the episode that the lane plays."""
        return (self._begun[lane] - 1) * self.num_lanes + lane

    def begin(self, lane: int) -> bool:
        """Note that the lane holds the first observation of a new episode; whether it counts."""
        counts = self.has_next(lane)
        self._begun[lane] += 1
        self.playing[lane] = counts
        return counts

    def replay(self, lane: int) -> None:
        """Plan the episode that the lane plays once more, since a fault has cut it off."""
        self._begun[lane] -= 1
        self.playing[lane] = False
