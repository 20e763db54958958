"""The lanes of one endpoint: how they are reset, and which of them a step must name."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import AutoresetError
from rlmesh_gym.runtime.ends.lane_book import LaneState

if TYPE_CHECKING:
    from rlmesh_gym.runtime.ends.lane_book import LaneBook
    from rlmesh_gym.runtime.ends.protocols import RuntimeEnv
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec

__all__ = ["EndpointLanes", "ResetWay"]


class ResetWay(Enum):
    """How a lane comes to its next episode."""

    AUTO = "auto"
    """The env does it: NEXT_STEP or SAME_STEP as it is."""

    LANES = "lanes"
    """The driver resets ended lanes and steps only the others."""

    PARTIAL = "partial"
    """The driver resets ended lanes; every step is for all lanes."""

    WHOLE = "whole"
    """The driver resets all lanes together, once each of them has ended."""


class EndpointLanes:
    """One endpoint's part of the run.

    Args:
        env: The endpoint, connected.
        first: Number of its first lane in the run.
        spec: The run, validated.

    Attributes:
        env: The endpoint.
        lanes: Its lanes, as the run numbers them.
        mode: Its autoreset mode.
        way: How its lanes come to their next episodes.
    """

    def __init__(self, env: RuntimeEnv, first: int, spec: RuntimeSessionSpec) -> None:
        self.env = env
        self.lanes = range(first, first + env.contract.num_envs)
        self.mode = env.contract.autoreset_mode
        self.way = self._choose(spec)

    def _choose(self, spec: RuntimeSessionSpec) -> ResetWay:
        # The env's own autoreset knows neither our seeds nor our limits.
        is_ours = spec.episode_seeds is not None or spec.cuts_episodes
        if self.mode is not AutoresetMode.DISABLED and not is_ours:
            return ResetWay.AUTO
        if self.mode is AutoresetMode.DISABLED and self.env.has_lane_operations:
            return ResetWay.LANES
        if self.env.has_partial_reset and len(self.lanes) > 1:
            return ResetWay.PARTIAL
        return ResetWay.WHOLE

    def local(self, lane: int) -> int:
        """Return the lane's number within the endpoint."""
        return lane - self.lanes.start

    def named(self, lanes: list[int]) -> list[int] | None:
        """Return lanes of the run as a request names them; None for all of them."""
        if len(lanes) == len(self.lanes):
            return None
        return [lane - self.lanes.start for lane in lanes]

    def is_active(self, book: LaneBook) -> bool:
        """Whether a step of this endpoint brings the run further."""
        return any(
            book.states[lane] is LaneState.PLAYING
            or (book.states[lane] is LaneState.ROLLING and book.has_next(lane))
            for lane in self.lanes
        )

    def due_resets(self, book: LaneBook) -> list[int]:
        """Return the lanes that must be reset before the next step, ascending.

        Raises:
            AutoresetError: Some lanes have ended and cannot be reset without the others.
        """
        states = book.states
        ended = [lane for lane in self.lanes if states[lane] is LaneState.ENDED]
        due = [
            lane
            for lane in self.lanes
            if states[lane] is not LaneState.PLAYING and book.has_next(lane)
        ]
        if due and all(book.is_fresh(lane) for lane in self.lanes):
            return list(self.lanes)
        if self.way is ResetWay.AUTO:
            return []
        if self.way is ResetWay.LANES:
            return due
        playing = any(states[lane] is LaneState.PLAYING for lane in self.lanes)
        if self.way is ResetWay.WHOLE:
            if playing and ended:
                self._refuse(ended)
            return list(self.lanes) if due and not playing else []
        # A vector env takes no step while a lane has ended, so lanes that are done come along.
        return sorted({*due, *ended}) if playing or due else []

    def _refuse(self, ended: list[int]) -> None:
        message = (
            f"{self.env.endpoint}: lanes {ended} have ended while others have not, and this "
            "endpoint can only reset all of its lanes together (DISABLED autoreset without "
            "partial reset); serve it with NEXT_STEP autoreset, as a list of single environments, "
            "or with episodes of one length"
        )
        raise AutoresetError(message)

    def to_step(self, book: LaneBook) -> list[int]:
        """Return the lanes that the next step is for, ascending; empty for none."""
        if not self.is_active(book):
            return []
        if self.way is ResetWay.LANES:
            return [lane for lane in self.lanes if book.states[lane] is LaneState.PLAYING]
        return list(self.lanes)

    def state_after_end(self) -> LaneState:
        """Return the state of a lane whose episode the env has just ended."""
        if self.mode is AutoresetMode.DISABLED:
            return LaneState.ENDED
        if self.way is ResetWay.AUTO and self.mode is AutoresetMode.NEXT_STEP:
            return LaneState.ROLLING
        return LaneState.RESTING

    @property
    def begins_at_once(self) -> bool:
        """Whether a step that ends an episode already shows the next one."""
        return self.way is ResetWay.AUTO and self.mode is AutoresetMode.SAME_STEP
