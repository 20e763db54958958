"""Serve envs with the released ``rlmesh`` package, many in one process.

Started by ``tests.env.shared_endpoints``. Every line of standard input is a JSON plan with ``kind``
(one of ``tests.peers.ENV_KINDS``), ``num_envs`` and ``kwargs`` of a ``SeededEnv``; the address is
printed in answer. The end of the input is the end of the process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import rlmesh
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.env.seeded_env import SeededEnv


def build(kind: str, num_envs: int, kwargs: dict[str, Any]) -> Any:
    """Return the env, the list of envs, or the vector that the plan describes."""
    if kind == "single":
        return SeededEnv(**kwargs)
    if kind == "lanes":
        return [SeededEnv(**kwargs) for _ in range(num_envs)]
    makers = [lambda: SeededEnv(**kwargs)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[kind.upper()])


def main() -> None:
    """Serve what comes, until nothing more does."""
    servers = []
    for line in sys.stdin:
        server = rlmesh.EnvServer(build(**json.loads(line)), "127.0.0.1:0")
        server.start()
        servers.append(server)
        print(server.address, flush=True)


if __name__ == "__main__":
    main()
