"""A run plays a policy as a loop of the user's own does: same actions, same calls, same records."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime import RuntimeDriver, RuntimeHooks, RuntimeSessionSpec, derive_seed, events
from tests.runtime.ends import (
    BY_MODE,
    Louder,
    PlayedModel,
    lanes,
    policy_for,
    told,
    vector,
)
from tests.runtime.played_env import PlayedEnv

SAME_STEP = AutoresetMode.SAME_STEP
STEPS = 20


def oldest(predictions: Any, ages: Any) -> Any:
    return predictions[0] + np.float32(ages[0])


OPTIONS: dict[str, dict[str, Any]] = {
    "one frame": {},
    "horizon": {"execution_horizon": 3},
    "interval": {"execution_horizon": 4, "replan_interval": 2},
    "newest": {"execution_horizon": 4, "replan_interval": 1},
    "mean": {"execution_horizon": 4, "replan_interval": 1, "ensemble": "mean"},
    "exponential": {"execution_horizon": 3, "replan_interval": 1, "ensemble": "exponential"},
    "callable": {"execution_horizon": 4, "replan_interval": 2, "ensemble": oldest},
    "coalesce": {"execution_horizon": 4, "coalesce": 2},
    "subclass": {"execution_horizon": 3, "kind": Louder},
}


class Acted(RuntimeHooks):
    """Keeps the actions that the env got, as ``(lane, action)`` in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, list[float]]] = []

    def step_completed(self, event: events.StepCompleted) -> None:
        self.rows += zip(event.lanes, event.actions.tolist(), strict=True)


def first_seeds(num_envs: int) -> list[int]:
    return [derive_seed(5, "run", 0, lane) for lane in range(num_envs)]


def by_lane(records: Any) -> list[tuple[int, dict[str, Any]]]:
    """Completed episodes, lane by lane in their order."""
    done = [record for record in records if not record.interrupted]
    return [(one.lane, told(one)) for one in sorted(done, key=lambda record: record.lane)]


# Every mode, every kind of remote vector: what envs.episodes has is what a report has.


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize(
    ("mode", "end"),
    [(mode, end) for mode in AutoresetMode for end in BY_MODE[mode] if end.startswith("object")],
)
def test_a_log_and_a_report_hold_the_same(mode: AutoresetMode, end: str, horizon: int) -> None:
    models = [PlayedModel(), PlayedModel()]
    with ExitStack() as stack:
        envs = BY_MODE[mode][end](stack)
        policies = [
            stack.enter_context(
                rg.RemotePolicy(
                    stack.enter_context(rg.ModelServer(model)).address,
                    envs,
                    execution_horizon=horizon,
                )
            )
            for model in models
        ]
        report = rg.run(envs, policies[0], episodes=6, seed=5)
        log = envs.unwrapped.episodes
        before = len(log)
        _loop_until(envs, policies[1], 3)
        played = [record for record in log[before:] if not record.interrupted]
    mine = [[one for one in played if one.lane == lane][:3] for lane in range(2)]
    theirs = [[one for one in report.episodes if one.lane == lane] for lane in range(2)]
    assert [by_lane(one) for one in mine] == [by_lane(one) for one in theirs]
    for model, records in zip(models, (theirs, mine), strict=True):
        assert all(len(model.seen[one.episode_id]) for lane in records for one in lane)
    assert [models[0].of(lane) for lane in theirs] == [models[1].of(lane) for lane in mine]


def _loop_until(envs: Any, policy: Any, count: int) -> None:
    """Play as a run with seed 5 does, until every lane has completed so many episodes."""
    begun = [1, 1]
    done = [0, 0]
    observations, _ = envs.reset(seed=first_seeds(2))
    while min(done) < count:
        observations, _, terminations, truncations, _ = envs.step(policy(observations))
        ended = terminations | truncations
        done = [have + int(now) for have, now in zip(done, ended, strict=True)]
        if ended.any() and envs.unwrapped.autoreset_mode is AutoresetMode.DISABLED:
            seeds = [derive_seed(5, "run", begun[lane], lane) for lane in range(2)]
            observations, _ = envs.reset(seed=seeds, options={"reset_mask": ended})
            begun = [have + int(now) for have, now in zip(begun, ended, strict=True)]


# Every option of a policy.


def _loop(envs: Any, policy: rg.RemotePolicy, model: PlayedModel) -> tuple[Any, int]:
    """Play twenty steps by hand; return the actions, and the calls of the model."""
    rows: list[tuple[int, list[float]]] = []
    observations, _ = envs.reset(seed=first_seeds(2))
    for _ in range(STEPS):
        actions = policy(observations)
        rows += enumerate(actions.tolist())
        observations, _, terminations, truncations, _ = envs.step(actions)
        policy.observe_step(terminations, truncations)
    return rows, model.calls


