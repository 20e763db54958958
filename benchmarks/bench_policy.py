"""What per-lane replay saves, what asking ahead hides, and fifty policies on one model server.

``python benchmarks/bench_policy.py [--quick] [--predicts 2000] [--json FILE]``

Economy: 16 lanes, chunks of 8, episodes of 20 to 60 steps; counts, so the same on every machine.
Round trip: a small predict beside a bare gRPC stream echo of as many bytes, both over TCP.
Overlap: one lane, a model of 20 ms, an env step of 5 ms, chunks of 8. The ideal is 1.5.
"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from bench_step import BareStream
from endpoints import endpoint
from gymnasium import spaces
from measure import side_by_side, table, write_json

import rlmesh_gym as rg
from rlmesh_gym.codec import SpaceCodec, encode_env_spec
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.rpc import ModelSession

HORIZON = 8
SPACES = {
    "single_observation_space": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "single_action_space": spaces.Box(-np.inf, np.inf, (4,), np.float32),
}


class ChunkModel(rg.ModelHandler):
    """Chunks of copies of the observation, after ``seconds``; notes overlapping calls."""

    def __init__(self, seconds: float = 0.0, chunk: int = HORIZON):
        self.seconds = seconds
        self.chunk = chunk
        self.alone = threading.Lock()
        self.overlaps = 0

    def predict(self, observation):
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation):
        if not self.alone.acquire(blocking=False):
            self.overlaps += 1
            return rg.PredictFrames(observation.observation)
        try:
            if self.seconds:
                time.sleep(self.seconds)
            return rg.PredictFrames(
                observation.observation, [observation.observation] * (self.chunk - 1)
            )
        finally:
            self.alone.release()


def round_trip(rounds: int) -> dict[str, float]:
    """Seconds of one predict of 8 CartPole lanes, and of an echo of the same size."""
    sight = np.zeros((8, 4), np.float32)
    codec = SpaceCodec(SPACES["single_observation_space"])
    value = codec.encode([sight], 8)
    episodes = [(mint_episode_id(), None) for _ in range(8)]
    with ExitStack() as stack:
        address = stack.enter_context(endpoint("model", "-", 8))
        model = stack.enter_context(ModelSession.open(address))
        spec = encode_env_spec(
            "bench", SPACES["single_observation_space"], spaces.Discrete(2), metadata={}
        )
        model.resolve_adapter("bench", spec).result(10)
        answer = model.predict("bench", value, episodes)
        answer.result(10)
        echo = stack.enter_context(endpoint("echo", "-", answer.response_bytes))
        request = bytes(answer.request_bytes)
        bare = BareStream(echo, "/bench.Echo/Join", stack)
        timings = side_by_side(
            {
                "predict": lambda: model.predict("bench", value, episodes).result(10),
                "echo": lambda: bare.round_trip(request),
            },
            rounds=rounds,
        )
    ratio = timings["predict"].ratio(timings["echo"])
    table(
        "round trip: a small predict",
        [
            ("what", "ms", "/ echo"),
            ("predict", f"{timings['predict'].median * 1e3:.3f}", f"{ratio:.2f}"),
            ("bare stream, echo", f"{timings['echo'].median * 1e3:.3f}", "1.00"),
        ],
    )
    return {**{name: timing.median for name, timing in timings.items()}, "ratio": ratio}


def economy(lanes: int = 16, steps: int = 2000) -> dict[str, Any]:
    """Rows and calls for staggered episodes, by ``coalesce``; the whole-batch rule beside them."""
    figures: dict[str, Any] = {}
    rows = [("rule", "calls", "rows", "rows / (env steps / 8)", "to hold")]
    env_steps = lanes * steps
    with rg.ModelServer(ChunkModel()) as server:
        for coalesce in (0, 2, 4):
            left = np.random.default_rng(0)
            ends = left.integers(20, 61, lanes)
            starts = np.ones(lanes, bool)
            episodes, whole_batch, frames = lanes, 0, 0
            sight = np.zeros((lanes, 4), np.float32)
            with rg.RemotePolicy(
                server.address,
                **SPACES,
                num_envs=lanes,
                execution_horizon=HORIZON,
                coalesce=coalesce,
            ) as policy:
                for _ in range(steps):
                    policy.predict(sight, episode_start=starts)
                    if frames == 0 or starts.any():
                        whole_batch += 1
                        frames = HORIZON
                    frames -= 1
                    ends -= 1
                    starts = ends == 0
                    ends[starts] = left.integers(20, 61, int(starts.sum()))
                    episodes += int(starts.sum())
                stats = policy.stats
            bound = 1.1 * env_steps / HORIZON + episodes
            figures[f"coalesce={coalesce}"] = {"calls": stats.calls, "rows": stats.rows}
            rows.append(
                (
                    f"per lane, coalesce={coalesce}",
                    str(stats.calls),
                    str(stats.rows),
                    f"{stats.rows * HORIZON / env_steps:.3f}",
                    f"rows <= {bound:.0f}" if coalesce == 0 else "",
                )
            )
    figures["whole batch"] = {"calls": whole_batch, "rows": whole_batch * lanes}
    figures["env_steps"], figures["episodes"] = env_steps, episodes
    ratio = whole_batch * lanes * HORIZON / env_steps
    rows.append(("whole batch", str(whole_batch), str(whole_batch * lanes), f"{ratio:.3f}", ""))
    table(f"economy: {lanes} lanes, {env_steps} env steps, {episodes} episodes", rows)
    return figures


class WholeChunkBroker:
    """Call the model, replay the whole chunk, call again: no wire, nothing hidden."""

    def __init__(self, model: ChunkModel):
        self.model = model
        self.frames: list[Any] = []

    def __call__(self, sight):
        if not self.frames:
            answer = self.model.predict_chunked(rg.ModelObservation("env", sight, ("episode",)))
            self.frames = [answer.actions, *answer.replay]
        return self.frames.pop(0)


def _steps_per_second(policy: Any, step_seconds: float, steps: int) -> float:
    sight = np.zeros((1, 4), np.float32)
    for _ in range(2 * HORIZON):
        policy(sight)
        time.sleep(step_seconds)
    begin = time.perf_counter()
    for _ in range(steps):
        policy(sight)
        time.sleep(step_seconds)
    return steps / (time.perf_counter() - begin)


def overlap(
    model_seconds: float = 0.020, step_seconds: float = 0.005, *, steps: int, rounds: int
) -> dict[str, float]:
    """Steps per second of one lane, with and without asking ahead."""
    figures = {}
    model = ChunkModel(model_seconds)
    rates = {"whole-chunk blocking, in process": [], "prefetch=False": [], "prefetch=True": []}
    with rg.ModelServer(model) as server:
        for _ in range(rounds):
            for name, samples in rates.items():
                if name.startswith("whole"):
                    samples.append(_steps_per_second(WholeChunkBroker(model), step_seconds, steps))
                    continue
                with rg.RemotePolicy(
                    server.address,
                    **SPACES,
                    execution_horizon=HORIZON,
                    prefetch=name.endswith("True"),
                ) as policy:
                    samples.append(_steps_per_second(policy, step_seconds, steps))
    figures = {name: float(np.median(samples)) for name, samples in rates.items()}
    plain = figures["prefetch=False"]
    table(
        f"overlap: model {model_seconds * 1e3:g} ms, env step {step_seconds * 1e3:g} ms, h = 8",
        [
            ("way", "steps/s", "/ prefetch=False", "to hold"),
            *(
                (
                    name,
                    f"{rate:.1f}",
                    f"{rate / plain:.2f}",
                    ">= 1.35" if name.endswith("True") else "",
                )
                for name, rate in figures.items()
            ),
        ],
    )
    return figures


def crowd(clients: int, predicts: int) -> dict[str, float]:
    """Many policies on one server, all at once: every answer goes to its asker."""
    model = ChunkModel(chunk=1)
    wrong = 0
    ready = threading.Barrier(clients + 1)

    def play(client: int) -> int:
        mistakes = 0
        with rg.RemotePolicy(server.address, **SPACES) as policy:
            ready.wait()
            for number in range(predicts):
                sight = np.array([client, number, 0, 0], np.float32)
                mistakes += not np.array_equal(policy(sight), sight)
        return mistakes

    with rg.ModelServer(model) as server, ThreadPoolExecutor(clients) as pool:
        playing = [pool.submit(play, client) for client in range(clients)]
        ready.wait()
        begin = time.perf_counter()
        wrong = sum(each.result() for each in playing)
        seconds = time.perf_counter() - begin
    table(
        f"crowd: {clients} policies, {predicts} predicts each",
        [
            ("predicts/s", "seconds", "wrong answers", "overlapping calls"),
            (
                f"{clients * predicts / seconds:.0f}",
                f"{seconds:.1f}",
                str(wrong),
                str(model.overlaps),
            ),
        ],
    )
    return {"seconds": seconds, "wrong": wrong, "overlaps": model.overlaps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--predicts", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.quick:
        args.clients, args.predicts = 10, 100
    results = {
        "economy": economy(steps=500 if args.quick else 2000),
        "round trip": round_trip(3 if args.quick else 9),
        "overlap": overlap(
            steps=120 if args.quick else 400,
            rounds=1 if args.quick else 3,
        ),
        "crowd": crowd(args.clients, args.predicts),
    }
    write_json(args.json, results)


if __name__ == "__main__":
    main()
