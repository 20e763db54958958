"""What a run leaves behind in a policy and in its model when it is given back."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.runtime import RuntimeHooks
from tests.runtime.ends import BY_MODE, MODELS, PlayedModel, policy_for
from tests.runtime.test_loops_and_runs import SAME_STEP


class Keeping(PlayedModel):
    """Knows the episodes that it was not told to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def predict_chunked(self, observation: Any) -> rg.PredictFrames:
        self.held |= set(observation.episode_ids)
        return super().predict_chunked(observation)

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        self.held -= set(episode_ids)


class Stacking(PlayedModel):
    """Wants every observation, and writes down the rows of each episode in their order."""

    class Setup(rg.ModelRouteSetup):
        def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> rg.RouteNeeds:
            return rg.RouteNeeds(history=rg.HistoryNeeds())

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[Any]] = {}

    def route_setup(self) -> rg.ModelRouteSetup:
        return self.Setup()

    def predict_chunked(self, observation: Any) -> rg.PredictFrames:
        for frame in (*observation.history, observation):
            for row, episode_id in enumerate(frame.episode_ids):
                sight = int(frame.observation["t"][row]), frame.observation["pose"][row].tolist()
                self.rows.setdefault(episode_id, []).append((sight, frame.seeds[row]))
        return super().predict_chunked(observation)


class Cancel(RuntimeHooks):
    """Cancels a run after its third step."""

    def __init__(self) -> None:
        self.cancellation = threading.Event()

    def step_completed(self, event: Any) -> None:
        if event.step == 2:
            self.cancellation.set()


class Failing(RuntimeHooks):
    """Fails a run at its third step."""

    def transform_action(self, event: Any) -> Any:
        if event.step == 2:
            raise ValueError("no more")


def steps(envs: Any, policy: Any) -> None:
    rg.run(envs, policy, max_steps=6)


def cancelled(envs: Any, policy: Any) -> None:
    hooks = Cancel()
    report = rg.run(envs, policy, hooks=hooks, cancellation=hooks.cancellation)
    assert report.stop_reason == "cancelled"


def failing(envs: Any, policy: Any) -> None:
    with pytest.raises(ValueError, match="no more"):
        rg.run(envs, policy, episodes=100, hooks=Failing())


@pytest.mark.parametrize("end", ["local", "object", "object, wrapped"])
@pytest.mark.parametrize("cut_off", [steps, cancelled, failing])
def test_a_model_holds_only_what_is_live(cut_off: Any, end: str) -> None:
    model = Keeping()
    with ExitStack() as stack:
        envs = BY_MODE[SAME_STEP][end](stack)
        address = stack.enter_context(rg.ModelServer(model)).address
        policy = stack.enter_context(policy_for(address, envs, execution_horizon=2))
        observations, _ = envs.reset(seed=3)
        policy(observations)
        for _ in range(3):
            cut_off(envs, policy)
        observations, _ = envs.reset(seed=3)
        # Requests are worked off in their order, so all ends have come before this answer.
        policy(observations)
        assert len(model.held) == 2
        if end != "local":
            assert model.held == set(envs.unwrapped.episode_ids)
    assert not model.held


class Refusing(Keeping):
    """Cannot forget at its first try."""

    tries = 0

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ValueError("not now")
        super().reset_adapter(env_id, episode_ids)


@pytest.mark.parametrize("given", MODELS)
def test_what_a_model_could_not_forget_is_sent_again(given: str) -> None:
    model = Refusing()
    with ExitStack() as stack:
        policy = MODELS[given](stack, model, 2, 1)
        with pytest.warns(UserWarning, match="said once.*not now") as told:
            report = rg.run(BY_MODE[SAME_STEP]["local"](stack), policy, episodes=8)
    assert report.error is None
    assert len(report.episodes) == 8
    assert len([one for one in told if "not now" in str(one.message)]) == 1
    assert not model.held


@pytest.mark.parametrize("end", ["local", "object"])
@pytest.mark.parametrize("horizon", [1, 3])
def test_a_model_gets_the_same_history_by_every_way(horizon: int, end: str) -> None:
    found = {}
    for name, given in MODELS.items():
        model = Stacking()
        with ExitStack() as stack:
            envs = BY_MODE[AutoresetMode.NEXT_STEP][end](stack)
            policy = given(stack, model, 2, horizon)
            report = rg.run(envs, policy, episode_seeds=range(6), execution_horizon=horizon)
        found[name] = [model.rows[episode.episode_id] for episode in report.episodes]
        for episode, rows in zip(report.episodes, found[name], strict=True):
            steps = [sight[0] for sight, _ in rows]
            assert steps == list(range((episode.length - 1) // horizon * horizon + 1)), name
    assert all(rows == found["handler"] for rows in found.values())
