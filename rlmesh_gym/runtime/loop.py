"""The loop of a run: reset, plan, step, take in, until the plan is played or a limit is met.

It moves rows and knows neither what they hold nor where the ends are.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import StateError
from rlmesh_gym.runtime import events
from rlmesh_gym.runtime.calls import CompletedCall
from rlmesh_gym.runtime.lane_book import LaneState
from rlmesh_gym.runtime.planning import EvictionQueue, LaneHistory, LaneReplay
from rlmesh_gym.runtime.rows import Rows, RowStore, gather
from rlmesh_gym.runtime.telemetry import ENV_RESET, ENV_STEP, MODEL_PREDICT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.runtime.bottleneck import TimeShares
    from rlmesh_gym.runtime.calls import Call, Waiter
    from rlmesh_gym.runtime.endpoint_lanes import EndpointLanes
    from rlmesh_gym.runtime.hooks import HookTable
    from rlmesh_gym.runtime.lane_book import LaneBook
    from rlmesh_gym.runtime.protocols import ResetReply, RuntimeModel, StepReply
    from rlmesh_gym.runtime.report import EpisodeSummary
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec
    from rlmesh_gym.runtime.telemetry import CallTiming, Telemetry

__all__ = ["RunLoop"]

# Requests of one row that are in flight together; servers drop clients that queue hundreds.
_MOST_REQUESTS = 32


class RunLoop:
    """One run's loop, once everything is connected.

    Args:
        spec: The run, validated.
        parts: The endpoints' lanes, in the order of the lanes.
        model: The model, resolved.
        wants_history: The model gets the observations of replayed steps.
        asks_apart: Every row goes to the model in a request of its own.
        book: The book of lanes.
        hooks: Who listens.
        telemetry: Where timings go.
        shares: Where the run's time goes.
        waiter: Waits for calls.
        identity: Session id, run id and env id of every event.

    Attributes:
        episodes: Summaries of the episodes completed so far, as they ended.
    """

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        parts: Sequence[EndpointLanes],
        model: RuntimeModel,
        *,
        wants_history: bool,
        asks_apart: bool,
        book: LaneBook,
        hooks: HookTable,
        telemetry: Telemetry,
        shares: TimeShares,
        waiter: Waiter,
        identity: tuple[str, str, str],
    ) -> None:
        self.episodes: list[EpisodeSummary] = []
        self._spec = spec
        self._parts = parts
        self._model = model
        self._wants_history = wants_history
        self._asks_apart = asks_apart
        self._book = book
        self._hooks = hooks
        self._telemetry = telemetry
        self._shares = shares
        self._waiter = waiter
        self._identity = identity
        self._tick = 0
        self._observations = RowStore(book.num_lanes)
        self._replay = LaneReplay(book.num_lanes, spec.execution_horizon)
        self._history = LaneHistory(book.num_lanes)
        self._evictions = EvictionQueue()
        self._filler: tuple[Rows, int] | None = None
        self._timings: list[CallTiming] = []
        # Episodes that the model has seen, so that no others are evicted.
        self._known: set[str] = set()
        # Whether no episode has ended since the last eviction.
        self._is_tidy = True
        self._action_format = parts[0].env.action_format
        self._observation_format = parts[0].env.observation_format

    def run(self) -> str:
        """Play until the plan is done or the step limit is met.

        Returns:
            ``"max_episodes"`` or ``"max_steps"``.

        Raises:
            CancelledRunError: The run was cancelled.
            Error: An end failed.
            Exception: A transform, or an end in this process, raised.
        """
        max_steps = self._spec.max_steps
        while not self._book.is_done:
            if max_steps is not None and self._book.total_steps >= max_steps:
                return "max_steps"
            self._waiter.check()
            self._reset()
            playing = self._book.lanes_in(LaneState.PLAYING)
            self._plan(playing)
            self._step(playing)
            self._evict()
            self._tick += 1
        return "max_episodes"

    def interrupt(self) -> list[EpisodeSummary]:
        """Write up the episodes that are going on, for a run that ends before them."""
        interrupted = []
        for lane in self._book.lanes_in(LaneState.PLAYING):
            summary = self._book.summarise(lane, interrupted=True)
            interrupted.append(summary)
            self._emit_completed(summary)
        return interrupted

    # Resets

    def _reset(self) -> None:
        book = self._book
        calls: list[tuple[EndpointLanes, list[int], list[str], Call[ResetReply]]] = []
        began = time.perf_counter()
        seeds: dict[int, int | None] = {}
        for part in self._parts:
            lanes = part.due_resets(book)
            if not lanes:
                continue
            ids = book.mint(lanes)
            seeds.update((lane, book.next_seed(lane)) for lane in lanes)
            call = part.env.reset(
                lanes=None
                if len(lanes) == len(part.lanes)
                else [part.local(lane) for lane in lanes],
                seeds=[seed for lane in lanes if (seed := seeds[lane]) is not None] or None,
                episode_ids=ids,
                options=self._spec.reset_options,
            )
            calls.append((part, lanes, ids, call))
        if not calls:
            return
        replies = self._wait_env([call for *_, call in calls], ENV_RESET, began)
        for (_, lanes, ids, _), reply in zip(calls, replies, strict=True):
            self._observations.put(lanes, reply.observations)
            for lane, episode_id in zip(lanes, ids, strict=True):
                self._begin(lane, episode_id, seeds[lane], by_env=False)

    def _begin(self, lane: int, episode_id: str, seed: int | None, *, by_env: bool) -> None:
        counts = self._book.begin(lane, episode_id, seed)
        self._replay.drop(lane)
        self._history.drop(lane)
        if counts and self._hooks.listens("episode_started"):
            self._hooks.emit(
                "episode_started",
                events.EpisodeStarted(
                    *self._identity,
                    lane=lane,
                    endpoint=self._part_of(lane).env.endpoint,
                    episode_id=episode_id,
                    seed=seed,
                    index=self._book.plan_index(lane),
                    started_from_auto_reset=by_env,
                    render=self._render,
                ),
            )

    def _part_of(self, lane: int) -> EndpointLanes:
        return next(part for part in self._parts if lane in part.lanes)

    # Planning

    def _plan(self, playing: list[int]) -> None:
        planned = self._replay.empty_among(playing)
        if self._wants_history and len(planned) < len(playing):
            replaying = sorted({*playing}.difference(planned))
            rows = self._transform_observation(replaying)
            for row, lane in enumerate(replaying):
                self._history.add(lane, self._tick, rows, row)
        if not planned:
            return
        rows = self._transform_observation(planned)
        groups: list[tuple[list[int], Rows]] = [(planned, rows)]
        if self._asks_apart:
            groups = [([lane], rows.take([row])) for row, lane in enumerate(planned)]
        for first in range(0, len(groups), _MOST_REQUESTS):
            self._predict(groups[first : first + _MOST_REQUESTS])

    def _predict(self, groups: list[tuple[list[int], Rows]]) -> None:
        """Ask for the plans of some groups of lanes, all in flight together."""
        self._timings.clear()
        began = time.perf_counter()
        calls = [self._ask(lanes, rows) for lanes, rows in groups]
        timeout = self._spec.limits.model_predict_timeout
        for (lanes, _), call in zip(groups, calls, strict=True):
            left = None if timeout is None else max(0.0, timeout - (time.perf_counter() - began))
            frames = self._wait(call, MODEL_PREDICT, left)
            kept = self._replay.load(lanes, frames, endpoint=self._model.endpoint)
            self._emit_received(lanes, kept)
        self._shares.add_policy(_waited(began, calls), self._timings)

    def _ask(self, lanes: list[int], rows: Rows) -> Call[list[Rows]]:
        table = self._book.table
        history = self._history.take(lanes, table) if self._wants_history else []
        if self._hooks.listens("observation_emitted"):
            for owners, past in history:
                self._emit_observation(past.step, owners, past.observations, is_history=True)
            self._emit_observation(self._tick, lanes, rows, is_history=False)
        self._known.update(table.episode_ids[lane] for lane in lanes)
        return self._model.predict(
            rows,
            [(table.episode_ids[lane], table.seeds[lane]) for lane in lanes],
            history=[past for _, past in history],
            step=self._tick if self._wants_history else None,
        )

    def _emit_received(self, lanes: list[int], frames: list[Rows]) -> None:
        if not self._hooks.listens("action_received"):
            return
        event = events.ActionReceived(
            *self._identity,
            step=self._tick,
            lanes=tuple(lanes),
            episode_ids=self._ids(lanes),
            num_frames=len(frames),
            frames=tuple(frames),
        )
        self._hooks.emit("action_received", event)

    def _transform_observation(self, lanes: list[int]) -> Rows:
        rows = self._observations.gather(lanes)
        if not self._hooks.listens("transform_observation"):
            return rows
        event = events.ObservationTransform(
            *self._identity, self._tick, tuple(lanes), self._ids(lanes), observations=rows.batch()
        )
        batch = self._hooks.transform(
            "transform_observation", event, None, lambda last, new: replace(last, observations=new)
        )
        return rows if batch is None else self._observation_format.from_batch(batch, len(lanes))

    def _emit_observation(
        self, step: int, lanes: Sequence[int], rows: Rows, *, is_history: bool
    ) -> None:
        event = events.ObservationEmitted(
            *self._identity, step, tuple(lanes), self._ids(lanes), is_history=is_history, rows=rows
        )
        self._hooks.emit("observation_emitted", event)

    # Steps

    def _step(self, playing: list[int]) -> None:
        actions = self._actions(playing)
        if actions is not None:
            self._filler = actions, 0
        began = time.perf_counter()
        calls: list[tuple[EndpointLanes, list[int], list[str], Call[StepReply]]] = []
        for part in self._parts:
            lanes = part.to_step(self._book)
            if not lanes:
                continue
            ids = self._step_ids(lanes)
            if lanes == playing and actions is not None:
                rows = actions
            else:
                rows = self._fill_up(lanes, playing, actions)
            call = part.env.step(
                rows,
                lanes=None
                if len(lanes) == len(part.lanes)
                else [part.local(lane) for lane in lanes],
                episode_ids=ids,
            )
            calls.append((part, lanes, ids, call))
        replies = self._wait_env([call for *_, call in calls], ENV_STEP, began)
        stepped = [(part, lanes, ids) for part, lanes, ids, _ in calls]
        self._take_in(playing, actions, list(zip(stepped, replies, strict=True)))

    def _actions(self, playing: list[int]) -> Rows | None:
        if not playing:
            return None
        rows = self._replay.take(playing)
        if not self._hooks.listens("transform_action"):
            return rows
        event = events.ActionTransform(
            *self._identity, self._tick, tuple(playing), self._ids(playing), actions=rows.batch()
        )
        batch = self._hooks.transform(
            "transform_action", event, None, lambda last, new: replace(last, actions=new)
        )
        return rows if batch is None else self._action_format.from_batch(batch, len(playing))

    def _fill_up(self, lanes: list[int], playing: list[int], actions: Rows | None) -> Rows:
        """Pick the actions of ``lanes``; one that does not play gets any that the space admits."""
        sources = (
            {} if actions is None else {lane: (actions, row) for row, lane in enumerate(playing)}
        )
        filler = self._filler
        if filler is None:
            # Nothing is stepped before a lane has acted.
            raise StateError("no lane has acted yet, so there is no action to step with")
        return gather([sources.get(lane, filler) for lane in lanes])

    def _step_ids(self, lanes: list[int]) -> list[str]:
        book = self._book
        if LaneState.ROLLING not in book.states:
            return [book.table.episode_ids[lane] for lane in lanes]
        minted = iter(book.mint(lane for lane in lanes if book.states[lane] is LaneState.ROLLING))
        return [
            next(minted) if book.states[lane] is LaneState.ROLLING else book.table.episode_ids[lane]
            for lane in lanes
        ]

    def _take_in(
        self,
        playing: list[int],
        actions: Rows | None,
        answers: list[tuple[tuple[EndpointLanes, list[int], list[str]], StepReply]],
    ) -> None:
        book = self._book
        rewards, terminations, truncations = _spread(answers, book.num_lanes)
        for (_, lanes, _), reply in answers:
            self._observations.put(lanes, reply.observations)
        if playing:
            every = len(playing) == book.num_lanes
            chosen: Any = slice(None) if every else playing
            book.table.advance(
                None if every else playing,
                rewards[chosen],
                terminations[chosen],
                truncations[chosen],
            )
            book.total_steps += len(playing)
            book.total_reward += float(rewards[chosen].sum())
        done = terminations | truncations
        if self._spec.cuts_episodes:
            cut = [lane for lane in playing if not done[lane] and book.must_cut(lane)]
            truncations[cut] = True
        if actions is not None:
            self._emit_step(playing, actions, rewards, terminations, truncations)
        if not (terminations.any() or truncations.any() or LaneState.ROLLING in book.states):
            return
        self._is_tidy = False
        for (part, lanes, ids), reply in answers:
            for row, lane in enumerate(lanes):
                if book.states[lane] is LaneState.ROLLING:
                    # This was no step of an episode: the observation begins the next one.
                    self._begin(lane, ids[row], None, by_env=True)
                    continue
                terminated, truncated = bool(terminations[lane]), bool(truncations[lane])
                if not (terminated or truncated):
                    continue
                if book.states[lane] is LaneState.PLAYING:
                    info = reply.final_info(row, ids[row])
                    self._complete(lane, terminated, truncated, info)
                self._move_on(part, lane, ended_by_env=bool(done[lane]))

    def _complete(
        self, lane: int, terminated: bool, truncated: bool, final_info: dict[str, Any]
    ) -> None:
        summary = self._book.summarise(
            lane, terminated=terminated, truncated=truncated, final_info=final_info
        )
        self.episodes.append(summary)
        self._emit_completed(summary)

    def _move_on(self, part: EndpointLanes, lane: int, *, ended_by_env: bool) -> None:
        """Bring a lane whose episode is over into its next state."""
        book = self._book
        book.states[lane] = part.state_after_end() if ended_by_env else LaneState.RESTING
        if ended_by_env and part.begins_at_once:
            [new_id] = book.mint([lane])
            self._begin(lane, new_id, None, by_env=True)

    def _emit_step(
        self,
        lanes: list[int],
        actions: Rows,
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
    ) -> None:
        if not self._hooks.listens("step_completed"):
            return
        event = events.StepCompleted(
            *self._identity,
            step=self._tick,
            lanes=tuple(lanes),
            episode_ids=self._ids(lanes),
            episode_steps=tuple(int(length) for length in self._book.table.lengths[lanes]),
            rewards=rewards[lanes],
            terminations=terminations[lanes],
            truncations=truncations[lanes],
            action_rows=actions,
            observation_rows=self._observations.gather(lanes),
            render=self._render,
        )
        self._hooks.emit("step_completed", event)

    def _render(self, lane: int) -> NDArray[np.uint8] | None:
        part = self._part_of(lane)
        call = part.env.render(part.local(lane))
        return self._waiter.wait(call, self._spec.limits.env_step_timeout)

    def _emit_completed(self, summary: EpisodeSummary) -> None:
        if self._hooks.listens("episode_completed"):
            self._hooks.emit("episode_completed", events.EpisodeCompleted(*self._identity, summary))

    # The model's memory

    def _evict(self) -> None:
        for call in self._evictions.due():
            self._waiter.wait(call, self._spec.limits.model_predict_timeout)
        if self._is_tidy:
            return
        self._is_tidy = True
        current = {
            self._book.table.episode_ids[lane] for lane in self._book.lanes_in(LaneState.PLAYING)
        }
        over = self._known - current
        if over:
            self._known &= current
            self._evictions.add(self._model.forget(sorted(over)))

    # Waiting

    def _ids(self, lanes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._book.table.episode_ids[lane] for lane in lanes)

    def _wait(self, call: Call[Any], operation: str, timeout: float | None) -> Any:
        self._telemetry.begin(operation)
        try:
            return self._waiter.wait(call, timeout)
        finally:
            self._telemetry.end()
            if call.done():
                timing = call.timing
                self._timings.append(timing)
                self._telemetry.record(operation, timing)

    def _wait_env(self, calls: Sequence[Call[Any]], operation: str, began: float) -> list[Any]:
        limits = self._spec.limits
        timeout = limits.env_reset_timeout if operation is ENV_RESET else limits.env_step_timeout
        replies = []
        self._timings.clear()
        for call in calls:
            # All were sent together, so they share one deadline.
            left = None if timeout is None else max(0.0, timeout - (time.perf_counter() - began))
            replies.append(self._wait(call, operation, left))
        self._shares.add_env(_waited(began, calls), self._timings)
        return replies


def _spread(
    answers: Sequence[tuple[tuple[EndpointLanes, list[int], list[str]], StepReply]], num_lanes: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return rewards, terminations and truncations of all lanes; 0 and False where none came."""
    if len(answers) == 1 and len(answers[0][0][1]) == num_lanes:
        reply = answers[0][1]
        return reply.rewards, reply.terminations, reply.truncations.copy()
    rewards = np.zeros(num_lanes, np.float64)
    terminations = np.zeros(num_lanes, np.bool_)
    truncations = np.zeros(num_lanes, np.bool_)
    for (_, lanes, _), reply in answers:
        rewards[lanes] = reply.rewards
        terminations[lanes] = reply.terminations
        truncations[lanes] = reply.truncations
    return rewards, terminations, truncations


def _waited(began: float, calls: Sequence[Call[Any]]) -> float:
    """Return the seconds that calls sent at ``began`` took; converting for local ends is ours."""
    if isinstance(calls[0], CompletedCall):
        return sum(call.timing.rpc_ns for call in calls) / 1e9
    return time.perf_counter() - began
