"""The pure parts: boundaries, schedule, delay, history, prefetched rows."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.policy.episodes import LocalEpisodes, TrackedEpisodes
from rlmesh_gym.policy.evictions import EpisodeEvictions
from rlmesh_gym.policy.history import ObservationHistory
from rlmesh_gym.policy.planning.prefetch import DelayEstimate, PrefetchedPlans
from rlmesh_gym.policy.planning.schedule import PlanSchedule
from rlmesh_gym.policy.stats import PolicyStats
from tests.policy.served_models import ScriptedLanes

NO = [False, False]


def masks(bounds: Any) -> tuple[list[bool], list[bool]]:
    return bounds.begun.tolist(), bounds.active.tolist()


def test_the_first_look_begins_every_lane() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.SAME_STEP)
    first = episodes.look(None)
    assert masks(first) == ([True, True], [True, True])
    assert len(set(first.episode_ids)) == 2
    again = episodes.look([False, True])
    assert masks(again) == ([False, True], [True, True])
    assert again.over == [first.episode_ids[1]]
    assert again.episode_ids[0] == first.episode_ids[0]


def test_same_step_begins_with_the_step_that_ended() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.SAME_STEP)
    episodes.look(None)
    episodes.observe_step([True, False], NO)
    assert masks(episodes.look(None)) == ([True, False], [True, True])
    episodes.observe_step(NO, NO)
    assert masks(episodes.look(None)) == (NO, [True, True])


def test_next_step_is_idle_for_one_step() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.NEXT_STEP)
    ids = episodes.look(None).episode_ids
    episodes.observe_step([True, False], NO)
    bounds = episodes.look(None)
    assert masks(bounds) == (NO, [False, True])
    assert bounds.over == [ids[0]]
    episodes.observe_step(NO, NO)
    assert masks(episodes.look(None)) == ([True, False], [True, True])


def test_disabled_is_idle_until_a_reset() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.DISABLED)
    episodes.look(None)
    episodes.observe_step(NO, [False, True])
    for _ in range(3):
        assert masks(episodes.look(None)) == (NO, [True, False])
    episodes.restart([1])
    assert masks(episodes.look(None)) == ([False, True], [True, True])


def test_looking_again_changes_nothing() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.NEXT_STEP)
    episodes.look(None)
    episodes.observe_step([True, False], NO)
    assert masks(episodes.look(None)) == masks(episodes.look(None))


def test_several_lanes_without_any_word_on_episodes_get_one_warning() -> None:
    episodes = LocalEpisodes(2, AutoresetMode.NEXT_STEP)
    episodes.look(None)
    with pytest.warns(UserWarning, match="cannot see where the episodes"):
        episodes.look(None)
    episodes.look(None)


def test_one_lane_that_is_reset_by_hand_gives_no_warning() -> None:
    episodes = LocalEpisodes(1, AutoresetMode.DISABLED)
    episodes.restart(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        episodes.look(None)
        episodes.look(None)
        episodes.observe_step(False, True)
        assert masks(episodes.look(None)) == ([False], [False])


@pytest.mark.parametrize("mask", [[True], [[True, False]], True])
def test_a_mask_of_another_shape_is_refused(mask: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"episode_start must have shape \(2,\)"):
        LocalEpisodes(2, AutoresetMode.SAME_STEP).look(mask)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_both_sources_see_the_same_boundaries(mode: AutoresetMode) -> None:
    random = np.random.default_rng(3)
    lanes = ScriptedLanes(lambda: random.integers(1, 6), mode, chunk=1, num_envs=3)
    tracked, local = TrackedEpisodes(lanes, 3), LocalEpisodes(3, mode)
    lanes.reset()
    for _ in range(60):
        seen, told = tracked.look(None), local.look(None)
        assert masks(seen) == masks(told)
        assert len(seen.over) >= len([each for each in told.over if each])
        _, terminations, truncations = lanes.step()
        local.observe_step(terminations, truncations)
        if mode is AutoresetMode.DISABLED:
            local.restart(terminations)


def test_looks_between_two_changes_are_one_object() -> None:
    lanes = ScriptedLanes(lambda: 4, AutoresetMode.NEXT_STEP, chunk=1, num_envs=2)
    lanes.reset()
    tracked = TrackedEpisodes(lanes, 2)
    first, second = tracked.look(None), tracked.look(None)
    assert (masks(first)[0], masks(second)[0]) == ([True, True], NO)
    assert tracked.look(None) is second
    ids, episodes = second.rows(second.running)
    assert ids == lanes.episode_ids
    assert episodes == tuple(zip(ids, lanes.lane_seeds, strict=True))
    assert second.rows(np.array([1])).ids == ids[1:]
    while second.all_run:
        lanes.step()
        last, second = second, tracked.look(None)
    assert second is not last
    assert (second.running.tolist(), second.rows(second.running).ids) == ([], ())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"horizon": 0}, "execution_horizon must be 1 to 1024"),
        ({"horizon": 2.0}, "whole numbers"),
        ({"horizon": 1025}, "execution_horizon must be 1 to 1024"),
        ({"horizon": 4, "replan_interval": 5}, "replan_interval"),
        ({"horizon": 4, "replan_interval": 0}, "replan_interval"),
        ({"horizon": 4, "coalesce": -1}, "coalesce"),
        ({"horizon": 1, "prefetch": True}, "prefetch needs"),
    ],
)
def test_impossible_schedules_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        PlanSchedule(**arguments)


def test_a_schedule_by_its_rules() -> None:
    active = np.array([True, True, True, False])
    remaining = np.array([0, 2, 5, 0])
    ages = np.array([8, 6, 3, 9])
    plain = PlanSchedule(8, coalesce=2)
    assert plain.due(active, remaining, ages).tolist() == [True, False, False, False]
    assert plain.along(active, remaining, ages).tolist() == [True, True, False, False]
    # The step is tried again: what was planned from this very observation is still there.
    ages[1] = 0
    assert plain.along(active, remaining, ages).tolist() == [True, False, False, False]
    ages[1] = 6
    often = PlanSchedule(8, replan_interval=6)
    assert often.due(active, remaining, ages).tolist() == [True, True, False, False]
    ahead = PlanSchedule(8, coalesce=3, prefetch=True)
    assert ahead.ahead(active, remaining, ages, 1).tolist() == [True, True, False, False]
    assert not ahead.ahead(active, remaining, np.zeros(4, np.int64), 4).any()


def test_the_delay_forgets_and_leaves_out_the_first_answer() -> None:
    delay = DelayEstimate(window=4)
    assert delay.frames(8) == 4
    delay.note_step(5)
    delay.note_answer(10**9)
    assert delay.frames(8) == 4, "the first answer is a warm-up"
    delay.note_answer(4)
    assert delay.frames(8) == 1
    for _ in range(4):
        delay.note_answer(11)
    assert delay.frames(8) == 3
    for _ in range(4):
        delay.note_answer(500)
    assert delay.frames(8) == 4, "at most half the horizon"
    assert delay.frames(2) == 1


def test_history_gives_each_row_once_and_in_order() -> None:
    history = ObservationHistory(2)
    both = np.array([0, 1])
    history.begin(both, 0)
    observations = [np.array([[0.0], [10.0]])]
    history.record(0, observations)
    observations[0][:] = 99
    assert history.rows(both, 0) == []
    history.deliver(both, 0)
    for step in (1, 2):
        history.record(step, [np.array([[step], [10.0 + step]])])
    found = history.rows(np.array([1]), 2)
    assert [(step, lanes.tolist(), leaves[0].tolist()) for step, lanes, leaves in found] == [
        (1, [1], [[11.0]])
    ]
    before = history.deliver(np.array([1]), 2)
    history.record(3, [np.array([[3.0], [13.0]])])
    assert [(s, lanes.tolist()) for s, lanes, _ in history.rows(both, 3)] == [(1, [0]), (2, [0])]
    history.restore(np.array([1]), before)
    assert [(s, lanes.tolist()) for s, lanes, _ in history.rows(both, 3)] == [
        (1, [0, 1]),
        (2, [0, 1]),
    ]


def test_a_failed_request_of_an_old_episode_does_not_touch_the_new_one() -> None:
    history = ObservationHistory(1)
    lane = np.array([0])
    history.begin(lane, 0)
    before = history.deliver(lane, 5)
    history.begin(lane, 6)
    history.restore(lane, before)
    history.record(6, [np.zeros((1, 1))])
    history.record(7, [np.zeros((1, 1))])
    assert [step for step, _, _ in history.rows(lane, 7)] == [6]


def test_history_keeps_no_more_than_is_owed() -> None:
    history = ObservationHistory(1)
    lane, active = np.array([0]), np.array([True])
    history.begin(lane, 0)
    for step in range(100):
        history.prune(active)
        history.record(step, [np.zeros((1, 1))])
        assert len(history._steps) <= 10
        if step % 9 == 0:
            history.deliver(lane, step)
    history.prune(np.array([False]))
    assert not history._steps


class FakePlan:
    def __init__(self, *lanes: int) -> None:
        self.lanes = np.array(lanes)
        self.is_done = False
        self.num_frames = 1
        self.given_up: list[int] = []

    def done(self) -> bool:
        return self.is_done

    def give_up(self, *, rows: Any) -> None:
        self.given_up += self.lanes[rows].tolist()


def test_prefetched_rows_are_taken_when_due_and_never_twice() -> None:
    plans = PrefetchedPlans(3)
    plan: Any = FakePlan(0, 2)
    plans.add(plan)
    assert plans.lanes().tolist() == [True, False, True]
    assert not list(plans.take(np.zeros(3, np.bool_), arrived=True))
    due = np.array([True, False, False])
    assert [(got, rows.tolist()) for got, rows in plans.take(due, arrived=False)] == [(plan, [0])]
    assert plans.lanes().tolist() == [False, False, True]
    plan.is_done = True
    assert [rows.tolist() for _, rows in plans.take(~due & False, arrived=True)] == [[1]]
    assert not plans.lanes().any()


def test_a_refused_plan_is_not_kept_for_its_other_rows() -> None:
    plans = PrefetchedPlans(3)
    plan: Any = FakePlan(0, 2)
    plan.num_frames = 0
    plans.add(plan)
    due = np.array([True, False, False])
    assert [rows.tolist() for _, rows in plans.take(due, arrived=False)] == [[0]]
    assert not plans.lanes().any()


def test_rows_of_ended_episodes_are_dropped() -> None:
    plans = PrefetchedPlans(3)
    plan: Any = FakePlan(0, 2)
    plans.add(plan)
    assert plans.drop_lanes(np.array([True, True, False])) == 1
    assert plans.drop_lanes(np.array([True, True, False])) == 0
    assert plans.lanes().tolist() == [False, False, True]
    assert plans.drop_lanes(np.array([False, False, True])) == 1
    assert plan.given_up == [0, 2]
    assert not plans.lanes().any()


def test_a_plan_that_fails_is_dropped_with_its_rows() -> None:
    plans = PrefetchedPlans(2)
    plan: Any = FakePlan(0, 1)
    plans.add(plan)
    taken = plans.take(np.array([True, False]), arrived=False)
    next(taken)
    taken.close()
    assert not plans.lanes().any()


def test_ends_that_a_broken_connection_has_swallowed_are_sent_again() -> None:
    class Silent:
        def done(self) -> bool:
            return False

    sent: list[list[str]] = []

    def reset_adapter(env_id: str, episode_ids: list[str]) -> Silent:
        sent.append([env_id, *episode_ids])
        return Silent()

    session: Any = SimpleNamespace(is_streaming=True, reset_adapter=reset_adapter)
    evictions = EpisodeEvictions(session, "env", PolicyStats(), warnings.warn)
    evictions.note_asked(["a", "b"])
    evictions.end(["a", "c"])
    assert sent == [["env", "a"]]
    evictions.recall()
    evictions.resend()
    evictions.resend()
    assert sent == [["env", "a"], ["env", "a"]]
