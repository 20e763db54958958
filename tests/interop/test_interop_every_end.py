"""The played env on the released server, given to a run in every way: as played by hand."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import pytest
from gymnasium.vector import VectorWrapper

import rlmesh_gym as rg
from rlmesh_gym.rpc import EnvSession
from tests.peers import env_endpoint
from tests.runtime.ends import MODELS, PlayedModel, play_by_hand, told

if TYPE_CHECKING:
    from tests.peers import EnvKind

pytestmark = pytest.mark.interop

SEEDS = [3, 14, 15, 92, 65, 35]
FACTORY = "tests.runtime.played_env:PlayedEnv"


def ways(stack: ExitStack, address: str, kind: EnvKind) -> dict[str, Any]:
    """How one endpoint can be given; each is opened when it is its turn."""
    found = {
        "address": lambda: address,
        "list": lambda: [address],
        "session": lambda: stack.enter_context(EnvSession.open(address)),
        "object": lambda: stack.enter_context(rg.RemoteVectorEnv(address)),
        "wrapped": lambda: VectorWrapper(stack.enter_context(rg.RemoteVectorEnv(address))),
    }
    if kind == "single":
        found["env"] = lambda: stack.enter_context(rg.RemoteEnv(address))
        found["env, wrapped"] = lambda: gym.wrappers.OrderEnforcing(
            stack.enter_context(rg.RemoteEnv(address))
        )
    return found


@pytest.mark.parametrize("model", ["handler", "policy"])
@pytest.mark.parametrize("kind", ["single", "lanes", "next_step"])
def test_a_run_plays_what_is_played_by_hand(kind: EnvKind, model: str) -> None:
    n = 1 if kind == "single" else 2
    expected = [play_by_hand(seed, 2) for seed in SEEDS]
    with env_endpoint(kind, FACTORY, num_envs=n) as peer:
        for name in ways(ExitStack(), peer.address, kind):
            with ExitStack() as stack:  # One session at a time.
                envs = ways(stack, peer.address, kind)[name]()
                handler = PlayedModel()
                policy = MODELS[model](stack, handler, n, 2)
                report = rg.run(envs, policy, episode_seeds=SEEDS, execution_horizon=2)
            found = [told(episode) for episode in report.episodes]
            assert found == [told(one) for one in expected], name
            assert handler.of(report.episodes) == [one.seen for one in expected], name
            assert set(report.env_endpoints) == {peer.address}, name
