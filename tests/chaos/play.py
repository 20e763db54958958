"""Playing through chaos, and looking at every single transition."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.errors import RemoteError
from tests.chaos.counted import (
    EPISODE,
    LANES,
    LENGTH,
    LIFE,
    NUM_ACTIONS,
    STEP,
    action_for,
    length_of,
)

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet, Kind

PATIENCE = 60.0


@dataclass
class Tally:
    """What was seen."""

    steps: int = 0
    transitions: int = 0
    episodes: int = 0
    interrupted: int = 0
    violations: list[str] = field(default_factory=list)
    faults: Counter[Kind] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count what another one has seen as well."""
        self.steps += other.steps
        self.transitions += other.transitions
        self.episodes += other.episodes
        self.interrupted += other.interrupted
        self.violations += other.violations
        self.faults += other.faults


class Watcher:
    """Knows for each lane what must come next."""

    def __init__(self, fleet: Fleet, mode: AutoresetMode) -> None:
        self.fleet = fleet
        self.mode = mode
        self.tally = Tally()
        self.num_envs = LANES * len(fleet.endpoints)
        self.shown = np.zeros((self.num_envs, 5), np.int64)
        self.ended = np.zeros(self.num_envs, np.bool_)
        self.is_cut = np.zeros(self.num_envs, np.bool_)
        self._losses_told = [0] * len(fleet.endpoints)
        self._losses_before = [0] * len(fleet.endpoints)

    def require(self, condition: object, lane: int, text: str) -> None:
        """Note what is wrong."""
        if not condition:
            where = f"step {self.tally.steps}, lane {lane}, {self.mode.name}"
            self.tally.violations.append(f"{where}: {text}")

    def begin(self, lane: int, now: Any, *, cut: bool) -> None:
        """A lane shows the first observation of an episode."""
        before = self.shown[lane]
        self.require(now[STEP] == 0, lane, f"a first observation of step {now[STEP]}")
        if not cut and self.tally.steps:
            self.require(now[LIFE] == before[LIFE], lane, "another env without a loss")
            self.require(
                now[EPISODE] == before[EPISODE] + 1, lane, f"episode {before} was followed by {now}"
            )
        self.ended[lane] = self.is_cut[lane] = False
        self.shown[lane] = now

    def go_on(self, lane: int, now: Any, reward: float, is_over: bool, action: int) -> None:
        """A lane has made one step of its episode."""
        before = self.shown[lane]
        expected = [*before[:STEP], before[STEP] + 1, before[LENGTH], action]
        self.require(list(now) == expected, lane, f"{list(before)} was followed by {list(now)}")
        self.require(reward == now[STEP], lane, f"step {now[STEP]} has the reward {reward}")
        self.require(is_over == (now[STEP] == now[LENGTH]), lane, f"ended is {is_over} at {now}")
        self.tally.transitions += 1
        self.tally.episodes += int(is_over)
        self.ended[lane] = is_over
        self.shown[lane] = now

    def see(self, observations: Any, results: Any, actions: Any) -> None:
        """Look at a step of all lanes."""
        rewards, terminations, truncations, infos = results
        self.tally.steps += 1
        lost = np.asarray(infos.get("interrupted", np.zeros(self.num_envs)), bool)
        self._count_losses(lost)
        for lane in range(self.num_envs):
            now, reward, is_over = observations[lane], rewards[lane], bool(terminations[lane])
            has_final = self.mode is AutoresetMode.SAME_STEP and (is_over or lost[lane])
            last = infos["final_obs"][lane] if has_final else now
            step = (last, reward, is_over, int(actions[lane]))
            if lost[lane]:
                self._see_loss(lane, now, step, truncated=bool(truncations[lane]))
                continue
            self.require(not truncations[lane], lane, "truncated without a loss")
            if self.ended[lane]:  # Rolled by this step; or told of a loss in the last one.
                self.begin(lane, now, cut=bool(self.is_cut[lane]))
                self.require(reward == 0 and not is_over, lane, "a reset with numbers of a step")
            else:
                self.go_on(lane, *step)
                if has_final:
                    self.begin(lane, now, cut=False)

    def see_reset(self, observations: Any, infos: Any, mask: Any) -> None:
        """Look at a reset of the lanes in ``mask``, and of those that were lost in it."""
        lost = np.asarray(infos.get("interrupted", np.zeros(self.num_envs)), bool)
        self._count_losses(lost & ~mask)
        for lane in np.flatnonzero(mask | lost).tolist():
            whose = lane // LANES
            mine = slice(whose * LANES, (whose + 1) * LANES)
            # Of one that is lost in the reset nobody speaks for the lanes that were to be reset.
            is_new = self.fleet.endpoints[whose].losses > self._losses_before[whose]
            self.tally.interrupted += int(lost[lane] and not mask[lane])
            self.begin(lane, observations[lane], cut=bool(self.is_cut[mine].any() or is_new))

    def before_step(self) -> None:
        """Note what was done until now; what is noticed later than in the next call is late."""
        self._losses_before = [endpoint.losses for endpoint in self.fleet.endpoints]

    def _count_losses(self, lost: Any) -> None:
        for number, endpoint in enumerate(self.fleet.endpoints):
            first = number * LANES
            if lost[first : first + LANES].any():
                self._losses_told[number] += 1
                told, done = self._losses_told[number], endpoint.losses
                self.require(told <= done, first, f"lost {told} times, harmed {done} times")

    def _see_loss(self, lane: int, now: Any, step: Any, *, truncated: bool) -> None:
        last, reward, is_over, _ = step
        if self.ended[lane]:  # It ended before, and that was said then.
            self.require(not truncated and not is_over, lane, "ended twice")
            if now[STEP] == 0:
                self.begin(lane, now, cut=True)
                return
            self.require(np.array_equal(now, self.shown[lane]), lane, f"left at {now}")
            self.is_cut[lane] = True
            return
        if np.array_equal(last, self.shown[lane]):
            self.require(reward == 0 and not is_over, lane, "numbers of a step without one")
        else:  # The step was done, and the endpoint lost afterwards.
            self.go_on(lane, *step)
        self.require(truncated is not is_over, lane, f"truncated is {truncated}, over {is_over}")
        self.tally.interrupted += int(truncated)
        self.ended[lane] = self.is_cut[lane] = True
        if self.mode is AutoresetMode.SAME_STEP:
            self.begin(lane, now, cut=True)


