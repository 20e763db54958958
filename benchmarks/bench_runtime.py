"""What the driver's relay costs: one run's vector step beside one env and one model round trip.

``python benchmarks/bench_runtime.py [--quick] [--json FILE]``. Both ends are processes of their own
on Unix sockets; the round trips send the very messages that the run sends, one of either kind after
the other, as a run does. To hold: the run's step is at most 1.15 times the two together.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from endpoints import HERE, endpoint
from measure import table, write_json

import rlmesh_gym as rg
from rlmesh_gym.codec import EnvSpec
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.runtime import RuntimeLimits

CASES = {"CartPole-v1": "CartPole", "bench_envs:Bench/Image-v0": "(84, 84, 4) uint8"}
LANES = 8
TO_HOLD = 1.15


def balance(observation):
    """Keep CartPole up; push images to one side."""
    if observation.ndim == 2:
        return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)
    return np.zeros(len(observation), np.int64)


@contextmanager
def model_process(address: str):
    child = subprocess.Popen(
        [sys.executable, str(HERE / "bench_runtime.py"), "--serve", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait(timeout=30)


def serve(address: str) -> None:
    with rg.ModelServer(balance, address) as server:
        print(server.address, flush=True)
        sys.stdin.read()


def one_case(env_id: str, folder: Path, rounds: int, steps: int) -> dict[str, float]:
    with ExitStack() as stack:
        env_address = stack.enter_context(
            endpoint("ours", env_id, LANES, f"unix://{folder}/env.sock")
        )
        model_address = stack.enter_context(model_process(f"unix://{folder}/model.sock"))
        env = stack.enter_context(EnvSession.open(env_address))
        model = stack.enter_context(ModelSession.open(model_address))
        model.resolve_adapter(
            "bench",
            EnvSpec(
                env.contract.env_id,
                env.contract.single_observation_space,
                env.contract.single_action_space,
            ),
        ).result(10)
        ids = [mint_episode_id() for _ in range(LANES)]
        observation = env.reset(seeds=range(LANES), episode_ids=ids).result(60).observation
        episodes = [(name, None) for name in ids]
        action = model.predict("bench", observation, episodes).result(60).actions[0]
        limits = RuntimeLimits()

        def bare() -> None:
            for _ in range(steps):
                begin = time.perf_counter()
                env.step(action, episode_ids=ids).result(60)
                middle = time.perf_counter()
                model.predict("bench", observation, episodes).result(60)
                env_seconds.append(middle - begin)
                model_seconds.append(time.perf_counter() - middle)

        samples = {"env round trip": [], "model round trip": [], "run": [], "ratio": []}
        for _ in range(rounds):
            begin = time.perf_counter()
            rg.run(env, model, max_steps=LANES * steps, seed=1, limits=limits)
            relay = (time.perf_counter() - begin) / steps
            env.reset(seeds=range(LANES), episode_ids=ids).result(60)
            env_seconds, model_seconds = [], []
            bare()
            env_mean, model_mean = np.mean(env_seconds), np.mean(model_seconds)
            samples["env round trip"].append(env_mean)
            samples["model round trip"].append(model_mean)
            samples["run"].append(relay)
            samples["ratio"].append(relay / (env_mean + model_mean))
        return {name: float(np.median(values)) for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    rounds, steps = (3, 200) if args.quick else (9, 500)
    results = {}
    rows = [("8 lanes", "env", "model", "sum", "run's step", "ratio", "to hold")]
    for env_id, name in CASES.items():
        with tempfile.TemporaryDirectory(prefix="rg-") as folder:
            figures = one_case(env_id, Path(folder), rounds, steps)
        results[name] = figures
        both = figures["env round trip"] + figures["model round trip"]
        seconds = (figures["env round trip"], figures["model round trip"], both, figures["run"])
        cells = [f"{1e3 * value:.3f} ms" for value in seconds]
        rows.append((name, *cells, f"{figures['ratio']:.2f}", f"<= {TO_HOLD}"))
    table("relay: a run's vector step beside the two round trips it is made of", rows)
    write_json(args.json, results)


if __name__ == "__main__":
    main()