ENDS: dict[str, Any] = {
    "local": lambda stack: vector(SAME_STEP),
    "remote": lambda stack: stack.enter_context(
        rg.RemoteVectorEnv(
            stack.enter_context(rg.EnvServer(vector(SAME_STEP))).address, autoreset_mode=SAME_STEP
        )
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_policy_is_played_as_it_was_configured(options: str, end: str) -> None:
    def played(*, in_a_run: bool) -> Any:
        model, acted = PlayedModel(), Acted()
        with ExitStack() as stack:
            envs = ENDS[end](stack)
            address = stack.enter_context(rg.ModelServer(model)).address
            policy = stack.enter_context(policy_for(address, envs, **OPTIONS[options]))
            if not in_a_run:
                return _loop(envs, policy, model)
            rg.run(envs, policy, seed=5, max_steps=2 * STEPS, hooks=acted)
            if isinstance(policy, Louder):
                assert policy.predictions == STEPS
        return acted.rows, model.calls

    rows, calls = played(in_a_run=False)
    assert played(in_a_run=True) == (rows, calls)
    assert len(rows) == 2 * STEPS
    assert calls < STEPS if options in {"horizon", "subclass"} else calls <= STEPS


@pytest.mark.parametrize("options", OPTIONS)
def test_and_so_is_one_lane(options: str) -> None:
    with ExitStack() as stack:
        models = [PlayedModel(), PlayedModel()]
        addresses = [stack.enter_context(rg.ModelServer(model)).address for model in models]
        run_policy, policy = [
            stack.enter_context(policy_for(address, 1, **OPTIONS[options])) for address in addresses
        ]
        report = rg.run(PlayedEnv(), run_policy, episode_seeds=[3, 4, 5])
        env = PlayedEnv()
        for record in report.episodes:
            observation, _ = env.reset(seed=record.seed)
            policy.reset()
            actions = []
            terminated = truncated = False
            while not (terminated or truncated):
                actions.append(policy(observation))
                observation, _, terminated, truncated, _ = env.step(actions[-1])
            executed = np.array(record.final_info["actions"], np.float32)[: record.length]
            assert np.array_equal(executed, np.array(actions))
    assert models[0].calls == models[1].calls


class Ahead(PlayedModel):
    """Plans that say of one step the same whenever they were made."""

    def predict_chunked(self, observation: Any) -> rg.PredictFrames:
        self.calls += 1
        t = np.asarray(observation.observation["t"], np.float32)[:, None]
        frames = [np.repeat(t + number, 2, axis=1) for number in range(4)]
        return rg.PredictFrames(frames[0], frames[1:])


def test_a_policy_that_plans_ahead_does_so_in_a_run() -> None:
    with ExitStack() as stack:
        address = stack.enter_context(rg.ModelServer(Ahead())).address
        policy = stack.enter_context(policy_for(address, 2, execution_horizon=4, prefetch=True))
        report = rg.run(vector(AutoresetMode.NEXT_STEP, length=9), policy, episodes=6)
        assert policy.stats.prefetch_calls > 0
    for episode in report.episodes:
        executed = np.array(episode.final_info["actions"])
        assert executed[:, 0].tolist() == list(range(9))


# Subclasses.


class Halved(rg.RemotePolicy):
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        actions, state = super().predict(*args, **kwargs)
        return actions / np.float32(2), state


class HalvedCall(rg.RemotePolicy):
    def __call__(self, observations: Any) -> Any:
        return super().__call__(observations) / np.float32(2)


@pytest.mark.parametrize("kind", [Halved, HalvedCall])
@pytest.mark.parametrize("end", ENDS)
def test_what_a_subclass_makes_of_the_actions_is_executed(kind: Any, end: str) -> None:
    def played(*, in_a_run: bool) -> Any:
        acted = Acted()
        with ExitStack() as stack:
            model = PlayedModel()
            envs = ENDS[end](stack)
            address = stack.enter_context(rg.ModelServer(model)).address
            policy = stack.enter_context(policy_for(address, envs, execution_horizon=2, kind=kind))
            if not in_a_run:
                return _loop(envs, policy, model)
            rg.run(envs, policy, seed=5, max_steps=2 * STEPS, hooks=acted)
        return acted.rows, model.calls

    assert played(in_a_run=True) == played(in_a_run=False)


# What contradicts the policy is refused, and leaves it as it was.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"execution_horizon": 1}, "execution_horizon=3, and the run needs 1"),
        ({"execution_horizon": 4}, "execution_horizon=3, and the run needs 4"),
        ({"predict_rows": "together"}, "predict_rows='together'"),
        ({"predict_rows": "apart"}, "predict_rows='apart'"),
    ],
)
def test_arguments_that_contradict_a_policy_are_refused(
    options: dict[str, Any], match: str
) -> None:
    with (
        rg.ModelServer(PlayedModel()) as server,
        policy_for(server.address, 2, execution_horizon=3) as policy,
    ):
        envs = vector(SAME_STEP)
        with pytest.raises(ConfigurationError, match=match):
            rg.run(envs, policy, episodes=2, **options)
        assert rg.run(envs, policy, episodes=2, execution_horizon=3).execution_horizon == 3
        with pytest.raises(ConfigurationError, match="num_envs=2, and the run needs 3"):
            rg.run(lanes(3), policy, episodes=2)
        driver = RuntimeDriver(RuntimeSessionSpec(max_episodes=2), envs, policy)
        with pytest.raises(ConfigurationError, match="execution_horizon=3, and the run needs 1"):
            driver.run()
        observations, _ = envs.reset(seed=5)
        assert policy(observations).shape == (2, 2)
    with pytest.raises(ConfigurationError, match="closed"):
        rg.run(envs, policy, episodes=1)


def test_a_loop_goes_on_after_a_run() -> None:
    """What a policy did in a run leaves nothing behind in a loop."""
    with ExitStack() as stack:
        models = [PlayedModel(), PlayedModel()]
        used, fresh = [
            stack.enter_context(
                policy_for(
                    stack.enter_context(rg.ModelServer(model)).address,
                    vector(SAME_STEP),
                    execution_horizon=3,
                )
            )
            for model in models
        ]
        rg.run(vector(SAME_STEP), used, seed=5, max_steps=7)
        models[0].calls = 0
        loops = [
            _loop(vector(SAME_STEP), policy, model)
            for policy, model in zip((used, fresh), models, strict=True)
        ]
    assert loops[0] == loops[1]
