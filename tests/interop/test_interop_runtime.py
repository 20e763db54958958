"""Runs against processes of the released package: its env endpoints, its served models, both.

Where its own run loop can play the same thing, the numbers must be the same.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import AutoresetError, EnvError, ModelError
from rlmesh_gym.runtime import run
from tests.peers import (
    CHUNK,
    env_endpoint,
    expected_action,
    model_endpoint,
    model_episodes,
    run_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.runtime import RuntimeReport
    from tests.peers import EnvKind, ModelKind, Peer

pytestmark = pytest.mark.interop

SEEDS = [3, 1, 4, 1, 5, 9, 2, 6]
NOTHING: dict[str, Any] = {}


def numbers(report: RuntimeReport) -> list[tuple[int | None, int, float, bool, bool]]:
    return [
        (
            episode.seed,
            episode.length,
            episode.episode_return,
            episode.terminated,
            episode.truncated,
        )
        for episode in report.episodes
    ]


def play(seed: int, horizon: int) -> tuple[int, int, float, bool, bool]:
    """Play one CartPole episode here, as the peer's models would: the plain reference."""
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    plan: list[int] = []
    length, total, terminated, truncated = 0, 0.0, False, False
    while not (terminated or truncated):
        if not plan:
            plan = [expected_action(observation, frame) for frame in range(horizon)]
        observation, reward, terminated, truncated, _ = env.step(plan.pop(0))
        length, total = length + 1, total + float(reward)
    env.close()
    return seed, length, total, terminated, truncated


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Peer]]:
    with (
        model_endpoint("predict") as predict,
        model_endpoint("chunk") as chunk,
        model_endpoint("native_chunk") as native,
    ):
        yield {"predict": predict, "chunk": chunk, "native_chunk": native}


@contextmanager
def lanes(count: int) -> Iterator[str]:
    kind: EnvKind = "single" if count == 1 else "lanes"
    with env_endpoint(kind, "CartPole-v1", num_envs=count) as peer:
        yield peer.address


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (1, (("predict", 1), ("chunk", CHUNK))),
        (3, (("chunk", 1), ("native_chunk", 2))),
        (8, (("predict", 1), ("chunk", CHUNK), ("native_chunk", 2))),
    ],
)
def test_released_lanes_with_released_models_chunked_and_not(
    models: dict[str, Peer], count: int, cases: tuple[tuple[str, int], ...]
) -> None:
    with lanes(count) as address:
        for kind, horizon in cases:
            report = run(
                address, models[kind].address, episode_seeds=SEEDS, execution_horizon=horizon
            )
            assert numbers(report) == [play(seed, horizon) for seed in SEEDS], (kind, horizon)
            assert report.num_envs == count
            assert report.autoreset_mode == "DISABLED"


@pytest.mark.parametrize("model", ["predict", "chunk"])
def test_the_released_run_loop_plays_the_same_episodes(
    models: dict[str, Peer], model: ModelKind
) -> None:
    horizon = CHUNK if model == "chunk" else 1
    with lanes(1) as address:
        ours = run(
            address, models[model].address, episode_seeds=SEEDS[:4], execution_horizon=horizon
        )
        theirs = run_model(address, model, episodes=4, seeds=SEEDS[:4], execution_horizon=horizon)
    assert [
        (episode["seed"], episode["steps"], episode["reward"], episode["terminated"])
        for episode in theirs["episodes"]
    ] == [row[:4] for row in numbers(ours)]


def test_the_released_run_loop_plays_the_same_episodes_on_lanes(models: dict[str, Peer]) -> None:
    with lanes(3) as address:
        ours = run(address, models["predict"].address, episode_seeds=SEEDS[:6])
        theirs = run_model(address, "predict", episodes=6, seeds=SEEDS[:6])
    played = {
        (episode["seed"], episode["steps"], episode["reward"]) for episode in theirs["episodes"]
    }
    assert played == {row[:3] for row in numbers(ours)}


def test_the_released_session_replays_chunks_alike(models: dict[str, Peer]) -> None:
    with lanes(1) as address:
        ours = run(
            address, models["chunk"].address, episode_seeds=SEEDS[:3], execution_horizon=CHUNK
        )
        theirs = model_episodes(
            address, models["chunk"].address, seeds=SEEDS[:3], execution_horizon=CHUNK
        )
    assert [
        (episode["seed"], len(episode["steps"]), sum(step["reward"] for step in episode["steps"]))
        for episode in theirs["episodes"]
    ] == [row[:3] for row in numbers(ours)]


