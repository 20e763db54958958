"""The protocol's rules on endpoints of the released package: what it keeps, and what it lacks."""

from __future__ import annotations

from typing import get_args

import gymnasium as gym
import pytest

from rlmesh_gym.testing import ENV_RULES, env_rule_results, model_rule_results
from tests.lengths import IS_THOROUGH
from tests.peers import ENV_KINDS, EnvKind, ModelKind, env_endpoint, model_endpoint

pytestmark = pytest.mark.interop

NO_CODES = {"unknown environments", "bad observations", "release"}
"""Errors of the released model server differ by their text only: all are a final INTERNAL."""
LACKING: dict[ModelKind, set[str]] = {
    "predict": NO_CODES,
    "batch": NO_CODES,
    "chunk": {*NO_CODES, "rows"},
    "native_chunk": {*NO_CODES, "rows"},
    "chunk_and_batch": NO_CODES,
    "slow": NO_CODES,
}
FAILED: dict[ModelKind, str] = {
    "failing": "third time unlucky",
    "clinging": "cannot let go",
    "stacked": "adapter",
}


@pytest.mark.parametrize("kind", ENV_KINDS)
def test_the_released_server_keeps_the_rules(kind: EnvKind) -> None:
    with env_endpoint(kind, num_envs=3) as peer:
        results = list(env_rule_results(peer.address))
    assert len(results) == len(ENV_RULES)
    assert not [one for one in results if one.outcome == "failed"]
    is_vector = kind in {"next_step", "disabled"}
    lacking = {one.rule for one in results if one.outcome == "lacking"}
    assert lacking == ({"lanes", "partial reset", "render"} if is_vector else {"render"})


@pytest.mark.parametrize("kind", [one for one in LACKING if IS_THOROUGH or one != "slow"])
def test_the_released_model_server_keeps_the_rules(kind: ModelKind) -> None:
    spec = gym.make("CartPole-v1")
    with model_endpoint(kind) as peer:
        results = list(model_rule_results(peer.address, spec.observation_space, spec.action_space))
    assert not [one for one in results if one.outcome == "failed"]
    assert {one.rule for one in results if one.outcome == "lacking"} == LACKING[kind]


@pytest.mark.parametrize("kind", FAILED)
def test_a_model_that_fails_is_told_so(kind: ModelKind) -> None:
    assert {*LACKING, *FAILED} == set(get_args(ModelKind))
    spec = gym.make("CartPole-v1")
    with model_endpoint(kind) as peer:
        results = model_rule_results(peer.address, spec.observation_space, spec.action_space)
        failed = [one for one in results if one.outcome == "failed"]
    assert failed
    assert all(FAILED[kind] in one.detail for one in failed)
