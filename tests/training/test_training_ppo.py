"""``docs/examples/ppo.py``, a script that knows nothing of this package, on remote lanes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rlmesh_gym.testing import serving

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "ppo.py"
REMOTE = "rlmesh_gym:rlmesh/Remote-v0"
pytestmark = pytest.mark.training

MODES = ("NextStep", "SameStep")


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_ppo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_ppo"] = module  # Its dataclass looks itself up there.
    spec.loader.exec_module(module)
    return module


def embedded(**more: Any) -> dict[str, Any]:
    return {"env_id": "CartPole-v1", **more}


@pytest.mark.parametrize("mode", MODES)
def test_the_return_rises(ppo: ModuleType, mode: str) -> None:
    returns = ppo.train(REMOTE, updates=12, env_kwargs=embedded(autoreset_mode=mode))
    assert np.mean(returns[-15:]) > 3 * np.mean(returns[:15])


@pytest.mark.parametrize("mode", MODES)
def test_the_same_episodes_as_locally(ppo: ModuleType, mode: str) -> None:
    """Bit for bit: one different number in any observation and the trainings part ways."""
    options = {"num_envs": 4, "updates": 4, "steps": 64}
    limit = {"max_episode_steps": 30}  # So that values stand in for what is cut off.
    local = ppo.train(
        "CartPole-v1",
        env_kwargs={
            "vectorization_mode": "sync",
            "vector_kwargs": {"autoreset_mode": mode},
            **limit,
        },
        **options,
    )
    remote = ppo.train(REMOTE, env_kwargs=embedded(autoreset_mode=mode, **limit), **options)
    assert len(local) > 20
    assert max(local) == 30
    assert remote == local


def test_resets_of_lanes_are_not_learned_from(ppo: ModuleType) -> None:
    envs = gym.make_vec(REMOTE, num_envs=4, **embedded(max_episode_steps=5))
    try:
        agent = ppo.Agent(4, 2)
        rollout = ppo.Lanes(envs, 0).collect(agent, 12)
    finally:
        envs.close()
    assert not rollout.rewards[~rollout.real].any()
    # Five steps of an episode, then one that resets the lane, twice.
    assert rollout.real.sum().item() == 4 * 10
    assert rollout.over.sum().item() == 4 * 2


def test_disabled_is_refused(ppo: ModuleType) -> None:
    with pytest.raises(ValueError, match="leaves resets to the lanes"):
        ppo.train(REMOTE, updates=1, env_kwargs=embedded(autoreset_mode="Disabled"))


def test_the_command_line_unchanged() -> None:
    with serving(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)) as address:
        output = _run("--env-id", REMOTE, RLMESH_GYM_ADDRESS=address)
    assert "mean return" in output


def test_the_command_line_locally() -> None:
    assert "mean return" in _run("--env-id", "CartPole-v1")


def _run(*arguments: str, **settings: str) -> str:
    command = [sys.executable, str(SCRIPT), "--num-envs", "2", "--updates", "2", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
