"""The lanes of one env of a run: how they are reset, and which of them a step is for."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.reading.infos import BatchedInfos
from rlmesh_gym.errors import AutoresetError, ConfigurationError
from rlmesh_gym.lanes import all_true, any_true

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.group import EndpointGroup
    from rlmesh_gym.env.reading.infos import InfoRows
    from rlmesh_gym.episodes import EpisodeRecord
    from rlmesh_gym.rpc import AnyPending
    from rlmesh_gym.runtime.ends.plan import EpisodePlan
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec


class ResetWay(Enum):
    """How a lane comes to its next episode."""

    AUTO = "auto"
    """The env does it: NEXT_STEP or SAME_STEP as it is."""

    LANES = "lanes"
    """The run resets ended lanes and steps only the others."""

    PARTIAL = "partial"
    """The run resets ended lanes; every step is for all lanes."""

    WHOLE = "whole"
    """The run resets all lanes together, once each of them has ended."""


class EnvLanes:
    """One env's part of the run; ``lanes``, also as the slice ``rows``, are the run's numbers."""

    def __init__(self, group: EndpointGroup, first: int, spec: RuntimeSessionSpec) -> None:
        self.group = group
        self.lanes: range = range(first, first + group.num_envs)
        self.rows: slice = slice(first, first + group.num_envs)
        self.mode: AutoresetMode = group.mode
        self._num_changes = group.table.num_changes
        self._takes_lane_seeds = all(
            getattr(endpoint.session, "takes_lane_seeds", True) for endpoint in group.endpoints
        )
        self.way: ResetWay = self._choose(spec)
        if spec.episode_seeds is not None and not self._takes_lane_seeds:
            raise ConfigurationError(
                f"{group.endpoints[0].address}: this vector env takes one seed for all of its "
                "lanes, so episode_seeds cannot be given to it; use a base seed, or a SyncVectorEnv"
            )

    def _choose(self, spec: RuntimeSessionSpec) -> ResetWay:
        # The env's own autoreset knows neither our seeds nor our limits.
        is_ours = spec.episode_seeds is not None or spec.cuts_episodes
        endpoints = self.group.endpoints
        if self.mode is not AutoresetMode.DISABLED:
            if not is_ours:
                return ResetWay.AUTO
        elif all(endpoint.session.has_lane_operations for endpoint in endpoints):
            return ResetWay.LANES
        if len(self.lanes) > 1 and all(endpoint.can_reset_lanes for endpoint in endpoints):
            return ResetWay.PARTIAL
        return ResetWay.WHOLE

    @property
    def addresses(self) -> list[str]:
        """Address of each lane's endpoint."""
        return [
            address
            for endpoint in self.group.endpoints
            for address in getattr(
                endpoint.session, "lane_addresses", [endpoint.address] * endpoint.num_envs
            )
        ]

    def watch(
        self,
        answered: Callable[[AnyPending], None] | None,
        recorded: Callable[[EpisodeRecord], None] | None,
    ) -> None:
        """Hear of every answer and of every episode that is over; None ends it."""
        self.group.log.watch = recorded
        for endpoint in self.group.endpoints:
            # Under wrappers of this process may be endpoints elsewhere, whose timings count.
            for watched in getattr(endpoint.session, "remote_endpoints", ()) or (endpoint,):
                watched.watch = answered

    # Resets

    def due_resets(self, plan: EpisodePlan) -> list[int]:
        """Return the lanes that must be reset before the next step, ascending."""
        playing = plan.playing
        if all_true(playing[self.rows]):
            return []
        due = [lane for lane in self.lanes if not playing[lane] and plan.has_next(lane)]
        if due and all(map(plan.is_fresh, self.lanes)):
            return list(self.lanes)
        if self.way is ResetWay.AUTO:
            # A lost endpoint cannot begin an episode by itself, but for what a step has to tell.
            return self._with_lost([lane for lane in due if self._is_gone(lane)])
        if self.way is ResetWay.LANES:
            return self._with_lost(due)
        ended: list[int] = []
        if self.mode is AutoresetMode.DISABLED:
            ended = (np.flatnonzero(self.group.table.ended) + self.rows.start).tolist()
        is_playing = any_true(playing[self.rows])
        if self.way is ResetWay.WHOLE:
            if is_playing and ended:
                self._refuse(ended)
            return list(self.lanes) if due and not is_playing else []
        # A vector env takes no step while a lane has ended, so lanes that are done come along.
        return self._with_lost(sorted({*due, *ended})) if is_playing or due else []

    def _is_gone(self, lane: int) -> bool:
        index = lane - self.rows.start
        endpoint = self.group.endpoint_of(index)
        return endpoint.is_lost and endpoint.is_loss_told

    def _with_lost(self, due: list[int]) -> list[int]:
        """Add the other lanes of endpoints that were lost: those are only reset as a whole."""
        lost = [endpoint for endpoint in self.group.endpoints if endpoint.is_lost]
        if not lost or not due:
            return due
        start = self.rows.start
        along = (lane + start for endpoint in lost for lane in endpoint.lanes)
        return sorted({*due, *along})

    def _refuse(self, ended: list[int]) -> None:
        raise AutoresetError(
            f"{self.group.endpoints[0].address}: lanes {ended} have ended while others have not, "
            "and this endpoint can only reset all of its lanes together (DISABLED autoreset "
            "without partial reset); serve it with NEXT_STEP autoreset, as a list of single "
            "environments, or with episodes of one length"
        )

    def start_reset(
        self, lanes: list[int], plan: EpisodePlan, options: Mapping[str, Any] | None
    ) -> None:
        """Send a reset of some lanes, or of all."""
        count = len(self.lanes)
        seeds: list[int | None] = [None] * count
        for lane in lanes:
            seeds[lane - self.rows.start] = plan.next_seed(lane)
        mask = None
        if len(lanes) < count:
            mask = np.zeros(count, np.bool_)
            mask[[lane - self.rows.start for lane in lanes]] = True
        if not self._takes_lane_seeds and seeds[0] is not None:
            # It spreads the one seed that it takes in its own way.
            seeds = [seeds[0] + lane for lane in range(count)]
        self.group.start_reset(seeds, mask, options, read_only=True)

    def seed_of(self, lane: int) -> int | None:
        """Return the seed that began the lane's episode; None where it got none of its own."""
        return self.group.table.seeds[lane - self.rows.start] if self._takes_lane_seeds else None

    # Steps

    def has_changed(self) -> bool:
        """Whether episodes have begun or ended since the last call, whatever made them."""
        before, self._num_changes = self._num_changes, self.group.table.num_changes
        return self._num_changes != before

    def is_active(self, plan: EpisodePlan) -> bool:
        """Whether a step of this env brings the run further."""
        if any_true(plan.playing[self.rows]):
            return True
        rolls = self.way is ResetWay.AUTO and self.mode is AutoresetMode.NEXT_STEP
        ended = self.group.table.ended
        return rolls and any(
            ended[index] and plan.has_next(lane) for index, lane in enumerate(self.lanes)
        )

    def start_step(self, actions: Leaves, plan: EpisodePlan) -> None:
        """Send a step, of a row per lane of the run, for those that play where lanes can be."""
        stepped = plan.playing[self.rows] if self.way is ResetWay.LANES else None
        rows = actions
        if len(self.lanes) < plan.num_lanes:
            rows = [leaf[self.rows] for leaf in actions]
        self.group.start_step(rows, stepped=stepped, read_only=True)

    def finish(self, timeout: float | None) -> tuple[Batch, CallInfos]:
        """Wait for what was sent; see ``EndpointGroup.finish``."""
        batch, parts = self.group.finish(timeout)
        return batch, CallInfos(parts)

    def cut(self, lane: int, info: dict[str, Any]) -> None:
        """Write up the lane's episode as truncated by the run."""
        index = lane - self.rows.start
        endpoint = self.group.endpoint_of(index)
        endpoint.cut(index - endpoint.start, info)


class CallInfos:
    """Infos of one call, looked at only for lanes that somebody asks about."""

    def __init__(self, parts: Sequence[tuple[Endpoint, InfoRows]]) -> None:
        self._parts = parts

    def of(self, index: int) -> dict[str, Any]:
        """Return one lane's info, fresh; empty where there is none."""
        for endpoint, infos in self._parts:
            if index not in endpoint.lanes or infos is None:
                continue
            if isinstance(infos, BatchedInfos):
                return infos.row(index - endpoint.start)
            return next((info for at, info in infos if at == index - endpoint.start), {})
        return {}
