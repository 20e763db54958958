"""The loop of a run: reset, plan, step, take in, until the plan is played or a limit is met.

It moves rows and knows neither what they hold nor where the ends are.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlmesh_gym.errors import ConfigurationError, StateError
from rlmesh_gym.runtime.deadlines import CallPlace
from rlmesh_gym.runtime.ends.lane_book import LaneState
from rlmesh_gym.runtime.ends.rows import gather
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.telemetry import ENV_RESET, ENV_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.episodes import EpisodeRecord
    from rlmesh_gym.runtime.context import RunContext
    from rlmesh_gym.runtime.ends.endpoint_lanes import EndpointLanes
    from rlmesh_gym.runtime.ends.predictor import Predictor
    from rlmesh_gym.runtime.ends.protocols import StepReply
    from rlmesh_gym.runtime.ends.rows import Rows, RowStore

__all__ = ["RunLoop"]


class _Sent(NamedTuple):
    """A request to one endpoint: its lanes and the ids that went with it."""

    part: EndpointLanes
    lanes: list[int]
    ids: list[str]


class RunLoop:
    """One run's loop, once everything is connected.

    Args:
        context: The run.
        parts: The endpoints' lanes, in the order of the lanes.
        predictor: The model's side.
        observations: The latest observation of each lane.

    Attributes:
        episodes: Summaries of the episodes completed so far, as they ended.
    """

    def __init__(
        self,
        context: RunContext,
        parts: Sequence[EndpointLanes],
        predictor: Predictor,
        observations: RowStore,
    ) -> None:
        self.episodes: list[EpisodeRecord] = []
        self._context = context
        self._book = context.book
        self._hooks = context.hooks
        self._parts = parts
        self._predictor = predictor
        self._observations = observations
        self._tick = 0
        # An action that the space admits, for lanes that are stepped without playing.
        self._filler: tuple[Rows, int] | None = None

    def run(self) -> str:
        """Play until the plan is done or the step limit is met.

        Returns:
            ``"max_episodes"`` or ``"max_steps"``.

        Raises:
            CancelledRunError: The run was cancelled.
            ConfigurationError: The env cannot be given the seeds of the spec.
            Error: An end failed.
            Exception: A transform, or an end in this process, raised.
        """
        book = self._book
        max_steps = self._context.spec.max_steps
        while not book.is_done:
            if max_steps is not None and book.total_steps >= max_steps:
                return "max_steps"
            self._context.calls.check()
            self._reset()
            playing = book.lanes_in(LaneState.PLAYING)
            self._predictor.plan(playing, self._tick)
            ended = self._step(playing)
            self._predictor.settle_evictions()
            if ended:
                self._predictor.evict(book.lanes_in(LaneState.PLAYING))
            self._tick += 1
        return "max_episodes"

    def interrupted(self) -> list[EpisodeRecord]:
        """Write up the episodes that are going on, for a run that ends before them."""
        book = self._book
        return [book.summarise(lane, interrupted=True) for lane in book.lanes_in(LaneState.PLAYING)]

    # Resets

    def _reset(self) -> None:
        due = [(part, lanes) for part in self._parts if (lanes := part.due_resets(self._book))]
        if not due:
            return
        book, spec = self._book, self._context.spec
        began = time.perf_counter()
        sent: list[_Sent] = []
        calls = []
        seeds: dict[int, int | None] = {}
        for part, lanes in due:
            ids = book.mint(lanes)
            seeds.update((lane, book.next_seed(lane)) for lane in lanes)
            sent.append(_Sent(part, lanes, ids))
            calls.append(
                part.env.reset(
                    lanes=part.named(lanes),
                    seeds=[seed for lane in lanes if (seed := seeds[lane]) is not None] or None,
                    episode_ids=ids,
                    options=spec.reset_options,
                )
            )
        timeout = spec.limits.env_reset_timeout
        replies = self._context.calls.together(calls, ENV_RESET, began, timeout, self._places(sent))
        for (_, lanes, ids), reply in zip(sent, replies, strict=True):
            self._observations.put(lanes, reply.observations)
            if not reply.is_seeded:
                self._unseed(seeds, lanes)
            for lane, episode_id in zip(lanes, ids, strict=True):
                self._begin(lane, episode_id, seeds[lane], by_env=False)

    def _unseed(self, seeds: dict[int, int | None], lanes: list[int]) -> None:
        """Take back the seeds of lanes that did not get them."""
        if self._context.spec.episode_seeds is not None:
            message = (
                f"{self._part_of(lanes[0]).env.endpoint}: this vector env takes one seed for all "
                "of its lanes, so episode_seeds cannot be given to it; use a base seed, or a "
                "SyncVectorEnv"
            )
            raise ConfigurationError(message)
        seeds.update(dict.fromkeys(lanes))

    def _begin(self, lane: int, episode_id: str, seed: int | None, *, by_env: bool) -> None:
        counts = self._book.begin(lane, episode_id, seed)
        self._predictor.begin(lane)
        if counts and self._hooks.listens("episode_started"):
            self._context.emit(
                "episode_started",
                events.EpisodeStarted,
                lane=lane,
                endpoint=self._part_of(lane).env.endpoint,
                episode_id=episode_id,
                seed=seed,
                index=self._book.plan_index(lane),
                started_from_auto_reset=by_env,
                render=self._render,
            )

    def _places(self, sent: list[_Sent]) -> Callable[[int], CallPlace]:
        return lambda number: CallPlace(self._tick, sent[number].lanes, sent[number].ids)

    def _part_of(self, lane: int) -> EndpointLanes:
        return next(part for part in self._parts if lane in part.lanes)

    # Steps

    def _step(self, playing: list[int]) -> bool:
        """Step every endpoint that has something to do; return whether an episode ended."""
        actions = self._predictor.actions(playing, self._tick) if playing else None
        if actions is not None:
            self._filler = actions, 0
        began = time.perf_counter()
        sent: list[_Sent] = []
        calls = []
        for part in self._parts:
            lanes = part.to_step(self._book)
            if not lanes:
                continue
            ids = self._step_ids(lanes)
            if actions is not None and lanes == playing:
                rows = actions
            else:
                rows = self._fill_up(lanes, playing, actions)
            sent.append(_Sent(part, lanes, ids))
            calls.append(part.env.step(rows, lanes=part.named(lanes), episode_ids=ids))
        timeout = self._context.spec.limits.env_step_timeout
        replies = self._context.calls.together(calls, ENV_STEP, began, timeout, self._places(sent))
        return self._take_in(playing, actions, sent, replies)

    def _fill_up(self, lanes: list[int], playing: list[int], actions: Rows | None) -> Rows:
        """Pick the actions of ``lanes``; one that does not play gets any that the space admits."""
        sources: dict[int, tuple[Rows, int]] = {}
        if actions is not None:
            sources = {lane: (actions, row) for row, lane in enumerate(playing)}
        filler = self._filler
        if filler is None:
            # Nothing is stepped before a lane has acted.
            raise StateError("no lane has acted yet, so there is no action to step with")
        return gather([sources.get(lane, filler) for lane in lanes])

    def _step_ids(self, lanes: list[int]) -> list[str]:
        """Return the ids that go with a step: those of the coming episodes where a lane rolls."""
        book = self._book
        ids = [book.table.episode_ids[lane] for lane in lanes]
        if LaneState.ROLLING in book.states:
            for row, lane in enumerate(lanes):
                if book.states[lane] is LaneState.ROLLING:
                    [ids[row]] = book.mint([lane])
        return ids

    def _take_in(
        self,
        playing: list[int],
        actions: Rows | None,
        sent: list[_Sent],
        replies: list[StepReply],
    ) -> bool:
        book = self._book
        for (_, lanes, _), reply in zip(sent, replies, strict=True):
            self._observations.put(lanes, reply.observations)
        rewards, terminations, truncations = _spread(sent, replies, book.num_lanes)
        book.advance(playing, rewards, terminations, truncations)
        ended_by_env = terminations | truncations
        for lane in book.lanes_to_cut(playing):
            truncations[lane] |= not ended_by_env[lane]
        if actions is not None:
            self._emit_step(playing, actions, rewards, terminations, truncations)
        if not (terminations.any() or truncations.any() or LaneState.ROLLING in book.states):
            return False
        for (part, lanes, ids), reply in zip(sent, replies, strict=True):
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
                self._move_on(part, lane, ended_by_env=bool(ended_by_env[lane]))
        return True

    def _complete(
        self, lane: int, terminated: bool, truncated: bool, final_info: dict[str, Any]
    ) -> None:
        summary = self._book.summarise(
            lane, terminated=terminated, truncated=truncated, final_info=final_info
        )
        self.episodes.append(summary)
        self.emit_completed(summary)

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
        self._context.emit(
            "step_completed",
            events.StepCompleted,
            step=self._tick,
            lanes=tuple(lanes),
            episode_ids=self._context.ids(lanes),
            episode_steps=tuple(int(length) for length in self._book.table.lengths[lanes]),
            rewards=rewards[lanes],
            terminations=terminations[lanes],
            truncations=truncations[lanes],
            action_rows=actions,
            observation_rows=self._observations.gather(lanes),
            render=self._render,
        )

    def _render(self, lane: int) -> NDArray[np.uint8] | None:
        part = self._part_of(lane)
        call = part.env.render(part.local(lane))
        return self._context.calls.untimed(call, self._context.spec.limits.env_step_timeout)

    def emit_completed(self, summary: EpisodeRecord) -> None:
        """Tell the hooks of an episode that is over."""
        if self._hooks.listens("episode_completed"):
            self._context.emit("episode_completed", events.EpisodeCompleted, episode=summary)


def _spread(
    sent: Sequence[_Sent], replies: Sequence[StepReply], num_lanes: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return rewards, terminations and truncations of all lanes; 0 and False where none came."""
    if len(sent) == 1 and len(sent[0].lanes) == num_lanes:
        reply = replies[0]
        return reply.rewards, reply.terminations, reply.truncations.copy()
    rewards = np.zeros(num_lanes, np.float64)
    terminations = np.zeros(num_lanes, np.bool_)
    truncations = np.zeros(num_lanes, np.bool_)
    for (_, lanes, _), reply in zip(sent, replies, strict=True):
        rewards[lanes] = reply.rewards
        terminations[lanes] = reply.terminations
        truncations[lanes] = reply.truncations
    return rewards, terminations, truncations
