"""Endpoints of the benchmarks, each in a process of its own that ends with its standard input.

Run as a script it is the child: ``python endpoints.py KIND ENV_ID NUM_ENVS ADDRESS``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


@contextmanager
def endpoint(kind: str, env_id: str, num_envs: int, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve ``env_id`` from a child process and yield its address.

    Args:
        kind: ``"ours"``, ``"released"`` (the rlmesh package), ``"model"`` (our server, a model that
            answers zeros) or ``"echo"`` (a bare grpcio stream that answers each message with
            ``num_envs`` bytes).
    """
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        PYTHONWARNINGS="ignore",  # Gymnasium's checker has much to say about these environments.
    )
    command = [sys.executable, str(HERE / "endpoints.py"), kind, env_id, str(num_envs), address]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = child.stdout.readline().strip()
        if not line:
            message = f"the {kind} endpoint for {env_id} ended with code {child.wait()}"
            raise SystemExit(message)
        yield line
    finally:
        child.stdin.close()
        child.stdout.close()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _serve(kind: str, env_id: str, num_envs: int, address: str) -> None:
    import gymnasium as gym

    if kind == "echo":
        _serve_echo(address, num_envs)
        return
    if kind == "model":
        import numpy as np

        import rlmesh_gym as rg

        model = rg.ModelServer(lambda sight: np.zeros(len(sight), np.int64), address)
        with model as server:
            print(server.address, flush=True)
            sys.stdin.read()
        return
    if num_envs == 1:
        env = gym.make(env_id)
    else:
        env = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")
    if kind == "ours":
        import rlmesh_gym as rg

        server = rg.EnvServer(env, address)
        server.start()
        print(server.address, flush=True)
        sys.stdin.read()
        server.stop()
    else:
        os.environ["RLMESH_WORKFLOW_EDITION"] = "2026.06"
        import rlmesh

        server = rlmesh.EnvServer(env, None if address.endswith(":0") else address)
        server.start()
        print(server.address, flush=True)
        sys.stdin.read()
        os._exit(0)  # its shutdown drains for seconds


def _serve_echo(address: str, reply_bytes: int) -> None:
    from concurrent import futures

    import grpc

    reply = bytes(reply_bytes)

    def join(requests, context):
        context.send_initial_metadata(())
        for _ in requests:
            yield reply

    handler = grpc.stream_stream_rpc_method_handler(join)
    server = grpc.server(
        futures.ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)]
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Echo", {"Join": handler}),)
    )
    target = address.removeprefix("tcp://")
    port = server.add_insecure_port(target)
    server.start()
    print(target if target.startswith("unix:") else f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None)
    threading.Event().wait(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["ours", "released", "model", "echo"])
    parser.add_argument("env_id")
    parser.add_argument("num_envs", type=int)
    parser.add_argument("address")
    args = parser.parse_args()
    _serve(args.kind, args.env_id, args.num_envs, args.address)
