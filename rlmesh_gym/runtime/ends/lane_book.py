"""The run's own book of lanes: what each one is doing, which episode it plays, what counts.

Everything about episodes is decided here, from what the driver did and what a step answered. Ids
that come back from an endpoint are never looked at.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any

from rlmesh_gym.lanes import LaneTable, mint_episode_id
from rlmesh_gym.runtime.report.runtime_report import EpisodeSummary
from rlmesh_gym.success import success_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rlmesh_gym.runtime.report.bottleneck import TimeShares
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec

__all__ = ["LaneBook", "LaneState"]


class LaneState(Enum):
    """What a lane is doing."""

    PLAYING = "playing"
    """An episode that counts; the lane has an observation to act on."""

    ROLLING = "rolling"
    """The env begins its next episode in the coming step, whatever the action."""

    ENDED = "ended"
    """Its episode is over and it must be reset before it can be stepped."""

    RESTING = "resting"
    """It runs on without counting: its share is done, or it waits for a reset of all lanes."""


class LaneBook:
    """State, episode and plan of every lane of a run.

    Args:
        spec: The run, validated.
        endpoints: Address of each lane's endpoint.
        env_id: Id of the environment.
        shares: Where the run's time goes, for the part that each episode had.

    Attributes:
        num_lanes: Number of lanes over all endpoints.
        states: State of each lane.
        table: Ids, seeds and sums of each lane's episode.
        total_steps: Steps of all episodes that count.
        total_reward: Their rewards.
    """

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        endpoints: Sequence[str],
        env_id: str,
        shares: TimeShares,
    ) -> None:
        self.num_lanes = len(endpoints)
        self.states = [LaneState.ENDED] * self.num_lanes
        self.table = LaneTable(self.num_lanes)
        self.total_steps = 0
        self.total_reward = 0.0
        self._spec = spec
        self._endpoints = endpoints
        self._env_id = env_id
        self._shares = shares
        self._quotas = [spec.quota(lane, self.num_lanes) for lane in range(self.num_lanes)]
        # Episodes begun per lane, those that do not count included: also the reset generation.
        self._begun = [0] * self.num_lanes
        self._begun_at = [0.0] * self.num_lanes
        self._waits_before = [(0.0, 0.0)] * self.num_lanes

    def lanes_in(self, state: LaneState) -> list[int]:
        """Return the lanes in a state, ascending."""
        return [lane for lane, found in enumerate(self.states) if found is state]

    def has_next(self, lane: int) -> bool:
        """Whether the plan has another episode for this lane after the one it plays."""
        quota = self._quotas[lane]
        return quota is None or self._begun[lane] < quota

    def is_fresh(self, lane: int) -> bool:
        """Whether the lane has not been reset yet in this run."""
        return self._begun[lane] == 0

    @property
    def is_done(self) -> bool:
        """Whether every episode of the plan has been played."""
        return not any(
            state is LaneState.PLAYING or self.has_next(lane)
            for lane, state in enumerate(self.states)
        )

    def next_seed(self, lane: int) -> int | None:
        """Return the seed for the lane's coming reset; None when unseeded."""
        return self._spec.seed_for(lane, self._begun[lane], self.num_lanes)

    def plan_index(self, lane: int) -> int:
        """Return the number in the plan of the episode that the lane plays."""
        return (self._begun[lane] - 1) * self.num_lanes + lane

    def mint(self, lanes: Iterable[int]) -> list[str]:
        """Mint an id for each lane's coming episode."""
        return [mint_episode_id() for _ in lanes]

    def begin(self, lane: int, episode_id: str, seed: int | None) -> bool:
        """Note that the lane holds the first observation of a new episode.

        Returns:
            Whether the episode counts.
        """
        counts = self.has_next(lane)
        self.table.begin([lane], [seed], [episode_id])
        self._begun[lane] += 1
        self._begun_at[lane] = time.time()
        self._waits_before[lane] = self._shares.env_wait, self._shares.policy_wait
        self.states[lane] = LaneState.PLAYING if counts else LaneState.RESTING
        return counts

    def advance(
        self,
        lanes: list[int],
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
    ) -> None:
        """Count one step of the lanes that play; the arrays have a place for every lane."""
        if not lanes:
            return
        every = len(lanes) == self.num_lanes
        chosen: Any = slice(None) if every else lanes
        self.table.advance(
            None if every else lanes, rewards[chosen], terminations[chosen], truncations[chosen]
        )
        self.total_steps += len(lanes)
        self.total_reward += float(rewards[chosen].sum())

    def lanes_to_cut(self, lanes: list[int]) -> list[int]:
        """Return those of the lanes whose episode a limit of the run ends after this step."""
        spec = self._spec
        if not spec.cuts_episodes:
            return []
        now = time.monotonic_ns()
        steps, seconds = spec.max_episode_steps, spec.max_episode_seconds
        return [
            lane
            for lane in lanes
            if (steps is not None and self.table.lengths[lane] >= steps)
            or (seconds is not None and now - self.table.begun_ns[lane] >= seconds * 1e9)
        ]

    def summarise(
        self,
        lane: int,
        *,
        terminated: bool = False,
        truncated: bool = False,
        interrupted: bool = False,
        final_info: dict[str, Any] | None = None,
    ) -> EpisodeSummary:
        """Write up the episode that the lane plays; nothing in the book changes."""
        table = self.table
        info = {} if final_info is None else final_info
        env_before, policy_before = self._waits_before[lane]
        return EpisodeSummary(
            episode_id=table.episode_ids[lane],
            lane=lane,
            endpoint=self._endpoints[lane],
            env_id=self._env_id,
            seed=table.seeds[lane],
            length=int(table.lengths[lane]),
            episode_return=float(table.returns[lane]),
            terminated=terminated,
            truncated=truncated,
            interrupted=interrupted,
            success=None if interrupted else success_of(info),
            started_at=self._begun_at[lane],
            duration=(time.monotonic_ns() - int(table.begun_ns[lane])) / 1e9,
            env_time=self._shares.env_wait - env_before,
            policy_time=self._shares.policy_wait - policy_before,
            index=self.plan_index(lane),
            final_info=info,
        )
