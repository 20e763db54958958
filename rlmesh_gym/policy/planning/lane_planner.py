"""Actions for all lanes, step by step: what is replayed, what is asked for, and when."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.errors import Error, ModelError
from rlmesh_gym.lanes import any_true
from rlmesh_gym.policy.planning.chunks import lane_indices
from rlmesh_gym.policy.planning.ensemble import EnsembleReplay
from rlmesh_gym.policy.planning.prefetch import DelayEstimate, PrefetchedPlans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.policy.adapter import ModelAdapter
    from rlmesh_gym.policy.episodes import Boundaries
    from rlmesh_gym.policy.planning.chunks import ActionChunkReplay, Lanes
    from rlmesh_gym.policy.planning.plan import Plan
    from rlmesh_gym.policy.planning.schedule import PlanSchedule
    from rlmesh_gym.policy.stats import PolicyStats


_LOGGER = logging.getLogger(__name__)


class LanePlanner:
    """The state of all lanes' plans, and who asks the model for them.

    A step that raises leaves it as it was, but for episodes that began or ended meanwhile: no frame
    is taken and no step counted, so the same step can be tried again. ``filler`` has one row, the
    action of lanes that are not running.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        replay: ActionChunkReplay,
        schedule: PlanSchedule,
        filler: Leaves,
        stats: PolicyStats,
    ) -> None:
        self._adapter = adapter
        self._replay = replay
        self._schedule = schedule
        self._stats = stats
        self._filler = [np.repeat(leaf, replay.num_lanes, axis=0) for leaf in filler]
        self._plan_steps = np.zeros(replay.num_lanes, np.int64)
        self._ahead = PrefetchedPlans(replay.num_lanes)
        self._delay = DelayEstimate()
        self._step = 0
        self._given_out_ns = 0
        self._is_single = schedule.horizon == 1 and not isinstance(replay, EnsembleReplay)
        self._keeps_plans = schedule.prefetch or not self._is_single

    def flush(self, lanes: Lanes = None) -> None:
        """Drop the plans of lanes, those in flight too; they are planned anew at the next step."""
        indices = lane_indices(lanes, self._replay.num_lanes)
        self._replay.flush(indices)
        touched = np.zeros(self._replay.num_lanes, np.bool_)
        touched[indices] = True
        self._stats.dropped_rows += self._ahead.drop_lanes(touched)

    def start_over(self, bounds: Boundaries) -> None:
        """Plan every lane anew, after a step that was broken off at a place that nobody knows."""
        self._adapter.start_over(bounds)
        self.flush()
        if self._adapter.history is not None:
            self._adapter.history.begin(np.arange(self._replay.num_lanes), self._step)

    def step(self, observations: Leaves, bounds: Boundaries) -> Leaves:
        """Give every lane its action for these observations, in fresh leaves."""
        if self._given_out_ns:
            self._delay.note_step(time.perf_counter_ns() - self._given_out_ns)
            self._given_out_ns = 0
        watcher = self._adapter.watcher
        if watcher is not None and self._adapter.history is not None:
            running = bounds.running
            ids = bounds.rows(running).ids
            observations = watcher.transform(self._step, running, ids, observations)
        self._turn(observations, bounds)
        if self._is_single:
            actions = self._plan_all(observations, bounds)
        else:
            actions = self._replay_all(observations, bounds)
        self._stats.steps += 1
        if not bounds.all_run:
            self._stats.idle_rows += int((~bounds.active).sum())
        if self._schedule.prefetch:
            self._look_ahead(observations, bounds)
            self._given_out_ns = time.perf_counter_ns()
        self._step += 1
        return actions

    def _plan_all(self, observations: Leaves, bounds: Boundaries) -> Leaves:
        """Plan every running lane: with a horizon of one frame there is nothing to replay."""
        running = bounds.running
        if not len(running):
            return [leaf.copy() for leaf in self._filler]
        plan = self._adapter.plan(running, observations, bounds, self._step)
        chunk, _ = self._chunk(plan, observations, bounds)
        if bounds.all_run:
            return [np.ascontiguousarray(leaf[:, 0]) for leaf in chunk]
        return self._fill_up(running, [leaf[:, 0] for leaf in chunk])

    def _replay_all(self, observations: Leaves, bounds: Boundaries) -> Leaves:
        """Give every running lane its next frame, and a plan first where it has none."""
        self._provide(observations, bounds)
        begun = time.perf_counter()
        if bounds.all_run:
            actions: Leaves = self._replay.pop()
        else:
            running = bounds.running
            actions = self._fill_up(running, self._replay.pop(running))
        self._stats.milliseconds["replay"] += 1e3 * (time.perf_counter() - begun)
        self._stats.replayed_rows += int((bounds.active & (self._ages() > 0)).sum())
        return actions

    def _fill_up(self, running: NDArray[np.intp], frames: Leaves) -> Leaves:
        """Return actions of all lanes: frames of those that run, the filler of the others."""
        actions = [leaf.copy() for leaf in self._filler]
        for whole, leaf in zip(actions, frames, strict=True):
            whole[running] = leaf
        return actions

    def _turn(self, observations: Leaves, bounds: Boundaries) -> None:
        """Take in the episodes that ended and began."""
        if bounds.over:
            self._adapter.evictions.end(bounds.over)
        if self._keeps_plans:
            stale = bounds.begun | ~bounds.active
            if any_true(stale):
                self.flush(np.flatnonzero(stale))
        history = self._adapter.history
        if history is not None:
            history.begin(np.flatnonzero(bounds.begun), self._step)
            history.prune(bounds.active)
            history.record(self._step, observations)

    def _provide(self, observations: Leaves, bounds: Boundaries) -> None:
        """See to it that every running lane has a frame."""
        plan = self._ask(observations, bounds)
        try:
            due = self._due(bounds)
            for early, rows in self._ahead.take(due, arrived=self._schedule.overlaps):
                self._load_early(early, rows)
        except BaseException:
            if plan is not None:
                plan.give_up()
            raise
        self._finish(plan, observations, bounds)
        # A prefetched plan may have come too late to have a frame left, or have been refused.
        self._finish(self._ask(observations, bounds), observations, bounds)

    def _ask(self, observations: Leaves, bounds: Boundaries) -> Plan | None:
        asked = self._ahead.lanes()
        due = self._due(bounds) & ~asked
        if not due.any():
            return None
        due |= ~asked & self._schedule.along(bounds.active, self._replay.remaining, self._ages())
        return self._adapter.plan(due.nonzero()[0], observations, bounds, self._step)

    def _due(self, bounds: Boundaries) -> NDArray[np.bool_]:
        return self._schedule.due(bounds.active, self._replay.remaining, self._ages())

    def _ages(self) -> NDArray[np.int64]:
        """Steps since the observation of each lane's newest plan, 0 for those planned just now."""
        return self._step - self._plan_steps

    def _finish(self, plan: Plan | None, observations: Leaves, bounds: Boundaries) -> None:
        if plan is None:
            return
        chunk, counts = self._chunk(plan, observations, bounds)
        begun = time.perf_counter()
        self._replay.load(plan.lanes, chunk, counts=counts)
        self._plan_steps[plan.lanes] = plan.step
        self._stats.milliseconds["replay"] += 1e3 * (time.perf_counter() - begun)

    def _chunk(
        self, plan: Plan, observations: Leaves, bounds: Boundaries
    ) -> tuple[Leaves, NDArray[np.intp]]:
        """Wait for a plan, asking for its rows one by one where they were refused together."""
        try:
            chunk, counts = plan.chunk()
        except ModelError as error:
            if not self._adapter.should_split(plan, error):
                raise
            plan = self._adapter.plan(plan.lanes, observations, bounds, self._step)
            chunk, counts = plan.chunk()
        self._learn(plan, chunk)
        return chunk, counts

    def _learn(self, plan: Plan, chunk: Leaves) -> None:
        self._adapter.learn(plan)
        if self._schedule.prefetch:
            self._delay.note_answer(plan.elapsed_ns)
        if self._adapter.watcher is not None:
            self._adapter.watcher.planned(plan, chunk)

    def _load_early(self, plan: Plan, rows: NDArray[np.intp]) -> None:
        is_new = plan.num_frames == 0
        try:
            chunk, counts = plan.chunk()
        except ModelError as error:
            if not self._adapter.should_split(plan, error):
                raise
            return  # Those of its lanes that are due are asked for one by one.
        if is_new:
            self._learn(plan, chunk)
        # Exactly the frames of the steps that the lane has taken since it was seen.
        passed = self._step - plan.step
        lanes = plan.lanes[rows]
        self._replay.load(lanes, [leaf[rows] for leaf in chunk], counts=counts[rows], skip=passed)
        self._plan_steps[lanes] = plan.step
        self._stats.dropped_frames += int(np.minimum(passed, counts[rows]).sum())

    def _look_ahead(self, observations: Leaves, bounds: Boundaries) -> None:
        """Ask for the plans that will be needed by the time their answers are there."""
        lanes = self._schedule.ahead(
            bounds.active & ~self._ahead.lanes(),
            self._replay.remaining,
            self._ages(),
            self._delay.frames(self._schedule.horizon),
        )
        if not lanes.any():
            return
        calls = self._stats.calls
        try:
            plan = self._adapter.plan(np.flatnonzero(lanes), observations, bounds, self._step)
        except Error as error:
            # This step's actions are good. The plan is asked for again when it is needed, and
            # raises then if the trouble lasts.
            _LOGGER.debug("asking ahead failed: %s", error)
            return
        self._ahead.add(plan)
        self._stats.prefetch_calls += self._stats.calls - calls
