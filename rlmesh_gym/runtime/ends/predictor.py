"""The model's side of a run: it plans the lanes that need it, and knows what each one replays."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rlmesh_gym.runtime.deadlines import CallPlace
from rlmesh_gym.runtime.ends.planning import EvictionQueue, LaneHistory, LaneReplay
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.telemetry import MODEL_PREDICT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.runtime.calls import Call
    from rlmesh_gym.runtime.context import RunContext
    from rlmesh_gym.runtime.ends.protocols import RuntimeModel
    from rlmesh_gym.runtime.ends.rows import RowFormat, Rows, RowStore

__all__ = ["Predictor"]

# Requests of one row that are in flight together; servers drop clients that queue hundreds.
_MOST_REQUESTS = 32


class Predictor:
    """Turns the lanes' observations into their actions.

    Args:
        context: The run.
        model: The model, resolved.
        observations: The latest observation of each lane.
        formats: Formats of observations and actions.
        wants_history: The model gets the observations of replayed steps.
        asks_apart: Every row goes to the model in a request of its own.

    Attributes:
        calls: Predictions answered so far.
        rows: Rows in them.
        most_frames: Most frames of one prediction that are executed; 0 before the first.
    """

    def __init__(
        self,
        context: RunContext,
        model: RuntimeModel,
        observations: RowStore,
        formats: tuple[RowFormat, RowFormat],
        *,
        wants_history: bool,
        asks_apart: bool,
    ) -> None:
        num_lanes = context.book.num_lanes
        self._context = context
        self._model = model
        self._observations = observations
        self._observation_format, self._action_format = formats
        self._wants_history = wants_history
        self._asks_apart = asks_apart
        self._replay = LaneReplay(num_lanes, context.spec.execution_horizon)
        self._history = LaneHistory(num_lanes)
        self._evictions = EvictionQueue()
        self.calls = self.rows = self.most_frames = 0
        # Episodes that the model has seen, so that no others are evicted.
        self._known: set[str] = set()

    def begin(self, lane: int) -> None:
        """Forget what the lane has left of its last episode."""
        self._replay.drop(lane)
        self._history.drop(lane)

    def plan(self, playing: list[int], step: int) -> None:
        """Ask the model for those of the lanes that have no action left.

        Args:
            playing: Lanes with an observation to act on, ascending.
            step: Number of the vector step that will act.
        """
        planned = self._replay.empty_among(playing)
        if self._wants_history and len(planned) < len(playing):
            replaying = sorted({*playing}.difference(planned))
            rows = self._transform(replaying, step)
            for row, lane in enumerate(replaying):
                self._history.add(lane, step, rows, row)
        if not planned:
            return
        rows = self._transform(planned, step)
        groups: list[tuple[list[int], Rows]] = [(planned, rows)]
        if self._asks_apart:
            groups = [([lane], rows.take([row])) for row, lane in enumerate(planned)]
        for first in range(0, len(groups), _MOST_REQUESTS):
            self._predict(groups[first : first + _MOST_REQUESTS], step)

    def _predict(self, groups: list[tuple[list[int], Rows]], step: int) -> None:
        context = self._context
        began = time.perf_counter()
        answers = context.calls.together(
            [self._ask(lanes, rows, step) for lanes, rows in groups],
            MODEL_PREDICT,
            began,
            context.spec.limits.model_predict_timeout,
            lambda number: CallPlace(step, groups[number][0], context.ids(groups[number][0])),
        )
        for (lanes, _), frames in zip(groups, answers, strict=True):
            kept = self._replay.load(lanes, frames, endpoint=self._model.endpoint)
            self.most_frames = max(self.most_frames, len(kept))
            self.calls += 1
            self.rows += len(lanes)
            if context.hooks.listens("action_received"):
                context.emit(
                    "action_received",
                    events.ActionReceived,
                    step=step,
                    lanes=tuple(lanes),
                    episode_ids=context.ids(lanes),
                    num_frames=len(kept),
                    frames=tuple(kept),
                )

    def _ask(self, lanes: list[int], rows: Rows, step: int) -> Call[list[Rows]]:
        table = self._context.book.table
        history = self._history.take(lanes, table) if self._wants_history else []
        if self._context.hooks.listens("observation_emitted"):
            for owners, past in history:
                self._emit_observation(past.step, owners, past.observations, is_history=True)
            self._emit_observation(step, lanes, rows, is_history=False)
        ids, seeds = table.episode_ids, table.seeds
        episodes = [(ids[lane], seeds[lane]) for lane in lanes]
        self._known.update([episode_id for episode_id, _ in episodes])
        return self._model.predict(
            rows,
            episodes,
            history=[past for _, past in history],
            step=step if self._wants_history else None,
        )

    def _transform(self, lanes: list[int], step: int) -> Rows:
        rows = self._observations.gather(lanes)
        context = self._context
        if not context.hooks.listens("transform_observation"):
            return rows
        event = events.ObservationTransform(
            *context.identity, step, tuple(lanes), context.ids(lanes), observations=rows.batch()
        )
        batch = context.hooks.transform(
            "transform_observation", event, None, lambda last, new: replace(last, observations=new)
        )
        return rows if batch is None else self._observation_format.from_batch(batch, len(lanes))

    def _emit_observation(
        self, step: int, lanes: Sequence[int], rows: Rows, *, is_history: bool
    ) -> None:
        self._context.emit(
            "observation_emitted",
            events.ObservationEmitted,
            step=step,
            lanes=tuple(lanes),
            episode_ids=self._context.ids(lanes),
            is_history=is_history,
            rows=rows,
        )

    def actions(self, playing: list[int], step: int) -> Rows:
        """Take the next action of each of the lanes, at least one, all planned before."""
        rows = self._replay.take(playing)
        context = self._context
        if not context.hooks.listens("transform_action"):
            return rows
        event = events.ActionTransform(
            *context.identity, step, tuple(playing), context.ids(playing), actions=rows.batch()
        )
        batch = context.hooks.transform(
            "transform_action", event, None, lambda last, new: replace(last, actions=new)
        )
        return rows if batch is None else self._action_format.from_batch(batch, len(playing))

    def settle_evictions(self) -> None:
        """Take in the answers to evictions that have come.

        Raises:
            ModelError: The model refused one.
        """
        for call in self._evictions.due():
            self._context.calls.untimed(call, self._context.spec.limits.model_predict_timeout)

    def evict(self, playing: Sequence[int]) -> None:
        """Let the model forget the episodes that it knows and that no lane plays any more."""
        over = self._known.difference(self._context.ids(playing))
        if over:
            self._known -= over
            self._evictions.add(self._model.forget(sorted(over)))
