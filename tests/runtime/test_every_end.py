"""One env and one model through every kind of end: the same records, sights and actions."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
from rlmesh_gym.rpc.large_answers import LARGE_BYTES
from tests.runtime.ends import BY_MODE, ENVS, MODELS, PlayedModel, play_by_hand, told
from tests.runtime.played_env import PICTURE_BYTES, frame

SEEDS = [3, 14, 15, 92, 65, 35, 89]
LANES = {"single": 1, "address of one": 1, "RemoteEnv": 1, "embedded, single": 1}
LANES |= {"single, wrapped": 1, "RemoteEnv, wrapped": 1}
THREE = {"list of vectors", "addresses", "mixed list"}
FEW = ["single", "NEXT_STEP: local", "SAME_STEP: object", "address of lanes", "addresses"]


def num_lanes(end: str) -> int:
    return 3 if end in THREE else LANES.get(end, 2)


@pytest.mark.parametrize("end", ENVS)
def test_a_run_plays_what_is_played_by_hand(end: str) -> None:
    with ExitStack() as stack:
        envs = ENVS[end](stack)
        check(stack, end, envs, "handler", 1)
        check(stack, end, envs, "policy", 3)  # What was given stays open for another run.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("end", FEW)
def test_and_with_every_kind_of_model(end: str, model: str) -> None:
    with ExitStack() as stack:
        check(stack, end, ENVS[end](stack), model, 2)


def check(stack: ExitStack, end: str, envs: Any, model: str, horizon: int) -> None:
    expected = [play_by_hand(seed, horizon) for seed in SEEDS]
    handler = PlayedModel()
    n = num_lanes(end)
    policy = MODELS[model](stack, handler, n, horizon)
    report = rg.run(envs, policy, episode_seeds=SEEDS, execution_horizon=horizon)
    assert report.num_envs == n
    assert [told(episode) for episode in report.episodes] == [told(one) for one in expected]
    assert [(one.index, one.lane) for one in report.episodes] == [
        (index, index % n) for index in range(len(SEEDS))
    ]
    assert handler.of(report.episodes) == [one.seen for one in expected]
    assert len(handler.seen) == len(SEEDS)
    assert report.predict_calls == handler.calls
    assert report.predict_rows == sum(len(one.seen) for one in expected)


@pytest.mark.parametrize("model", ["handler", "policy"])
@pytest.mark.parametrize("end", [*FEW, "SAME_STEP: address", "DISABLED: session", "embedded"])
def test_and_with_large_observations(end: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURE_BYTES, str(2 * LARGE_BYTES))
    with ExitStack() as stack:
        check(stack, end, ENVS[end](stack), model, 2)


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("end", FEW)
def test_a_function_is_a_model_too(end: str, served: bool) -> None:
    rows = 0

    def function(observations: Any) -> Any:
        nonlocal rows
        rows += len(observations["t"])
        return frame(observations)

    with ExitStack() as stack:
        policy: Any = function
        if served:
            policy = stack.enter_context(rg.ModelServer(function)).address
        report = rg.run(ENVS[end](stack), policy, episode_seeds=SEEDS)
    expected = [play_by_hand(seed) for seed in SEEDS]
    assert [told(episode) for episode in report.episodes] == [told(one) for one in expected]
    assert rows == report.total_steps == sum(one.length for one in expected)


RUNS: dict[str, dict[str, Any]] = {
    "seeded": {"episodes": 7, "seed": 5},
    "steps": {"max_steps": 25, "seed": 5},
    "short episodes": {"episodes": 7, "seed": 5, "max_episode_steps": 4},
    "short episodes, seeds of their own": {"episode_seeds": SEEDS, "max_episode_steps": 3},
    "options": {"episodes": 3, "seed": 5, "reset_options": {"gravity": 9.5, "rows": [1, 2]}},
    "chunks": {"episodes": 7, "seed": 5, "execution_horizon": 3},
}


@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_all_ends_of_one_mode_play_the_same_run(mode: AutoresetMode, how: str) -> None:
    found = {}
    for name, end in BY_MODE[mode].items():
        model = PlayedModel()
        with ExitStack() as stack:
            report = rg.run(end(stack), model, **RUNS[how])
        assert report.autoreset_mode == mode.name, name
        found[name] = (
            [(one.index, one.lane, told(one)) for one in report.episodes],
            model.of(report.episodes),
            report.total_steps,
            report.total_reward,
            report.stop_reason,
            report.predict_rows,
        )
    for name, played in found.items():
        assert played == found["local"], name