def play_vector(
    fleet: Fleet,
    mode: AutoresetMode,
    *,
    steps: int,
    until: float,
    seed: int,
    interrupted: int = 0,
    models: Fleet | None = None,
) -> Tally:
    """Step all lanes, through whatever is done to the endpoints, and to the model if there is one.

    Without a model actions are drawn at random. It goes on for so many steps, and until so many
    episodes were interrupted, or the time is over.
    """
    watcher = Watcher(fleet, mode)
    rng = np.random.default_rng(seed)
    with rg.RemoteVectorEnv(
        addresses=fleet.addresses,
        autoreset_mode=mode,
        on_failure="restart",
        max_restarts=None,
        restart_patience=PATIENCE,
    ) as envs:
        observations, _ = envs.reset(seed=seed)
        for lane in range(envs.num_envs):
            watcher.begin(lane, observations[lane], cut=True)
        policy = None if models is None else Patient(models.addresses[0], envs)
        harmed = [one for one in (fleet, models) if one is not None]
        for one in harmed:
            one.begin()
        tally = watcher.tally
        while tally.steps < steps or tally.interrupted < interrupted:
            if time.monotonic() > until:
                break
            if policy is None:
                actions = rng.integers(NUM_ACTIONS, size=envs.num_envs)
            else:
                actions = policy(observations)
                wrong = np.flatnonzero((actions != action_for(observations)) & ~watcher.ended)
                for lane in wrong.tolist():
                    watcher.require(False, lane, f"the model gave {actions[lane]}")
            watcher.before_step()
            observations, *results = envs.step(actions)
            watcher.see(observations, results, actions)
            if mode is AutoresetMode.DISABLED and watcher.ended.any():
                mask = watcher.ended.copy()
                observations, infos = envs.reset(options={"reset_mask": mask})
                watcher.see_reset(observations, infos, mask)
        for one in harmed:
            one.rest()
            watcher.tally.faults += one.faults
        if policy is not None:
            policy.close()
    return watcher.tally


class Patient(rg.RemotePolicy):
    """A policy that asks again when the model was lost."""

    def __call__(self, observations: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return super().__call__(observations)
            except RemoteError:  # noqa: PERF203 - until it is back
                if time.monotonic() > until:
                    raise


class Beginner(rg.RuntimeHooks):
    """Lets the harm begin with the first step, and counts steps."""

    def __init__(self, *fleets: Fleet) -> None:
        self.fleets = fleets
        self.steps = 0

    def step_completed(self, event: Any) -> None:
        self.steps += 1
        if self.steps == 1:
            for fleet in self.fleets:
                fleet.begin()


def play_run(envs: Fleet, model: Fleet, seeds: list[int]) -> Tally:
    """Let a run play one episode for each seed; each must be there once, whole and exact."""
    tally = Tally()
    hooks = Beginner(envs, model)
    report = rg.run(
        envs.addresses,
        model.addresses[0],
        episode_seeds=seeds,
        on_failure="restart",
        limits=rg.RuntimeLimits(max_restarts=None, restart_patience=PATIENCE),
        hooks=hooks,
    )
    envs.rest()
    model.rest()
    tally.faults = envs.faults + model.faults
    tally.steps = hooks.steps
    tally.transitions = report.total_steps
    tally.interrupted = sum(record.interrupted for record in report.episodes)
    whole = report.completed_episodes
    tally.episodes = len(whole)
    played = Counter(record.index for record in whole)
    if played != Counter(range(len(seeds))):
        tally.violations.append(f"of {len(seeds)} episodes these were played: {played}")
    for record in whole:
        length = length_of(seeds[record.index])
        got = (record.seed, record.length, record.episode_return)
        expected = (seeds[record.index], length, length * (length + 1) / 2)
        if got != expected:
            tally.violations.append(f"episode {record.index}: expected {expected}, got {got}")
    return tally
