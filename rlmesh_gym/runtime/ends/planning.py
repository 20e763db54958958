"""The model's side of the loop: whom to plan, what each lane replays, what the model remembers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ProtocolError
from rlmesh_gym.runtime.ends.protocols import HistoryRows
from rlmesh_gym.runtime.ends.rows import gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.lanes import LaneTable
    from rlmesh_gym.runtime.calls import Call
    from rlmesh_gym.runtime.ends.rows import Rows

__all__ = ["EvictionQueue", "LaneHistory", "LaneReplay"]


class LaneReplay:
    """What is left of each lane's chunk: rows of the model's answers, neither copied nor decoded.

    Args:
        num_lanes: Number of lanes.
        horizon: Frames that are executed of each chunk.
    """

    def __init__(self, num_lanes: int, horizon: int) -> None:
        self._horizon = horizon
        # Per lane: the batches of its chunk that are left, next one last, and its row in them.
        self._frames: list[list[Rows]] = [[] for _ in range(num_lanes)]
        self._rows = [0] * num_lanes

    def empty_among(self, lanes: Sequence[int]) -> list[int]:
        """Return those of the lanes that have no frame left."""
        frames = self._frames
        return [lane for lane in lanes if not frames[lane]]

    def load(self, lanes: Sequence[int], frames: list[Rows], *, endpoint: str) -> list[Rows]:
        """Give lanes a new chunk each, in place of what they had.

        Args:
            lanes: Lane of each row.
            frames: One batch per step; those beyond the horizon are dropped.
            endpoint: Who gave them, for the error.

        Returns:
            The frames that will be executed.

        Raises:
            ProtocolError: There is no frame.
        """
        if not frames:
            raise ProtocolError(
                "predict: the answer holds no action frame; the model must return at least one",
                endpoint=endpoint,
                operation="predict",
            )
        kept = frames[: self._horizon]
        reversed_frames = kept[::-1]
        for row, lane in enumerate(lanes):
            self._frames[lane] = reversed_frames.copy()
            self._rows[lane] = row
        return kept

    def take(self, lanes: Sequence[int]) -> Rows:
        """Take the next frame of some lanes, each of which has one left; at least one lane."""
        frames, rows = self._frames, self._rows
        return gather([(frames[lane].pop(), rows[lane]) for lane in lanes])

    def drop(self, lane: int) -> None:
        """Forget what the lane has left, since its episode is over."""
        self._frames[lane].clear()


class LaneHistory:
    """Observations of replayed steps, kept until the model is asked about their lane again.

    Args:
        num_lanes: Number of lanes.
    """

    def __init__(self, num_lanes: int) -> None:
        self._steps: list[list[tuple[int, Rows, int]]] = [[] for _ in range(num_lanes)]

    def add(self, lane: int, step: int, rows: Rows, row: int) -> None:
        """Keep one observation that the lane acted on without asking the model."""
        self._steps[lane].append((step, rows, row))

    def drop(self, lane: int) -> None:
        """Forget a lane's observations, since its episode is over."""
        self._steps[lane] = []

    def take(self, lanes: Sequence[int], table: LaneTable) -> list[tuple[list[int], HistoryRows]]:
        """Take everything kept for some lanes.

        Returns:
            Per step, ascending: the lanes that replayed it, and their rows.
        """
        by_step: dict[int, list[tuple[int, tuple[Rows, int]]]] = {}
        for lane in lanes:
            for step, rows, row in self._steps[lane]:
                by_step.setdefault(step, []).append((lane, (rows, row)))
            self._steps[lane] = []
        history = []
        for step in sorted(by_step):
            owners = [lane for lane, _ in by_step[step]]
            rows = gather([source for _, source in by_step[step]])
            episodes = tuple((table.episode_ids[lane], table.seeds[lane]) for lane in owners)
            history.append((owners, HistoryRows(step, rows, episodes)))
        return history


class EvictionQueue:
    """Evictions that were sent and not waited for; their errors come up with a later one.

    Args:
        limit: Calls that may be unanswered at a time.
    """

    def __init__(self, limit: int = 16) -> None:
        self._calls: deque[Call[Any]] = deque()
        self._limit = limit

    def add(self, call: Call[Any]) -> None:
        """Take in one that was just sent."""
        self._calls.append(call)

    def due(self) -> list[Call[Any]]:
        """Return those that are answered, and the oldest beyond the limit, to be waited for."""
        due = []
        while self._calls and (self._calls[0].done() or len(self._calls) > self._limit):
            due.append(self._calls.popleft())
        return due
