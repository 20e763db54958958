"""RemotePolicy on models that the released package serves, each in a process of its own."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.errors import ModelError, UnavailableError
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.policy.adapter import RowGrouping
from rlmesh_gym.server import EnvServer
from tests.peers import CHUNK, STACK, Peer, env_endpoint, expected_action, model_endpoint
from tests.tagged_env import TaggedEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.peers import ModelKind

pytestmark = pytest.mark.interop

CARTPOLE: dict[str, Any] = {
    "single_observation_space": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "single_action_space": gym.spaces.Discrete(2),
}


@pytest.fixture(scope="module")
def lanes() -> Iterator[Peer]:
    """Six CartPole lanes of the released package."""
    with env_endpoint("lanes", "CartPole-v1", num_envs=6) as peer:
        yield peer


@pytest.fixture(scope="module")
def models() -> Iterator[Callable[[ModelKind], str]]:
    """Addresses of served models, each kind started once."""
    with ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(model_endpoint(kind)).address)


def play(envs: Any, policy: RemotePolicy, steps: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield observations, actions and which lanes begin an episode, step by step."""
    observations, _ = envs.reset(seed=3)
    begins = np.ones(envs.num_envs, np.bool_)
    for _ in range(steps):
        actions = policy(observations)
        yield observations, actions, begins
        observations, _, terminations, truncations, _ = envs.step(actions)
        begins = terminations | truncations


def chunked_expectation(
    observations: Any, begins: Any, plans: list[tuple[Any, int]], chunk: int
) -> list[int]:
    """What each lane must do, by one naive loop per lane."""
    expected = []
    for lane, observation in enumerate(observations):
        used = plans[lane][1] if plans[lane] is not None else chunk
        if begins[lane] or used >= chunk:
            plans[lane] = (observation, 0)
        sight, frame = plans[lane]
        expected.append(expected_action(sight, frame))
        plans[lane] = (sight, frame + 1)
    return expected


@pytest.mark.parametrize("kind", ["predict", "batch"])
def test_single_frame_models_on_six_lanes(kind: Any, lanes: Peer, models: Any) -> None:
    with (
        rg.RemoteVectorEnv(lanes.address, autoreset_mode="SameStep") as envs,
        RemotePolicy(models(kind), envs, execution_horizon=4) as policy,
    ):
        for observations, actions, _ in play(envs, policy, 60):
            assert actions.tolist() == [expected_action(each) for each in observations]
        # One probe of one-row requests told that the model has no more than one frame.
        assert policy.lane_policy.adapter.grouping is RowGrouping.TOGETHER
        assert policy.stats.calls == 60 + 5
        assert len(envs.episodes) > 3


@pytest.mark.parametrize("kind", ["chunk", "native_chunk", "chunk_and_batch"])
def test_chunk_models_give_chunks_on_six_lanes(kind: Any, lanes: Peer, models: Any) -> None:
    """They refuse a batch, or answer it with one frame; one-row requests give the chunks."""
    with (
        rg.RemoteVectorEnv(lanes.address, autoreset_mode="SameStep") as envs,
        RemotePolicy(models(kind), envs, execution_horizon=CHUNK) as policy,
    ):
        plans: list[Any] = [None] * 6
        for step, (observations, actions, begins) in enumerate(play(envs, policy, 80)):
            if step == 0 and kind == "chunk_and_batch":
                # The first answer tells that all rows together give no chunks.
                expected = [expected_action(each) for each in observations]
            else:
                expected = chunked_expectation(observations, begins, plans, CHUNK)
            assert actions.tolist() == expected, step
        assert policy.lane_policy.adapter.grouping is RowGrouping.APART
        assert policy.stats.rows < 80 * 6 / CHUNK + len(envs.episodes) + 12


def test_a_model_of_one_observation_on_six_lanes_without_chunks(lanes: Peer, models: Any) -> None:
    with (
        rg.RemoteVectorEnv(lanes.address, autoreset_mode="SameStep") as envs,
        RemotePolicy(models("chunk"), envs) as policy,
    ):
        for observations, actions, _ in play(envs, policy, 10):
            assert actions.tolist() == [expected_action(each) for each in observations]
        assert policy.lane_policy.adapter.grouping is RowGrouping.APART


@pytest.fixture(scope="module")
def single() -> Iterator[Peer]:
    """One CartPole of the released package."""
    with env_endpoint("single", "CartPole-v1") as peer:
        yield peer


@pytest.mark.parametrize("kind", ["predict", "batch", "chunk", "native_chunk", "chunk_and_batch"])
def test_every_model_on_one_lane(kind: Any, single: Peer, models: Any) -> None:
    chunk = CHUNK if "chunk" in kind else 1
    with (
        rg.RemoteEnv(single.address) as env,
        RemotePolicy(models(kind), env, execution_horizon=CHUNK) as policy,
    ):
        rows = 0
        for seed in range(2):
            observation, _ = env.reset(seed=seed)
            plan: list[int] = []
            is_over = False
            while not is_over:
                if not plan:
                    plan = [expected_action(observation, frame) for frame in range(chunk)]
                    rows += 1
                action = policy(observation)
                assert action == plan.pop(0)
                observation, _, terminated, truncated, _ = env.step(action)
                is_over = terminated or truncated
        assert policy.stats.rows == rows


