"""What came for the lanes of one endpoint in a step that failed, or was late, at another one.

Their environments have moved on, so nothing may be sent to them as if they had not: the next step
hands out what came and sends them nothing, whatever its actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch, Numbers
    from rlmesh_gym.env.reading.infos import InfoRows


@dataclass(frozen=True, slots=True)
class Undelivered:
    """One endpoint's share of a step: a row per lane, copies.

    ``shown`` are the observations that the user has been shown last, None where those of the step
    have to do.
    """

    leaves: Leaves
    numbers: Numbers
    infos: InfoRows
    shown: Leaves | None

    @classmethod
    def take(cls, batch: Batch, rows: slice, infos: InfoRows, shown: Leaves | None) -> Undelivered:
        """Take the share of some lanes out of a step's batch."""
        rewards, terminations, truncations = batch.numbers
        numbers = rewards[rows].copy(), terminations[rows].copy(), truncations[rows].copy()
        return cls([leaf[rows].copy() for leaf in batch.leaves], numbers, infos, shown)

    def put(self, batch: Batch, rows: slice) -> None:
        """Write it to the batch of a later step."""
        batch.put_rows(rows, self.leaves)
        batch.put_numbers(rows, self.numbers)
