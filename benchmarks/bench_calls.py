"""How many calls of the package one step costs, and in how many files. Counts, so no idle machine.

``python benchmarks/bench_calls.py``. Only the calling thread of the client counts; CartPole with
eight lanes, autoreset NEXT_STEP, no episode ending meanwhile. Comprehensions are calls up to Python
3.11 and not since, so compare figures of one version only.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import gymnasium as gym
from endpoints import endpoint

import rlmesh_gym as rg

CARTPOLE, NUM_ENVS = "CartPole-v1", 8
FEW, MANY = 10, 30
"""Steps of two runs, whose difference is MANY - FEW steps and nothing else."""

_PACKAGE = str(Path(rg.__file__).parent)


def calls_of(work):
    """Count the calls by file and function."""
    calls = Counter()

    def note(frame, event, _argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_PACKAGE) and "_proto" not in file:
            calls[file, frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def per_step(work):
    """Print what a step adds: ``work(steps)`` is called for two numbers of steps."""
    work(FEW)  # What happens once only, in the first use of a cache.
    added = calls_of(lambda: work(MANY)) - calls_of(lambda: work(FEW))
    files = {file for (file, _), count in added.items() if count >= MANY - FEW}
    return sum(added.values()) / (MANY - FEW), len(files), added


def balance(observations):
    """Keep the pole up for as long as it takes."""
    return (observations[:, 2] + observations[:, 3] > 0).astype(int)


def stepping(envs):
    """Return work that resets and steps."""

    def work(steps):
        observations, _ = envs.reset(seed=1)
        for _ in range(steps):
            observations, _, terminations, truncations, _ = envs.step(balance(observations))
            if (terminations | truncations).any():
                raise SystemExit("an episode ended")

    return work


def running(env, policy):
    """Return work that is a run."""

    def work(steps):
        report = rg.run(env, policy, max_steps=steps * NUM_ENVS, seed=1)
        if report.completed_episodes:
            raise SystemExit("an episode ended")

    return work


def main() -> None:
    verbose = "--verbose" in sys.argv[1:]
    local = gym.make_vec(CARTPOLE, num_envs=NUM_ENVS, vectorization_mode="sync")
    with (
        rg.RemoteVectorEnv(env_id=CARTPOLE, num_envs=NUM_ENVS) as envs,
        endpoint("ours", CARTPOLE, NUM_ENVS) as address,
        rg.ModelServer(balance) as model,
    ):
        for name, work in {
            "envs.step, embedded endpoint": stepping(envs),
            "a run's step, env and model at addresses": running(address, model.address),
            "a run's step, local vector and function": running(local, balance),
        }.items():
            calls, files, added = per_step(work)
            print(f"{name:42} {calls:6.1f} calls in {files} files")
            for (file, function), count in added.most_common() if verbose else ():
                path = Path(file).relative_to(_PACKAGE)
                print(f"    {count / (MANY - FEW):6.1f}  {path}  {function}")
    local.close()


if __name__ == "__main__":
    main()
