"""The released package's ``RemoteModel.session`` against our model server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

import rlmesh_gym as rg
from tests.peers import env_endpoint, model_episodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.interop

SEEDS = (3, 4, 5)


class Balancer(rg.ModelHandler):
    """Pushes by a rule of the observation and the frame; keeps state per episode."""

    def __init__(self, chunk: int = 1, needs: rg.RouteNeeds | None = None) -> None:
        self.chunk = chunk
        self.needs = needs
        self.seen: list[rg.ModelObservation] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.live: set[str] = set()
        self.setup = Setup(self)

    def predict(self, observation: rg.ModelObservation) -> Any:
        return rule(observation.observation, 0)

    def predict_chunked(self, observation: rg.ModelObservation) -> rg.PredictFrames:
        self.take(observation)
        rows = observation.observation
        return rg.PredictFrames(rule(rows, 0), [rule(rows, j) for j in range(1, self.chunk)])

    def take(self, observation: rg.ModelObservation) -> None:
        self.seen.append(observation)
        for episode_id in observation.episode_ids:
            if episode_id not in self.live:
                self.live.add(episode_id)
                self.begun.append(episode_id)

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        for episode_id in episode_ids or tuple(self.live):
            if episode_id in self.live:
                self.live.discard(episode_id)
                self.ended.append(episode_id)

    def held_state(self) -> rg.HeldState:
        return rg.HeldState(len(self.live))

    def route_setup(self) -> rg.ModelRouteSetup:
        return self.setup


class Single(Balancer):
    """Plans one step, whatever is asked."""

    def predict(self, observation: rg.ModelObservation) -> Any:
        self.take(observation)
        return super().predict(observation)


class Setup(rg.ModelRouteSetup):
    def __init__(self, handler: Balancer) -> None:
        self.handler = handler
        self.resolved: list[tuple[Any, rg.ResolveOptions]] = []
        self.released: list[str] = []

    def resolve_adapter(self, env_id: str, contract: Any, options: rg.ResolveOptions) -> Any:
        self.resolved.append((contract, options))
        return self.handler.needs

    def release_adapter(self, env_id: str) -> None:
        self.released.append(env_id)


def rule(observation: Any, frame: int) -> Any:
    return (observation[:, 2] + 0.3 * observation[:, 3] > 0.02 * frame).astype(np.int64)


def reference(seed: int, horizon: int, chunk: int) -> tuple[list[int], list[Any]]:
    """Actions and observations of one episode with a local env."""
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    actions: list[int] = []
    observations = [observation]
    plan: list[int] = []
    terminated = truncated = False
    while not (terminated or truncated):
        if not plan:
            plan = [int(rule(observation[None], j)[0]) for j in range(min(horizon, chunk))]
        actions.append(plan.pop(0))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
    env.close()
    return actions, observations


@pytest.fixture(scope="module")
def cartpole() -> Iterator[str]:
    with env_endpoint("single", "CartPole-v1") as peer:
        yield peer.address


def _actions(played: dict[str, Any]) -> list[list[int]]:
    return [[int(step["action"]) for step in episode["steps"]] for episode in played["episodes"]]


@pytest.mark.parametrize(
    ("horizon", "chunk"),
    [(1, 1), (4, 4), (3, 8), (6, 2)],
    ids=["no chunks", "whole chunks", "cut chunks", "fewer frames"],
)
def test_its_session_plays_our_model(cartpole: str, horizon: int, chunk: int) -> None:
    handler = (Single if horizon == 1 else Balancer)(chunk)
    with rg.ModelServer(handler) as server:
        played = model_episodes(cartpole, server.address, seeds=SEEDS, execution_horizon=horizon)
    expected = [reference(seed, horizon, chunk) for seed in SEEDS]
    assert _actions(played) == [actions for actions, _ in expected]
    # It plans once per replayed chunk, and each episode begins and ends once, in order.
    frames = min(horizon, chunk)
    calls = sum(-(-len(actions) // frames) for actions, _ in expected)
    assert len(handler.seen) == calls
    assert {observation.execution_horizon for observation in handler.seen} == {horizon}
    assert len(handler.begun) == len(SEEDS)
    assert handler.ended == handler.begun
    assert handler.live == set()
    ((contract, options),) = handler.setup.resolved
    assert contract.single_action_space == gym.spaces.Discrete(2)
    assert options.execution_horizon == horizon
    assert options.delivers_history
    assert len(handler.setup.released) == 1


def test_its_session_delivers_history(cartpole: str) -> None:
    horizon = 4
    needs = rg.RouteNeeds(native_chunk=horizon, history=rg.HistoryNeeds(("observation",)))
    handler = Balancer(horizon, needs)
    with rg.ModelServer(handler) as server:
        played = model_episodes(cartpole, server.address, seeds=SEEDS, execution_horizon=horizon)
    expected = [reference(seed, horizon, horizon) for seed in SEEDS]
    assert _actions(played) == [actions for actions, _ in expected]
    delivered: dict[str, list[Any]] = {episode_id: [] for episode_id in handler.begun}
    steps: dict[str, list[int]] = {episode_id: [] for episode_id in handler.begun}
    for observation in handler.seen:
        assert observation.step is not None
        (episode_id,) = observation.episode_ids
        for frame in observation.history:
            assert frame.episode_ids == (episode_id,)
            delivered[episode_id].append(frame.observation[0])
            steps[episode_id].append(frame.step)
        delivered[episode_id].append(observation.observation[0])
        steps[episode_id].append(observation.step)
    for (_, observations), episode_id in zip(expected, handler.begun, strict=True):
        seen = delivered[episode_id]
        # The steps that the last chunk replayed were never followed by another prediction.
        assert len(observations) - horizon <= len(seen) < len(observations)
        np.testing.assert_array_equal(seen, observations[: len(seen)])
        first = steps[episode_id][0]
        assert steps[episode_id] == list(range(first, first + len(seen)))


def test_a_function_is_enough_for_it(cartpole: str) -> None:
    with rg.ModelServer(lambda observation: rule(observation, 0)) as server:
        played = model_episodes(cartpole, server.address, seeds=SEEDS[:1])
    assert _actions(played) == [reference(SEEDS[0], 1, 1)[0]]


def test_a_horizon_beyond_the_chunk_is_refused_to_it(cartpole: str) -> None:
    handler = Balancer(2, rg.RouteNeeds(native_chunk=2))
    with (
        rg.ModelServer(handler) as server,
        pytest.raises(AssertionError, match="longer than the model's chunk of 2"),
    ):
        model_episodes(cartpole, server.address, seeds=SEEDS[:1], execution_horizon=3)


def test_it_hears_what_our_model_raised(cartpole: str) -> None:
    calls: list[Any] = []

    def third_time_unlucky(observation: Any) -> Any:
        calls.append(observation)
        if len(calls) == 3:
            raise ValueError("the third call")
        return rule(observation, 0)

    with rg.ModelServer(third_time_unlucky) as server:
        with pytest.raises(AssertionError, match=r"the third call .*float32 \(1, 4\)"):
            model_episodes(cartpole, server.address, seeds=SEEDS[:1])
        played = model_episodes(cartpole, server.address, seeds=SEEDS[:1])
    assert _actions(played) == [reference(SEEDS[0], 1, 1)[0]]
