"""The loop of a run: reset, act, step, take in, until the plan is played or a limit is met.

It drives the lane engines of the envs and the planner of the policy, and decides what those leave
to their users: which lanes are reset when, with which seed, and which episodes count.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.env.drive.batch import Batch
from rlmesh_gym.errors import DeadlineError, RemoteError, ResetNeededError, UnavailableError
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.policy.episodes import Boundaries, name_few
from rlmesh_gym.restarts import Comeback, RestartBudget
from rlmesh_gym.runtime.context import late
from rlmesh_gym.runtime.ends.env_lanes import ResetWay
from rlmesh_gym.runtime.ends.policies import WholePolicy
from rlmesh_gym.runtime.ends.rows import Rows
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.report.metrics import ENV_RESET, ENV_STEP, MODEL_PREDICT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.env.drive.batch import Numbers
    from rlmesh_gym.episodes import EpisodeRecord
    from rlmesh_gym.runtime.cancellation import CancellationWatch
    from rlmesh_gym.runtime.context import RunContext
    from rlmesh_gym.runtime.ends.env_lanes import CallInfos, EnvLanes
    from rlmesh_gym.runtime.ends.policies import RunPolicy
    from rlmesh_gym.runtime.ends.watcher import RunWatcher
    from rlmesh_gym.runtime.report.bottleneck import TimeShares


class RunLoop:
    """One run's loop, once everything is connected.

    Args:
        context: The run.
        envs: The envs' lanes, in the order of the lanes.
        policy: The policy, set up.
        watcher: What the policy tells.
        codecs: Codecs of one observation and of one action.
        shares: Where the run's time goes, for the part that each episode had.
        watch: Raises where the run was cancelled.

    Attributes:
        episodes: Records of the episodes that are over, as they ended.
        total_steps: Steps of all episodes that count.
        total_reward: Their rewards.
    """

    def __init__(
        self,
        context: RunContext,
        envs: Sequence[EnvLanes],
        policy: RunPolicy,
        watcher: RunWatcher,
        *,
        codecs: tuple[SpaceCodec, SpaceCodec],
        shares: TimeShares,
        watch: CancellationWatch,
    ) -> None:
        self.episodes: list[EpisodeRecord] = []
        self.total_steps: int = 0
        self.total_reward: float = 0.0
        self._context = context
        self._plan = context.plan
        self._hooks = context.hooks
        self._clock = context.clock
        self._cuts_episodes = context.spec.cuts_episodes
        self._transforms: bool = context.hooks.listens("transform_action")
        self._tells_steps: bool = context.hooks.listens("step_completed")
        self._envs = envs
        self._policy = policy
        self._watcher = watcher
        self._observation_codec, self._action_codec = codecs
        self._shares = shares
        self._watch = watch
        self._budget = RestartBudget(context.spec.limits.max_restarts)
        self._tick = 0
        num_lanes = self._plan.num_lanes
        self._env_of = [env for env in envs for _ in env.lanes]
        self._endpoints = [address for env in envs for address in env.addresses]
        self._ids = [""] * num_lanes
        self._seeds: list[int | None] = [None] * num_lanes
        self._nowhere = np.zeros(num_lanes, np.bool_)
        self._begun = self._nowhere
        self._begun_ns = [0] * num_lanes
        self._waits_before = [(0.0, 0.0)] * num_lanes
        self._bounds: Boundaries | None = None
        self._observations: Leaves = []
        # Written up by the engines since the last call, by episode.
        self._records: dict[str, EpisodeRecord] = {}
        self._filler = [np.repeat(leaf, num_lanes, axis=0) for leaf in policy.lanes.filler]
        for env in envs:
            env.watch(context.clock.note, self._keep_record)

    def run(self) -> str:
        """Play until the plan is done or the step limit is met.

        Returns:
            ``"max_episodes"`` or ``"max_steps"``.

        Raises:
            CancelledRunError: The run was cancelled.
            Error: An end failed.
            Exception: A transform raised.
        """
        plan, max_steps = self._plan, self._context.spec.max_steps
        while not plan.is_done:
            if max_steps is not None and self.total_steps >= max_steps:
                return "max_steps"
            self._watch.check()
            if self._bounds is None or not self._bounds.all_run:
                self._reset()
            bounds = self._look()
            self._step(bounds, self._act(bounds))
            self._tick += 1
        return "max_episodes"

    def close(self) -> list[EpisodeRecord]:
        """Write up the episodes that are going on, for a run that ends before them."""
        for env in self._envs:
            env.watch(None, None)
        lanes = np.flatnonzero(self._plan.playing).tolist()
        interrupted = []
        for lane in lanes:
            env = self._env_of[lane]
            record = env.group.table.record(
                lane - env.lanes.start,
                endpoint=self._endpoints[lane],
                env_id=self._context.identity[2],
                interrupted=True,
            )
            interrupted.append(self._of_run(lane, record))
        return interrupted

    def _keep_record(self, record: EpisodeRecord) -> None:
        self._records[record.episode_id] = record

    # Resets

    def _reset(self) -> None:
        due = [(env, lanes) for env in self._envs if (lanes := env.due_resets(self._plan))]
        if not due:
            return
        spec = self._context.spec
        with self._clock.timed(ENV_RESET):
            for env, lanes in due:
                env.start_reset(lanes, self._plan, spec.reset_options)
            self._clock.sent()
            for env, _ in due:
                batch, _ = self._finish(env, "env_reset_timeout")
                self._take_observations(env, batch)
        self._take_cut_off([env for env, _ in due])
        self._records.clear()  # Of episodes that do not count.
        for env, lanes in due:
            for lane in lanes:
                self._begin(env, lane, by_env=False)

    def _take_cut_off(self, envs: Sequence[EnvLanes]) -> None:
        """Write up episodes that went on while other lanes were reset, and were lost with that."""
        cut_off = [
            lane
            for env in envs
            for lane in env.lanes
            if self._plan.playing[lane] and self._ids[lane] in self._records
        ]
        if cut_off:
            ids = [self._ids[lane] for lane in cut_off]
            for lane in cut_off:
                self._complete(lane)
            self._recount()
            self._policy.lanes.adapter.evictions.end(ids)

    def _begin(self, env: EnvLanes, lane: int, *, by_env: bool) -> None:
        self._bounds = None
        table, index = env.group.table, lane - env.lanes.start
        self._ids[lane] = table.episode_ids[index]
        self._seeds[lane] = seed = env.seed_of(lane)
        self._begun_ns[lane] = int(table.begun_ns[index])
        self._waits_before[lane] = self._shares.env_wait, self._shares.policy_wait
        if not self._plan.begin(lane):
            return
        if self._begun is self._nowhere:
            self._begun = self._nowhere.copy()
        self._begun[lane] = True
        if self._hooks.listens("episode_started"):
            self._context.emit(
                events.EpisodeStarted,
                lane=lane,
                endpoint=self._endpoints[lane],
                episode_id=self._ids[lane],
                seed=seed,
                index=self._plan.index(lane),
                started_from_auto_reset=by_env,
                render=self._render,
            )

    # Actions

    def _look(self) -> Boundaries:
        """Say what the lanes' observations are, anew after every change of episodes."""
        if self._bounds is None:
            playing = self._plan.playing.copy()
            ids, seeds = tuple(self._ids), tuple(self._seeds)
            self._bounds = Boundaries(playing, self._begun, (), ids, seeds)
        return self._bounds

    def _act(self, bounds: Boundaries) -> Leaves:
        """Return the actions of all lanes; those that do not play get one that means nothing."""
        if not len(bounds.running):
            return self._filler
        self._watcher.begin(self._tick)
        try:
            with self._clock.timed(MODEL_PREDICT):
                actions = self._predict(bounds)
        except DeadlineError as error:
            limit = "" if isinstance(self._policy, WholePolicy) else "model_predict_timeout"
            raise late(error, limit, self._place(bounds.running.tolist())) from error
        if bounds.begun is not self._nowhere:
            self._begun, self._bounds = self._nowhere, None
        if not self._transforms:
            return actions
        lanes = bounds.running
        event = events.ActionTransform(
            *self._context.identity,
            self._tick,
            tuple(lanes.tolist()),
            self._names(lanes),
            actions=self._action_codec.unflatten([leaf[lanes] for leaf in actions], len(lanes)),
        )
        batch = self._hooks.transform(
            "transform_action", event, None, lambda last, new: replace(last, actions=new)
        )
        if batch is not None:
            changed = self._action_codec.flatten(batch, len(lanes))
            actions = [leaf.copy() for leaf in actions]  # Events hold on to what the model gave.
            for leaf, part in zip(actions, changed, strict=True):
                leaf[lanes] = part
        return actions

    def _predict(self, bounds: Boundaries) -> Leaves:
        """Ask the policy, again where the model was lost and may come back."""
        comeback: Comeback | None = None
        while True:
            try:
                return self._policy.act(self._observations, bounds)
            except UnavailableError as error:  # noqa: PERF203
                spec = self._context.spec
                if spec.on_failure != "restart":
                    raise
                if comeback is None:
                    if not self._budget.takes_on("model", error, self._watcher.calls):
                        raise
                    comeback = Comeback(spec.limits.restart_patience, self._watch.sleep)
                    text = (
                        f"connection to {self._policy.endpoint} lost; waiting for it to come back"
                    )
                    self._hooks.log(logging.WARNING, text)
                comeback.pause_after(error)

    # Steps

    def _step(self, bounds: Boundaries, actions: Leaves) -> None:
        active = self._envs
        playing = bounds.active
        if not bounds.all_run:
            active = [env for env in self._envs if env.is_active(self._plan)]
        infos: list[CallInfos] = []
        batches: list[Batch] = []
        with self._clock.timed(ENV_STEP):
            for env in active:
                env.start_step(actions, self._plan)
            self._clock.sent()
            for env in active:
                batch, told = self._finish(env, "env_step_timeout")
                infos.append(told)
                self._take_observations(env, batch)
                batches.append(batch)
        if not active:
            return
        rewards, terminations, truncations = self._numbers(active, batches)
        earned = (rewards if bounds.all_run else rewards[playing]).tolist()
        self.total_steps += len(earned)
        self.total_reward += sum(earned)
        over = self._nowhere
        changed = [env for env in active if env.has_changed()]
        if changed:
            over = (terminations | truncations) & playing
        cut: set[int] = set()
        if self._cuts_episodes:
            mask = self._to_cut(playing) & ~over
            cut.update(np.flatnonzero(mask).tolist())
            truncations = truncations | mask  # A new array: the old one is the env's.
            over = over | mask
        if earned and self._tells_steps:
            self._emit_step(bounds, actions, (rewards, terminations, truncations))
        if not changed and not cut:
            return
        self._take_ends(list(zip(active, infos, strict=True)), over, cut)

    def _take_ends(
        self,
        stepped: Sequence[tuple[EnvLanes, CallInfos]],
        over: NDArray[np.bool_],
        cut: set[int],
    ) -> None:
        """Take in the episodes that ended with a step, those that the run cuts among them."""
        ids = self._names(np.flatnonzero(over))  # Before other episodes begin on these lanes.
        for env, told in stepped:
            for lane in env.lanes:
                if lane in cut:
                    env.cut(lane, told.of(lane - env.lanes.start))
                if over[lane]:
                    self._complete(lane)
                self._take_beginning(env, lane)
        if ids and any(record.interrupted for record in self.episodes[-len(ids) :]):
            self._recount()
        self._records.clear()
        self._policy.lanes.adapter.evictions.end(ids)

    def _numbers(self, envs: Sequence[EnvLanes], batches: Sequence[Batch]) -> Numbers:
        """Return rewards and flags of all lanes, zero where none was stepped."""
        if len(envs) == len(self._envs) == 1:
            return batches[0].numbers
        found = Batch(self._observation_codec, self._plan.num_lanes)
        for env, batch in zip(envs, batches, strict=True):
            found.put_numbers(env.rows, batch.numbers)
        return found.numbers

    def _recount(self) -> None:
        """Count the steps anew: one that was lost was none."""
        lengths = np.concatenate([env.group.table.lengths for env in self._envs])
        running = int(lengths[self._plan.playing].sum())
        self.total_steps = running + sum(record.length for record in self.episodes)

    def _take_beginning(self, env: EnvLanes, lane: int) -> None:
        """Take in an episode that the env has begun by itself."""
        new_id = env.group.table.episode_ids[lane - env.lanes.start]
        if new_id == self._ids[lane]:
            return
        self._bounds = None
        if env.way is ResetWay.AUTO:
            self._begin(env, lane, by_env=True)
        else:
            self._ids[lane] = new_id  # It goes on uncounted, until the run resets it.

    def _complete(self, lane: int) -> None:
        self._bounds = None
        record = self._of_run(lane, self._records[self._ids[lane]])
        self.episodes.append(record)
        if record.interrupted:
            self._plan.replay(lane)
        else:
            self._plan.playing[lane] = False
        self._emit_completed(record)

    def _of_run(self, lane: int, record: EpisodeRecord) -> EpisodeRecord:
        """Return an engine's record as the run's own, with its place in the plan."""
        env_before, policy_before = self._waits_before[lane]
        return replace(
            record,
            lane=lane,
            endpoint=self._endpoints[lane],
            env_id=self._context.identity[2],
            seed=self._seeds[lane],
            index=self._plan.index(lane),
            env_time=self._shares.env_wait - env_before,
            policy_time=self._shares.policy_wait - policy_before,
            final_info=jsonable(record.final_info),
        )

    def _to_cut(self, playing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the lanes whose episode a limit of the run ends after this step."""
        spec = self._context.spec
        cut = np.zeros(len(playing), np.bool_)
        for env in self._envs:
            if spec.max_episode_steps is not None:
                cut[env.rows] |= env.group.table.lengths >= spec.max_episode_steps
        if spec.max_episode_seconds is not None:
            before = time.monotonic_ns() - spec.max_episode_seconds * 1e9
            cut |= np.array([begun <= before for begun in self._begun_ns])
        return cut & playing

    # What came back

    def _finish(self, env: EnvLanes, limit: str) -> tuple[Batch, CallInfos]:
        timeout = getattr(self._context.spec.limits, limit)
        try:
            return env.finish(self._context.clock.left(timeout))
        except DeadlineError as error:
            raise late(error, limit, self._place(env.lanes), timeout) from error
        except UnavailableError as error:
            # The session had ended before: a run does not go on in a new one, so what ended it
            # says more than advice to reset.
            gone = error.__cause__
            if isinstance(gone, ResetNeededError) and isinstance(gone.__cause__, RemoteError):
                raise gone.__cause__ from None
            raise

    def _take_observations(self, env: EnvLanes, batch: Batch) -> None:
        count = self._plan.num_lanes
        if len(env.lanes) == count:
            self._observations = batch.leaves
            return
        # Events may hold on to the last ones, so they are not written over.
        old = self._observations or self._observation_codec.empty(count)
        self._observations = [leaf.copy() for leaf in old]
        for leaf, part in zip(self._observations, batch.leaves, strict=True):
            leaf[env.rows] = part

    # Events

    def _emit_step(self, bounds: Boundaries, actions: Leaves, numbers: Numbers) -> None:
        lanes = bounds.running
        rewards, terminations, truncations = [column[lanes] for column in numbers]
        lengths = np.concatenate([env.group.table.lengths for env in self._envs])
        self._context.emit(
            events.StepCompleted,
            step=self._tick,
            lanes=tuple(lanes.tolist()),
            episode_ids=self._names(lanes),
            episode_steps=tuple(self._lengths(lanes, lengths)),
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            action_rows=Rows(self._action_codec, [leaf[lanes] for leaf in actions], len(lanes)),
            observation_rows=Rows(
                self._observation_codec, [leaf[lanes] for leaf in self._observations], len(lanes)
            ),
            render=self._render,
        )

    def _lengths(self, lanes: NDArray[np.intp], lengths: NDArray[np.int64]) -> list[int]:
        # Under SAME_STEP the table holds the next episode already, the record the one that ended.
        return [
            int(lengths[lane]) if record is None else record.length
            for lane in lanes.tolist()
            for record in [self._records.get(self._ids[lane])]
        ]

    def _emit_completed(self, record: EpisodeRecord) -> None:
        """Tell the hooks of an episode that is over."""
        if self._hooks.listens("episode_completed"):
            self._context.emit(events.EpisodeCompleted, episode=record)

    def _render(self, lane: int) -> NDArray[np.uint8] | None:
        env = self._env_of[lane]
        return env.group.render_lane(
            lane - env.lanes.start, self._context.spec.limits.env_step_timeout
        )

    def _names(self, lanes: NDArray[np.intp]) -> tuple[str, ...]:
        return tuple([self._ids[lane] for lane in lanes.tolist()])

    def _place(self, lanes: Sequence[int]) -> str:
        episodes = name_few([self._ids[lane] for lane in lanes])
        return f"at step {self._tick}, lanes {list(lanes)}, episodes {episodes}"