class StackedReference:
    """One lane's window of images and its chunk."""

    def __init__(self) -> None:
        self.window: list[float] = []
        self.frames: list[Any] = []

    def act(self, observation: Any, *, is_first: bool) -> Any:
        pixel = float(observation["image"].flat[0])
        if is_first:
            self.window, self.frames = [pixel] * STACK, []
        else:
            self.window = [*self.window[1:], pixel]
        if not self.frames:
            first = np.array([self.window[-1], self.window[0]], np.float32) / 255
            self.frames = [first - k / 100 for k in range(CHUNK)]
        return self.frames.pop(0)


@pytest.mark.parametrize("num_envs", [1, 6])
@pytest.mark.parametrize("coalesce", [0, 1])
def test_a_model_that_stacks_images_gets_its_history(
    num_envs: int, coalesce: int, models: Any
) -> None:
    with (
        EnvServer([TaggedEnv(7 + lane) for lane in range(num_envs)]) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode=AutoresetMode.SAME_STEP) as envs,
        RemotePolicy(models("stacked"), envs, execution_horizon=CHUNK, coalesce=coalesce) as policy,
    ):
        assert policy.lane_policy.adapter.history is not None
        assert policy.lane_policy.adapter.native_chunk == CHUNK
        references = [StackedReference() for _ in range(num_envs)]
        for observations, actions, begins in play(envs, policy, 50):
            for lane, reference in enumerate(references):
                observation = {key: value[lane] for key, value in observations.items()}
                if coalesce and not begins[lane]:
                    # When a lane goes along depends on the others; the newest image tells.
                    reference.window = [*reference.window[1:], observation["image"].flat[0]]
                    continue
                expected = reference.act(observation, is_first=bool(begins[lane]))
                np.testing.assert_allclose(actions[lane], expected, atol=1e-6)
        assert len(envs.episodes) >= 4 * num_envs
        assert policy.stats.history_rows > 20 * num_envs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_history_in_every_autoreset_mode(mode: AutoresetMode, models: Any) -> None:
    with (
        EnvServer([TaggedEnv(5 + 2 * lane) for lane in range(3)]) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode=mode) as envs,
        RemotePolicy(models("stacked"), envs, execution_horizon=CHUNK) as policy,
    ):
        references = [StackedReference() for _ in range(3)]
        observations, _ = envs.reset(seed=3)
        seen = [""] * 3
        for _ in range(40):
            actions = policy(observations)
            for lane, reference in enumerate(references):
                if envs.lane_phases[lane] is rg.LanePhase.ENDED:
                    continue
                observation = {key: value[lane] for key, value in observations.items()}
                is_first = envs.episode_ids[lane] != seen[lane]
                seen[lane] = envs.episode_ids[lane]
                expected = reference.act(observation, is_first=is_first)
                np.testing.assert_allclose(actions[lane], expected, atol=1e-6)
            observations, _, terminations, truncations, _ = envs.step(actions)
            ended = terminations | truncations
            if mode is AutoresetMode.DISABLED and ended.any():
                observations, _ = envs.reset(options={"reset_mask": ended})


def test_prefetch_and_history_together(models: Any) -> None:
    """No refusal of the released server: every step is delivered once and in order."""
    with (
        EnvServer([TaggedEnv(9 + lane) for lane in range(4)]) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode="NextStep") as envs,
        RemotePolicy(models("stacked"), envs, execution_horizon=CHUNK, prefetch=True) as policy,
    ):
        for _ in play(envs, policy, 80):
            pass
        assert policy.stats.prefetch_calls > 10


def test_a_model_that_fails_once() -> None:
    with (
        model_endpoint("failing") as model,
        RemotePolicy(model.address, **CARTPOLE) as policy,
    ):
        sight = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
        for call in range(5):
            if call == 2:
                with pytest.raises(ModelError, match="third time unlucky") as caught:
                    policy(sight)
                assert policy.env_id in str(caught.value)
                assert len(caught.value.episode_ids) == 1
            else:
                assert policy(sight) == expected_action(sight)


def test_a_stacking_model_that_answers_late_takes_the_rows_again(models: Any) -> None:
    """After a deadline it is not known which rows the server has taken in."""
    env = TaggedEnv(1000)
    with (
        RemotePolicy(models("stacked"), env, execution_horizon=CHUNK) as policy,
    ):
        observation, _ = env.reset()
        policy.reset()
        timeouts = policy.lane_policy.adapter.session.timeouts
        refused = 0
        for _ in range(40):
            object.__setattr__(timeouts, "predict", 1e-4)
            try:
                action = policy(observation)
            except TimeoutError:
                refused += 1
                object.__setattr__(timeouts, "predict", 30.0)
                action = policy(observation)
            assert abs(action[0]) <= 1.0
            observation, *_ = env.step(action)
        assert refused >= 5


def test_a_killed_model() -> None:
    sight = np.zeros(4, np.float32)
    with model_endpoint("predict") as model, RemotePolicy(model.address, **CARTPOLE) as policy:
        policy(sight)
        model.kill()
        with pytest.raises(UnavailableError) as caught:
            policy(sight)
        assert policy.env_id in str(caught.value)
        with model_endpoint("predict", address=model.address):
            assert policy(sight) == expected_action(sight)
