"""The rest of ``rlmesh_gym.testing``: endpoints that fail on purpose, and the rules as suites."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any, ClassVar, get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError, DeadlineError, ModelError, RemoteError
from rlmesh_gym.testing import (
    ENV_RULES,
    MODEL_RULES,
    EnvEndpointRules,
    FaultyEndpoint,
    ModelEndpointRules,
    serving,
    serving_model,
)
from rlmesh_gym.testing.faulty import FaultKind
from tests.fake_envs import CountingEnv, counting_vector

STEPS = 60


def played(endpoint: FaultyEndpoint, **options: Any) -> list[bool]:
    """Play; return for each step whether it was interrupted."""
    interrupted = []
    with rg.RemoteVectorEnv(endpoint.address, **options) as envs:
        envs.reset(seed=1)
        for _ in range(STEPS):
            *_, infos = envs.step(np.ones(envs.num_envs, np.int64))
            interrupted.append("interrupted" in infos)
    return interrupted


def test_faults_are_lived_through_and_come_again_with_the_seed() -> None:
    seen = []
    for seed in (5, 5, 6):
        with FaultyEndpoint(
            lambda: [CountingEnv(7), CountingEnv(9)], seed=seed, crash=0.05, error=0.05, delay=0.05
        ) as endpoint:
            interrupted = played(
                endpoint,
                autoreset_mode="next_step",
                on_failure="restart",
                max_restarts=100,
            )
        assert any(interrupted)
        assert not all(interrupted)
        seen.append((interrupted, endpoint.faults))
    assert seen[0] == seen[1] != seen[2]
    assert {fault.kind for fault in seen[0][1]} == {"crash", "error", "delay"}


@pytest.mark.parametrize(
    ("kind", "expected", "text"),
    [
        ("drop", DeadlineError, "no answer within 0.5 s"),
        ("wrong", RemoteError, "the answer cannot be read"),
        ("error", rg.errors.UnavailableError, "failed, as it was asked to"),
        ("crash", rg.errors.UnavailableError, "crashed, as it was asked to"),
    ],
)
def test_each_fault_by_itself(kind: FaultKind, expected: type[Exception], text: str) -> None:
    chances: dict[str, Any] = {kind: 1.0}
    with FaultyEndpoint(lambda: CountingEnv(50), seed=2, **chances) as endpoint:
        with (
            rg.RemoteVectorEnv(endpoint.address, timeouts={"reset": 0.5, "close": 0.5}) as envs,
            pytest.raises(expected, match=text),
        ):
            envs.reset()
        assert endpoint.faults[-1].kind == kind
        assert {fault.operation for fault in endpoint.faults} <= {"configure", "reset", "close"}


def test_a_delay_changes_nothing_else() -> None:
    with FaultyEndpoint(lambda: counting_vector(2), delay=1.0, delay_seconds=0.001) as endpoint:
        assert not any(played(endpoint))
    assert {fault.kind for fault in endpoint.faults} == {"delay"}
    assert Counter(fault.operation for fault in endpoint.faults)["step"] == STEPS


def test_wrong_answers_are_never_taken_for_right_ones() -> None:
    right, failures, is_new, expected = 0, 0, True, 0.0
    with (
        FaultyEndpoint(lambda: CountingEnv(7), seed=8, wrong=0.1) as endpoint,
        rg.RemoteVectorEnv(
            endpoint.address, timeouts={"reset": 5.0, "step": 5.0, "close": 0.1}
        ) as envs,
    ):
        for _ in range(STEPS):
            try:
                if is_new:
                    observations, _ = envs.reset()
                    expected = observations[0, 0]
                    is_new = False
                    continue
                observations, rewards, terminations, *_ = envs.step(np.full(1, 3))
            except RemoteError:
                failures += 1
                is_new = True
                continue
            expected += 1
            right += 1
            assert (observations[0, 0], rewards[0]) == (expected, 3)
            is_new = terminations[0]
    assert {fault.kind for fault in endpoint.faults} == {"wrong"}
    assert failures > 2
    assert right > 10


def test_a_faulty_model() -> None:
    with FaultyEndpoint(lambda observation: np.zeros(len(observation), int), model=True) as quiet:
        envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
        assert rg.run(envs, quiet.address, episodes=3).total_episodes == 3
        assert quiet.faults == []
    with (
        FaultyEndpoint(
            lambda observation: np.zeros(len(observation), int), model=True, seed=2, error=0.3
        ) as endpoint,
        rg.RemotePolicy(endpoint.address, envs) as policy,
    ):
        observations, _ = envs.reset(seed=1)
        with pytest.raises(ModelError, match="failed, as it was asked to"):
            any(
                policy.predict(observations, episode_start=np.zeros(2, bool)) is None
                for _ in range(STEPS)
            )
    envs.close()


@pytest.mark.parametrize(
    ("chances", "text"),
    [({"drop": 1.5}, "drop must be a probability"), ({"drop": 0.6, "crash": 0.6}, "exceed 1")],
)
def test_probabilities_that_are_none(chances: dict[str, float], text: str) -> None:
    options: dict[str, Any] = chances
    with pytest.raises(ConfigurationError, match=text):
        FaultyEndpoint(CountingEnv(), **options)
    assert set(get_args(FaultKind)) >= set(chances)


class TestServedEnv(EnvEndpointRules):
    def endpoint(self) -> Any:
        return serving(lambda: [CountingEnv(4), CountingEnv(5)])


class TestServedModel(ModelEndpointRules):
    single_observation_space: ClassVar[Any] = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space: ClassVar[Any] = spaces.Discrete(2)

    def endpoint(self) -> Any:
        return serving_model(lambda observation: np.zeros(len(observation), int))


def test_there_is_a_test_for_each_rule() -> None:
    for suite, rules in ((TestServedEnv, ENV_RULES), (TestServedModel, MODEL_RULES)):
        names = {name for name in dir(suite) if name.startswith("test_")}
        assert names == {f"test_{rule.name.replace(' ', '_')}" for rule in rules}


def test_suites_work_under_unittest() -> None:
    class Suite(TestServedEnv, unittest.TestCase):
        pass

    names = unittest.defaultTestLoader.getTestCaseNames(Suite)
    result = unittest.TestResult()
    Suite(names[0]).run(result)
    assert result.wasSuccessful()


def test_a_suite_says_what_it_needs() -> None:
    with pytest.raises(NotImplementedError, match="endpoint"):
        EnvEndpointRules().endpoint()
