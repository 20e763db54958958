"""Two promises about many steps: K slow endpoints cost the time of one; nothing is kept for ever.

``python benchmarks/bench_endpoints.py [--quick] [--steps 200000] [--json FILE]``
"""

from __future__ import annotations

import argparse
import gc
from contextlib import ExitStack
from pathlib import Path

from endpoints import endpoint
from measure import side_by_side, table, write_json

import rlmesh_gym as rg


def _resident_mib() -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    message = "no VmRSS in /proc/self/status"
    raise SystemExit(message)


def slow_endpoints(counts: tuple[int, ...]) -> dict[str, float]:
    """Milliseconds of one vector step over K endpoints with a 5 ms step each."""
    figures = {}
    rows = [("endpoints", "ms per step", "to hold")]
    for count in counts:
        with ExitStack() as stack:
            addresses = [
                stack.enter_context(endpoint("ours", "bench_envs:Bench/Slow-v0", 1))
                for _ in range(count)
            ]
            envs = stack.enter_context(rg.RemoteVectorEnv(addresses=addresses))
            envs.reset(seed=0)
            actions = envs.action_space.sample()
            timing = side_by_side({"step": lambda e=envs, a=actions: e.step(a)})["step"]
        figures[str(count)] = timing.median * 1e3
        rows.append((str(count), f"{timing.median * 1e3:.2f}", f"<= {5 + count}"))
    table("K endpoints, 5 ms each", rows)
    return figures


def memory(steps: int) -> dict[str, float]:
    """Growth of resident memory between a tenth of the steps and all of them."""
    with rg.RemoteVectorEnv(env_id="CartPole-v1", num_envs=8) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        for _ in range(steps // 10):
            envs.step(actions)
        gc.collect()
        early = _resident_mib()
        for _ in range(steps - steps // 10):
            envs.step(actions)
        gc.collect()
        late = _resident_mib()
    table(
        "resident memory of the client, MiB",
        [
            ("after", "MiB", "to hold"),
            (f"{steps // 10:,} steps", f"{early:.1f}", ""),
            (f"{steps:,} steps", f"{late:.1f}", ""),
            ("growth", f"{late - early:.2f}", "<= 5"),
        ],
    )
    return {"early_mib": early, "late_mib": late}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer endpoints, 10,000 steps")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    counts, steps = ((1, 2), 10_000) if args.quick else ((1, 2, 4, 8), args.steps)
    results = {"slow_endpoints": slow_endpoints(counts), "memory": memory(steps)}
    write_json(args.json, results)


if __name__ == "__main__":
    main()
