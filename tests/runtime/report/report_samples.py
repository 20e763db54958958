"""Reports made of nothing but a seed, for tests of what shows them."""

from __future__ import annotations

import numpy as np
import uuid6

from rlmesh_gym.episodes import EpisodeRecord
from rlmesh_gym.runtime import Bottleneck, RuntimeReport, TelemetryRow, TelemetrySnapshot

HOSTILE = (
    "</title></script><script>alert('x')</script>"
    '<img src=x onerror="alert(1)">&amp;\u202e\x1b[31m'
)


def make_snapshot() -> TelemetrySnapshot:
    metrics = (
        ("rpc.total", "s", 2e-3),
        ("endpoint.total", "s", 1.4e-3),
        ("endpoint.user", "s", 1e-3),
        ("endpoint.lane_skew", "s", 0.0),
        ("request.bytes", "bytes", 420.0),
        ("response.bytes", "bytes", 2.5e6),
    )
    rows = tuple(
        TelemetryRow(operation, metric, unit, 100, base, base, 2 * base, 3 * base, 100 * base)
        for operation in ("model.predict", "env.step")
        for metric, unit, base in metrics
    )
    return TelemetrySnapshot("session", "run", rows, taken_at=1.7e9, duration=12.5)


def make_episode(number: int, rng: np.random.Generator, env_id: str) -> EpisodeRecord:
    length = int(rng.integers(5, 500))
    return EpisodeRecord(
        episode_id=str(uuid6.uuid7()),
        lane=number % 4,
        endpoint="tcp://127.0.0.1:5555",
        env_id=env_id,
        seed=int(rng.integers(2**62)),
        length=length,
        episode_return=float(rng.normal(length)),
        terminated=length < 400,
        truncated=length >= 400,
        success=length > 200,
        started_at=1.7e9 + number,
        duration=length / 100,
        env_time=length / 300,
        policy_time=length / 400,
        index=number,
        final_info={"distance": float(rng.random())},
    )


def make_report(
    num_episodes: int,
    *,
    seed: int = 0,
    env_id: str = "CartPole-v1",
    error: str | None = None,
    telemetry: TelemetrySnapshot | None = None,
) -> RuntimeReport:
    rng = np.random.default_rng(seed)
    episodes = tuple(make_episode(number, rng, env_id) for number in range(num_episodes))
    if telemetry is None:
        telemetry = make_snapshot() if num_episodes else TelemetrySnapshot("session", "run")
    shares = {"env": 0.25, "wire": 0.1, "policy": 0.6, "loop": 0.05}
    return RuntimeReport(
        session_id="run",
        env_id=env_id,
        num_envs=4,
        autoreset_mode="NEXT_STEP",
        env_endpoints=("tcp://127.0.0.1:5555",),
        model_endpoint="tcp://127.0.0.1:6000",
        base_seed=7,
        execution_horizon=8,
        episodes=episodes,
        total_steps=sum(episode.length for episode in episodes),
        total_reward=sum(episode.episode_return for episode in episodes),
        started_at=1.7e9,
        duration=12.5,
        stop_reason="failed" if error else "max_episodes",
        error=error,
        telemetry=telemetry,
        bottleneck=Bottleneck("The policy bound this run: 60% of its time.", shares),
    )
