"""Serve an env with the released ``rlmesh`` package. Started by ``tests.peers.env_endpoint``."""

from __future__ import annotations

import json
import sys

import rlmesh

from tests.peer_scripts.factories import make, make_vector


def main() -> None:
    """Serve what the JSON in the first argument describes; print the address first."""
    plan = json.loads(sys.argv[1])
    kind, factory, kwargs = plan["kind"], plan["factory"], plan["kwargs"]
    num_envs = plan["num_envs"]
    if kind == "single":
        env = make(factory, kwargs)
    elif kind == "lanes":
        env = [make(factory, kwargs) for _ in range(num_envs)]
    else:
        env = make_vector(factory, kwargs, num_envs, kind.upper())
    options = rlmesh.ServeOptions(allow_remote_shutdown=plan["allow_shutdown"])
    server = rlmesh.EnvServer(env, plan["address"], options=options)
    server.start()
    print(f"ADDRESS {server.address}", flush=True)
    server.wait()


if __name__ == "__main__":
    main()
