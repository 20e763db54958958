"""What a step costs, beside everything else that steps a vector of environments.

``python benchmarks/bench_step.py [--quick] [--json FILE]``. The figures are seconds of one run on
one machine; only their ratios travel. The released ``rlmesh`` package is measured when installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import queue
import tempfile
import warnings
from contextlib import ExitStack, closing
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # AsyncVectorEnv forks; gRPC has words for that.

import grpc
import gymnasium as gym
from endpoints import HERE, endpoint
from measure import Timing, side_by_side, table, write_json

import rlmesh_gym as rg
from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.lanes import mint_episode_id

SLOW_CASES = ("CartPole x1", "image x8")
"""Left out of a quick run."""

CARTPOLE, IMAGE = "CartPole-v1", "bench_envs:Bench/Image-v0"
HAS_RELEASED = importlib.util.find_spec("rlmesh") is not None
_UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.default_authority", "localhost"),
]


class BareStream:
    """The least that a grpcio client can do: bytes out, bytes in, nothing looked at."""

    def __init__(self, target: str, method: str, stack: ExitStack) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        channel = stack.enter_context(grpc.insecure_channel(target, options=_UNLIMITED))
        self._answers = channel.stream_stream(method)(iter(self._requests.get, None))
        stack.callback(self._requests.put, None)

    def round_trip(self, request: bytes) -> bytes:
        self._requests.put(request)
        return next(self._answers)


def _grpc_target(address: str) -> str:
    return address.removeprefix("tcp://").replace("unix:///", "unix:/")


def _stepper(envs, actions):
    envs.reset(seed=0)
    return lambda: envs.step(actions)


def _one_case(env_id: str, num_envs: int, folder: Path, quick: bool) -> dict[str, Timing]:
    with ExitStack() as stack:
        single = stack.enter_context(closing(gym.make(env_id)))
        space = single.action_space
        space.seed(0)
        actions = gym.vector.utils.batch_space(space, num_envs)
        actions.seed(0)
        batch = actions.sample()
        contenders = {}

        for name, mode in (("SyncVectorEnv", "sync"), ("AsyncVectorEnv", "async")):
            envs = stack.enter_context(
                closing(gym.make_vec(env_id, num_envs=num_envs, vectorization_mode=mode))
            )
            contenders[name] = _stepper(envs, batch)

        embedded = stack.enter_context(rg.RemoteVectorEnv(env_id=env_id, num_envs=num_envs))
        contenders["embedded endpoint"] = _stepper(embedded, batch)

        socket = f"unix://{folder}/{num_envs}.sock"
        for name, address in (("our pair, Unix", socket), ("our pair, TCP", "127.0.0.1:0")):
            if quick and address == socket:
                continue
            ours = stack.enter_context(endpoint("ours", env_id, num_envs, address))
            contenders[name] = _stepper(stack.enter_context(rg.RemoteVectorEnv(ours)), batch)

        codec = SpaceCodec(space)
        step = interaction_pb2.JoinRequest(
            step=interaction_pb2.StepRequest(
                action=codec.encode(codec.flatten(batch, num_envs), num_envs),
                episode_ids=[mint_episode_id() for _ in range(num_envs)],
            ),
            request_id="bare",
        ).SerializeToString()
        reset = interaction_pb2.JoinRequest(
            reset=interaction_pb2.ResetRequest(), request_id="bare"
        ).SerializeToString()
        bare_server = stack.enter_context(endpoint("ours", env_id, num_envs))
        bare = BareStream(_grpc_target(bare_server), "/rlmesh.env.v1.EnvService/Join", stack)
        bare.round_trip(reset)
        reply_bytes = len(bare.round_trip(step))
        contenders["bare stream, our server, TCP"] = (
            (lambda: bare.round_trip(step)) if num_envs > 1 else _bare_single(bare, step, reset)
        )
        echo_server = stack.enter_context(endpoint("echo", env_id, reply_bytes))
        echo = BareStream(_grpc_target(echo_server), "/bench.Echo/Join", stack)
        contenders["bare stream, echo, TCP"] = lambda: echo.round_trip(step)

        if HAS_RELEASED:
            import rlmesh.numpy as released

            theirs = stack.enter_context(endpoint("released", env_id, num_envs))
            contenders["our client, released endpoint"] = _stepper(
                stack.enter_context(
                    rg.RemoteVectorEnv(theirs, autoreset_mode="NextStep")
                    if num_envs == 1
                    else rg.RemoteVectorEnv(theirs)
                ),
                batch,
            )
            if num_envs > 1:
                theirs = stack.enter_context(endpoint("released", env_id, num_envs))
                client = released.RemoteVectorEnv(theirs)
                stack.callback(client.close)
                contenders["released pair"] = _stepper(client, batch)
        if num_envs == 1:
            contenders = {k: v for k, v in contenders.items() if "our pair" not in k}
        rounds, seconds = (3, 0.05) if quick else (9, 0.15)
        return side_by_side(contenders, rounds=rounds, seconds=seconds)


def _bare_single(bare: BareStream, step: bytes, reset: bytes):
    # A scalar env does not reset itself, so the bare client does it often enough.
    count = 0

    def call() -> None:
        nonlocal count
        count += 1
        if count % 8 == 0:
            bare.round_trip(reset)
        bare.round_trip(step)

    return call


def _ratios(results: dict[str, dict[str, Timing]]) -> list[tuple[str, ...]]:
    rows = [("ratio", "measured", "to hold")]

    def add(label: str, case: str, over: str, under: str, aim: str) -> None:
        timings = results.get(case, {})
        if over in timings and under in timings:
            rows.append((f"{label}, {case}", f"{timings[over].ratio(timings[under]):.2f}", aim))

    for case in results:
        add(
            "our step ÷ bare stream",
            case,
            "our pair, TCP",
            "bare stream, our server, TCP",
            "<= 1.25",
        )
    for case, aim in (("CartPole x2", 2.5), ("CartPole x8", 2), ("CartPole x64", 1.4)):
        add(
            "our client's speed ÷ released client's, released endpoint",
            case,
            "released pair",
            "our client, released endpoint",
            f">= {aim}",
        )
    for case, aim in (("CartPole x8", 1.2), ("CartPole x64", 4), ("image x64", 2)):
        add(
            "embedded speed ÷ AsyncVectorEnv's",
            case,
            "AsyncVectorEnv",
            "embedded endpoint",
            f">= {aim}",
        )
    for case, aim in (("image x8", "> 1"), ("image x64", ">= 100")):
        add("our pair's speed ÷ released pair's", case, "released pair", "our pair, TCP", aim)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases, fewer rounds")
    parser.add_argument("--only", help="only cases whose name contains this, such as CartPole")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

    cases = {f"CartPole x{n}": (CARTPOLE, n) for n in (1, 2, 8, 64)}
    cases |= {f"image x{n}": (IMAGE, n) for n in (8, 64)}
    results: dict[str, dict[str, Timing]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case, (env_id, num_envs) in cases.items():
            if (args.only and args.only not in case) or (args.quick and case in SLOW_CASES):
                continue
            subfolder = Path(folder, case.replace(" ", "-"))
            subfolder.mkdir()
            results[case] = _one_case(env_id, num_envs, subfolder, args.quick)
            rows = [("contender", "ms per step", "steps/s")]
            for name, timing in sorted(results[case].items(), key=lambda item: item[1].median):
                rows.append((name, f"{timing.median * 1e3:.3f}", f"{timing.per_second:,.0f}"))
            table(case, rows)
    table("side by side", _ratios(results))
    write_json(
        args.json,
        {
            case: {name: t.samples for name, t in timings.items()}
            for case, timings in results.items()
        },
    )


if __name__ == "__main__":
    main()
