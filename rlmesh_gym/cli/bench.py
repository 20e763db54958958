"""``rlmesh-gym bench``: steps per second, beside Gymnasium's own vectors on this machine."""

from __future__ import annotations

import json
import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import add_connection_options, connection_arguments, count_option
from rlmesh_gym.cli.output import show
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.runtime.report.formatting import format_duration, text_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


_logger = logging.getLogger(__name__)

_WARM_UP = 20
_ACTIONS = 64  # Batches sampled beforehand, so that sampling is not measured.
_PERCENTILES = ("p50", "p95", "p99")

EPILOG = """\
It takes the endpoint's session and steps it with random actions. Where this machine can make the
same environment, SyncVectorEnv and AsyncVectorEnv with as many lanes are measured beside it.

  rlmesh-gym bench 127.0.0.1:5555
  rlmesh-gym bench --env-id CartPole-v1 --num-envs 64      (an endpoint of its own)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "address", nargs="?", metavar="ADDRESS", help="default: an endpoint in a child process"
    )
    parser.add_argument(
        "--env-id",
        metavar="ENV_ID",
        help="environment without an address, default CartPole-v1; with one, what to compare with",
    )
    count_option(parser, "--num-envs", "lanes without an address", default=8)
    count_option(parser, "--steps", "vector steps to measure", default=1000)
    parser.add_argument("--json", action="store_true", help="write JSON instead of a table")
    add_connection_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Measure each vector in turn and print a table."""
    if options.address is None:
        env_id = options.env_id or "CartPole-v1"
        envs = RemoteVectorEnv(env_id=env_id, num_envs=options.num_envs)
        name = f"remote, {options.num_envs} lanes in a child process"
    else:
        how = connection_arguments(options)
        with EnvSession.open(options.address, **how) as session:
            env_id = options.env_id or session.contract.env_id
        envs = RemoteVectorEnv(options.address, **how)
        name = f"remote, {options.address}"
    with envs:
        num_envs = envs.num_envs
        rows = [_measure(name, envs, options.steps)]
    for kind in ("sync", "async"):
        local = _local(env_id, num_envs, kind)
        if local is not None:
            with closing(local):
                rows.append(_measure(f"local, {kind}", local, options.steps))
    if options.json:
        show(json.dumps({"env_id": env_id, "num_envs": num_envs, "rows": rows}, indent=2))
        return Exit.DONE
    show(f"{env_id}, {num_envs} lanes, {options.steps:,} vector steps each\n")
    cells = [
        (
            row["name"],
            f"{row['env_steps_per_second']:,.0f}",
            *(format_duration(row[key]) for key in _PERCENTILES),
        )
        for row in rows
    ]
    show(text_table(("vector", "env steps/s", "p50 of a step", "p95", "p99"), cells))
    if len(rows) == 1:
        show(f"\n{env_id!r} cannot be made on this machine, so there is nothing to compare with.")
    return Exit.DONE


def _local(env_id: str, num_envs: int, kind: str) -> gym.vector.VectorEnv[Any, Any, Any] | None:
    try:
        return gym.make_vec(env_id, num_envs=num_envs, vectorization_mode=kind)
    except Exception:  # Whatever the environment raises, it is not there to compare with.
        _logger.debug("%s cannot be made here", env_id, exc_info=True)
        return None


def _measure(name: str, envs: Any, steps: int) -> dict[str, Any]:
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(_ACTIONS)]
    advance = _stepper(envs)
    envs.reset(seed=0)
    for step in range(_WARM_UP):
        advance(actions[step % _ACTIONS])
    times = np.empty(steps)
    for step in range(steps):
        began = time.perf_counter()
        advance(actions[step % _ACTIONS])
        times[step] = time.perf_counter() - began
    percentiles = np.percentile(times, [50, 95, 99], method="inverted_cdf").tolist()
    return {
        "name": name,
        "env_steps_per_second": float(steps * envs.num_envs / times.sum()),
        **dict(zip(_PERCENTILES, percentiles, strict=True)),
    }


def _stepper(envs: Any) -> Callable[[Any], None]:
    """A step that also resets what does not reset itself."""
    if envs.metadata.get("autoreset_mode") is not gym.vector.AutoresetMode.DISABLED:
        return envs.step  # type: ignore[no-any-return]

    def step_and_reset(actions: Any) -> None:
        _, _, terminations, truncations, _ = envs.step(actions)
        ended = terminations | truncations
        if ended.any():
            envs.reset(options={"reset_mask": ended})

    return step_and_reset
