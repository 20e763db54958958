"""Any run of any shape plays what its lanes would play alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.runtime import RuntimeHooks, events, run
from tests.fake_envs import CountingEnv
from tests.runtime.runtime_doubles import SteadyModel
from tests.runtime.test_runtime_driver import whole_only


def play_alone(length: int, lane: int, horizon: int, limit: int | None) -> tuple[int, float]:
    """Length and return of one episode of a lane, as the model of the doubles plays it."""
    steps = length if limit is None else min(length, limit)
    total = 0.0
    for step in range(steps):
        planned_at = step // horizon * horizon
        total += (lane + planned_at + 2 * (step - planned_at)) % 10
    return steps, total


class Order(RuntimeHooks):
    """Checks that events come in an order that makes sense.

    A failed check is a hook that raises, which ends no run; the ``log`` hook hears of it.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.running: dict[int, str] = {}
        self.steps: dict[str, int] = {}
        self.last_step = -1

    def episode_started(self, event: events.EpisodeStarted) -> None:
        assert event.lane not in self.running
        self.running[event.lane] = event.episode_id
        self.steps[event.episode_id] = 0

    def observation_emitted(self, event: events.ObservationEmitted) -> None:
        self.check(event)
        assert len(event.observations) == len(event.lanes)

    def action_received(self, event: events.ActionReceived) -> None:
        self.check(event)

    def step_completed(self, event: events.StepCompleted) -> None:
        self.check(event)
        assert event.step > self.last_step
        self.last_step = event.step
        for episode_id, steps in zip(event.episode_ids, event.episode_steps, strict=True):
            self.steps[episode_id] += 1
            assert self.steps[episode_id] == steps

    def check(self, event: Any) -> None:
        assert event.episode_ids == tuple(self.running[lane] for lane in event.lanes)

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        episode = event.episode
        assert self.running.pop(episode.lane) == episode.episode_id
        assert self.steps[episode.episode_id] == episode.length

    def log(self, event: events.LogEvent) -> None:
        self.failures.append(event.message)


@settings(max_examples=100, deadline=None)
@given(
    mode=st.sampled_from(list(AutoresetMode)),
    whole=st.booleans(),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    episodes=st.integers(0, 11),
    horizon=st.integers(1, 4),
    chunk=st.integers(1, 5),
    limit=st.none() | st.integers(1, 5),
    seeded=st.booleans(),
)
def test_any_run(
    mode: AutoresetMode,
    whole: bool,
    lengths: list[int],
    episodes: int,
    horizon: int,
    chunk: int,
    limit: int | None,
    seeded: bool,
) -> None:
    if whole and mode is AutoresetMode.DISABLED:
        lengths = [lengths[0]] * len(lengths)  # anything else is refused, and tested elsewhere
    makers = [partial(CountingEnv, length, base=float(lane)) for lane, length in enumerate(lengths)]
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    end = whole_only(envs) if whole else envs
    handler = SteadyModel(chunk)
    hooks = Order()
    seeds = list(range(50, 50 + episodes)) if seeded else None
    report = run(
        end,
        handler,
        episodes=episodes,
        episode_seeds=seeds,
        execution_horizon=horizon,
        max_episode_steps=limit,
        hooks=hooks,
    )
    num_envs = len(lengths)
    executed = min(horizon, chunk)
    assert hooks.failures == []
    assert hooks.running == {}
    assert [episode.index for episode in report.episodes] == list(range(episodes))
    for episode in report.episodes:
        assert episode.lane == episode.index % num_envs
        played = play_alone(lengths[episode.lane], episode.lane, executed, limit)
        assert (episode.length, episode.episode_return) == played
        assert episode.terminated == (lengths[episode.lane] == episode.length)
        assert episode.truncated == (not episode.terminated)
        if seeds is not None:
            assert episode.seed == seeds[episode.index]
    rows = sum(len(ids) for ids in handler.predicted)
    assert rows == sum(-(-episode.length // executed) for episode in report.episodes)
    assert report.total_steps == sum(episode.length for episode in report.episodes)