@pytest.mark.parametrize("horizon", [1, CHUNK])
def test_a_released_next_step_vector(models: dict[str, Peer], horizon: int) -> None:
    def policy(observations: Any) -> Any:
        return np.array([expected_action(row) for row in observations])

    model = models["predict" if horizon == 1 else "chunk"].address
    with env_endpoint("next_step", "CartPole-v1", num_envs=3) as peer:
        remote = run(peer.address, model, episodes=10, seed=7, execution_horizon=horizon)
        again = run(peer.address, model, episodes=10, seed=7, execution_horizon=horizon)
    assert numbers(again) == numbers(remote)
    assert remote.autoreset_mode == "NEXT_STEP"
    if horizon == 1:
        envs = gym.make_vec(
            "CartPole-v1",
            num_envs=3,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        )
        assert numbers(run(envs, policy, episodes=10, seed=7)) == numbers(remote)
        envs.close()


def test_exact_seeds_and_limits_on_a_released_vector_are_played_in_rounds(
    models: dict[str, Peer],
) -> None:
    with env_endpoint("next_step", "CartPole-v1", num_envs=3) as peer:
        report = run(peer.address, models["predict"].address, episode_seeds=SEEDS)
        cut = run(
            peer.address, models["predict"].address, episode_seeds=SEEDS, max_episode_steps=12
        )
    assert numbers(report) == [play(seed, 1) for seed in SEEDS]
    assert [episode.length for episode in cut.episodes] == [
        min(12, episode.length) for episode in report.episodes
    ]


def test_a_released_disabled_vector(models: dict[str, Peer]) -> None:
    with env_endpoint(
        "disabled", "tests.fake_envs:CountingEnv", num_envs=2, kwargs={"length": 4}
    ) as peer:
        report = run(peer.address, lambda rows: np.ones(len(rows), np.int64), episodes=5, seed=1)
        assert [episode.length for episode in report.episodes] == [4] * 5
    with (
        env_endpoint("disabled", "CartPole-v1", num_envs=3) as peer,
        pytest.raises(AutoresetError, match="NEXT_STEP autoreset"),
    ):
        run(peer.address, models["predict"].address, episodes=6, seed=7)


def test_a_released_model_with_history_and_chunks() -> None:
    with (
        env_endpoint("lanes", "tests.tagged_env:TaggedEnv", num_envs=2) as env,
        env_endpoint("single", "tests.tagged_env:TaggedEnv") as single,
        model_endpoint("stacked") as model,
    ):
        for horizon in (1, CHUNK):
            report = run(env.address, model.address, episodes=4, execution_horizon=horizon, seed=5)
            alone = [
                run(
                    single.address,
                    model.address,
                    episode_seeds=[episode.seed or 0],
                    execution_horizon=horizon,
                )
                for episode in report.episodes
            ]
            assert [row[1:3] for row in numbers(report)] == [numbers(one)[0][1:3] for one in alone]


@pytest.mark.parametrize("kind", ["single", "lanes", "next_step"])
def test_released_envs_with_a_local_function(kind: EnvKind) -> None:
    with env_endpoint(kind, "CartPole-v1", num_envs=3) as peer:
        report = run(
            peer.address, lambda rows: (rows[:, 2] > 0).astype(np.int64), episodes=5, seed=2
        )
    assert len(report.episodes) == 5
    assert all(episode.length > 20 for episode in report.episodes)


def test_a_local_env_with_a_released_model(models: dict[str, Peer]) -> None:
    report = run(gym.make("CartPole-v1"), models["chunk"].address, episode_seeds=SEEDS[:4])
    assert numbers(report) == [play(seed, 1) for seed in SEEDS[:4]]


def test_errors_of_released_ends_come_through() -> None:
    with model_endpoint("failing") as model, lanes(1) as env:
        with pytest.raises(ModelError, match="third time unlucky") as caught:
            run(env, model.address, episodes=3, seed=1)
        assert caught.value.report.total_steps == 2  # type: ignore[attr-defined]
    with (
        env_endpoint("single", "tests.fake_envs:FailingEnv", kwargs={"at": 2}) as peer,
        pytest.raises(EnvError, match="the gripper is stuck"),
    ):
        run(peer.address, lambda rows: np.ones(len(rows), np.int64), episodes=1)
