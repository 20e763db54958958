"""Drive an endpoint with the released package's env clients. Started by ``tests.peers.drive_env``.

It prints one line of JSON: the contract as the client sees it, and a list of what each call
returned, in the order of the plan.
"""

from __future__ import annotations

import sys
from typing import Any

import rlmesh.numpy

from tests.peer_scripts.exchange import dumps, loads


def play(env: Any, call: list[Any]) -> Any:
    """Make one call of the plan."""
    name, *arguments = call
    try:
        if name == "reset":
            seed, options = arguments
            observation, info = env.reset(seed=seed, options=options)
            return {"observation": observation, "info": info}
        if name == "step":
            observation, reward, terminated, truncated, info = env.step(arguments[0])
            return {
                "observation": observation,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "info": info,
            }
        if name == "render":
            return {"frame": env.render()}
        if name == "shutdown":
            return {"accepted": env.shutdown(*arguments)}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    raise ValueError(name)


def main() -> None:
    """Play the plan in the first argument."""
    plan = loads(sys.argv[1])
    client = getattr(rlmesh.numpy, plan["client"])
    env = client(plan["address"], **plan["options"])
    results = [play(env, call) for call in plan["calls"]]
    answer = {
        "env_id": env.env_id,
        "num_envs": getattr(env, "num_envs", 1),
        "render_mode": env.render_mode,
        "metadata": dict(env.metadata),
        "observation_space": str(env.observation_space),
        "action_space": str(env.action_space),
        "results": results,
    }
    env.close()
    print(f"RESULT {dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
