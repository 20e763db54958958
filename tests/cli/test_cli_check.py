from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
import pytest

from rlmesh_gym.testing import ENV_RULES, MODEL_RULES, FaultyEndpoint, serving, serving_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Outcome

SOURCE = """
import gymnasium as gym
import numpy as np

class Walk(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=3):
        self.observation_space = gym.spaces.Box(-1, size, (1,), np.float32)
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(self.size))
        return np.full(1, self.at, np.float32), {}

    def step(self, action):
        self.at += 2 * int(action) - 1
        done = not 0 <= self.at < self.size
        return np.full(1, self.at, np.float32), 1.0, done, False, {}

def act(observation):
    return np.zeros(len(observation), np.int64)

def broken(observation):
    return np.full(len(observation), 7)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "walk.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


def test_an_endpoint(program: Callable[..., Outcome]) -> None:
    with serving(lambda: gym.make("CartPole-v1"), token="t") as address:
        shown = program("check", address, "--token", "t", "--timeout", "20")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].startswith("passed  contract: ")
    assert lines[-1] == f"{address}: 10 passed, 1 lacking, 2 skipped"
    assert "lacking render: " in shown.out
    assert max(map(len, lines)) <= 80


def test_an_id_and_objects_of_a_file(program: Callable[..., Outcome], source: Path) -> None:
    assert program("check", "CartPole-v1").code == 0
    shown = program("check", f"{source}:Walk", "--kwargs", "size=5", "--json")
    assert shown.code == 0
    told = json.loads(shown.out)
    assert told["kind"] == "env"
    assert [rule["rule"] for rule in told["rules"]] == [rule.name for rule in ENV_RULES]
    assert (told["failed"], told["passed"]) == (0, 10)
    for env in ("CartPole-v1", "address"):
        with serving(lambda: gym.make("CartPole-v1")) as address:
            name = address if env == "address" else env
            shown = program("check", f"{source}:act", "--env", name, "--json")
        assert shown.code == 0
        told = json.loads(shown.out)
        assert (told["kind"], told["passed"]) == ("model", len(MODEL_RULES))


def test_a_failed_rule_is_the_exit_code(program: Callable[..., Outcome], source: Path) -> None:
    shown = program("check", f"{source}:broken", "--env", "CartPole-v1")
    assert shown.code == 1
    assert "failed  predict: " in shown.out
    assert "failed" in shown.out.splitlines()[-1]
    with FaultyEndpoint(lambda: gym.make("CartPole-v1"), seed=1, error=0.1) as endpoint:
        shown = program("check", endpoint.address)
    assert shown.code == 1
    assert "as it was asked to" in " ".join(shown.out.split())


def test_what_cannot_be_checked(program: Callable[..., Outcome], source: Path) -> None:
    with serving_model(lambda observation: np.zeros(len(observation), int)) as address:
        shown = program("check", address)
    assert shown.code == 2
    assert "name the environment that it is for" in shown.error_line
    shown = program("check", address)
    assert shown.code == 1
    assert "nothing listens there" in shown.error_line
    assert "no 'nothing'" in program("check", f"{source}:nothing").error_line
    assert "not for an address" in program("check", address, "--kwargs", "a=1").error_line
