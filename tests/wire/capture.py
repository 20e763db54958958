"""Record one message of each kind that the released package sends, into ``captures/``.

Usage, from the root of the repository: ``python -m tests.wire.capture``.

Its endpoints and clients run as processes of their own (``tests.peers``) with a proxy between them.
Requests are recorded only where its own clients sent them; some responses answer requests that
those clients never send, which are made here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.env.v1 import service_pb2 as env_service_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym._proto.model.v1 import service_pb2 as model_service_pb2
from tests import peers
from tests.wire.recorded_env import ALONE
from tests.wire.recorder import Recorder, record

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPTURES = Path(__file__).with_name("captures")

ACTION = {"gripper": 1, "move": [0.5, -1.0]}
LANES_ACTION = {"gripper": [0, 1], "move": [[0.0, 1.0], [0.5, -1.0]]}
RESET_OPTIONS = {"level": 3, "name": "x", "nested": {"list": [1, None]}}
_JOIN: dict[str, Any] = {"env": env_pb2, "model": model_pb2}
_SERVICE: dict[str, Any] = {"env": env_service_pb2, "model": model_service_pb2}
_PACKAGE = {"env": "rlmesh.env.v1.EnvService", "model": "rlmesh.model.v1.ModelService"}


class Captures:
    """Messages by name, such as ``env.JoinRequest.step``."""

    def __init__(self) -> None:
        self.messages: dict[str, bytes] = {}

    def take(self, service: str, seen: Recorder, kinds: str, variant: str = "") -> None:
        """Take over the last message of each kind that a proxy recorded.

        Args:
            service: ``"env"`` or ``"model"``.
            seen: The proxy's record.
            kinds: Words such as ``"HandshakeRequest"`` and ``"JoinResponse.step"``.
            variant: Last part of the name, where one message of the kind is not enough.
        """
        found = {}
        for suffix, log in (("Request", seen.requests), ("Response", seen.responses)):
            for method, data in log:
                kind = f"{method}{suffix}"
                if method == "Join":
                    message = getattr(_JOIN[service], kind).FromString(data)
                    kind += f".{message.WhichOneof('kind')}"
                found[kind] = data
        for kind in kinds.split():
            name = f"{service}.{kind}{'.' if variant else ''}{variant}"
            self.messages[name] = found[kind]

    def write(self) -> None:
        """Write one file for each message."""
        CAPTURES.mkdir(exist_ok=True)
        for old in CAPTURES.glob("*.bin"):
            old.unlink()
        for name, data in sorted(self.messages.items()):
            CAPTURES.joinpath(f"{name}.bin").write_bytes(data)
            print(f"{len(data):6d} {name}")


def handshake(service: str, address: str) -> None:
    """Ask for a handshake of our own."""
    request = _SERVICE[service].HandshakeRequest()
    request.base.protocol_generation = "rlmesh-wire-v1"
    with grpc.insecure_channel(address) as channel:
        ask: Any = channel.unary_unary(f"/{_PACKAGE[service]}/Handshake")
        ask(request.SerializeToString())


def shut_down(service: str, address: str) -> None:
    """Ask the server to end."""
    request = _SERVICE[service].ShutdownRequest()
    request.base.reason = "done"
    with grpc.insecure_channel(address) as channel:
        ask: Any = channel.unary_unary(f"/{_PACKAGE[service]}/Shutdown")
        ask(request.SerializeToString())


def send(service: str, address: str, requests: Sequence[Any]) -> None:
    """Open a Join of our own, send the requests, and wait until the server has ended it."""

    with grpc.insecure_channel(address) as channel:
        join: Any = channel.stream_stream(f"/{_PACKAGE[service]}/Join")
        for _ in join(request.SerializeToString() for request in requests):
            pass


def env_sessions(captures: Captures) -> None:
    """The plain env clients, and the package's run loop."""
    env = "tests.wire.recorded_env:RecordedEnv"
    reset: Sequence[Any] = ("reset", 7, RESET_OPTIONS)
    step: Sequence[Any] = ("step", ACTION)
    with peers.env_endpoint("single", env) as peer, record(peer.address) as seen:
        peers.drive_env(seen.address, [reset, step, ("render",), ("shutdown", "no more")])
        captures.take("env", seen, "HandshakeRequest HandshakeResponse")
        captures.take("env", seen, "JoinRequest.configure JoinResponse.configure")
        captures.take("env", seen, "JoinRequest.reset JoinResponse.reset")
        captures.take("env", seen, "JoinRequest.step JoinResponse.step")
        captures.take("env", seen, "JoinRequest.render JoinResponse.render")
        captures.take("env", seen, "ShutdownRequest ShutdownResponse")
    with peers.env_endpoint("single", env) as peer, record(peer.address) as seen:
        peers.drive_env(seen.address, [reset, step, step])
        captures.take("env", seen, "JoinResponse.step", "ended")
        captures.take("env", seen, "JoinRequest.close JoinResponse.close")
    reset, step = ("reset", [7, 8], None), ("step", LANES_ACTION)
    kinds: tuple[peers.EnvKind, ...] = ("lanes", "next_step")
    for kind in kinds:
        with (
            peers.env_endpoint(kind, env, num_envs=2) as peer,
            record(peer.address) as seen,
        ):
            peers.drive_env(
                seen.address,
                [reset, step, step],
                client="RemoteVectorEnv",
                request_timeout_seconds=30.0,
            )
            captures.take("env", seen, "HandshakeResponse JoinResponse.reset", kind)
            captures.take("env", seen, "JoinRequest.reset JoinRequest.step", kind)
            captures.take("env", seen, "JoinResponse.step", kind)
    with (
        peers.env_endpoint("lanes", "CartPole-v1", num_envs=2) as peer,
        record(peer.address) as seen,
    ):
        peers.run_model(seen.address, "predict", episodes=2, seeds=[1, 2], max_episode_steps=3)
        captures.take("env", seen, "JoinRequest.reset JoinRequest.step", "one_lane")


def env_catalogue(captures: Captures) -> None:
    """All spaces, and a value of each."""
    reset = env_pb2.JoinRequest(request_id="1", reset=env_pb2.ResetRequest())
    for name in ("", *ALONE):
        factory = "tests.wire.recorded_env:CatalogueEnv"
        with (
            peers.env_endpoint("single", factory, kwargs={"name": name}) as peer,
            record(peer.address) as seen,
        ):
            # Not with the package's client, which refuses some of what its server offers.
            handshake("env", seen.address)
            send("env", seen.address, [reset])
            kinds = "HandshakeResponse JoinResponse.reset"
            captures.take("env", seen, kinds, name or "catalogue")


def env_errors(captures: Captures) -> None:
    """Errors in their two forms, and a close with an episode still running."""
    env = "tests.wire.recorded_env:RecordedEnv"
    with (
        peers.env_endpoint("single", env, kwargs={"fails": True}) as peer,
        record(peer.address) as seen,
    ):
        peers.drive_env(seen.address, [("reset", None, None), ("step", ACTION)])
        captures.take("env", seen, "JoinResponse.error", "internal")
    reset = env_pb2.JoinRequest(request_id="1", reset=env_pb2.ResetRequest(episode_ids=["e"]))
    bad = env_pb2.JoinRequest(request_id="2", step=env_pb2.StepRequest())
    close = env_pb2.JoinRequest(request_id="3", close=env_pb2.CloseEnvsRequest())
    with peers.env_endpoint("single", env) as peer, record(peer.address) as seen:
        send("env", seen.address, [reset, bad, close])
        captures.take("env", seen, "JoinResponse.error", "recoverable")
        captures.take("env", seen, "JoinResponse.close", "running")
    with (
        peers.env_endpoint("single", env, allow_shutdown=True) as peer,
        record(peer.address) as seen,
    ):
        peers.drive_env(seen.address, [("shutdown", "done")])
        captures.take("env", seen, "ShutdownResponse", "accepted")


def model_sessions(captures: Captures) -> None:
    """The package's model session, plain, with chunks, and with stacked frames."""
    with peers.env_endpoint("single", "CartPole-v1") as env:
        with peers.model_endpoint("predict") as peer, record(peer.address) as seen:
            peers.model_episodes(env.address, seen.address, seeds=[1, 2], max_steps=2)
            captures.take("model", seen, "HandshakeRequest HandshakeResponse")
            for kind in ("resolve_adapter", "predict", "reset_adapter", "release_adapter"):
                captures.take("model", seen, f"JoinRequest.{kind} JoinResponse.{kind}")
        with peers.model_endpoint("native_chunk") as peer, record(peer.address) as seen:
            peers.model_episodes(
                env.address, seen.address, seeds=[1], max_steps=2, execution_horizon=2
            )
            captures.take("model", seen, "JoinRequest.resolve_adapter", "chunk")
            captures.take("model", seen, "JoinResponse.resolve_adapter", "chunk")
            captures.take("model", seen, "JoinResponse.predict", "chunk")
    with (
        peers.env_endpoint("single", "tests.tagged_env:TaggedEnv") as env,
        peers.model_endpoint("stacked") as peer,
        record(peer.address) as seen,
    ):
        peers.model_episodes(env.address, seen.address, seeds=[1], max_steps=4, execution_horizon=2)
        captures.take("model", seen, "JoinRequest.predict JoinResponse.resolve_adapter", "stacked")


def model_answers(captures: Captures) -> None:
    """Answers to requests that only we send."""

    def captured(kind: str) -> model_pb2.JoinRequest:
        return model_pb2.JoinRequest.FromString(captures.messages[f"model.JoinRequest.{kind}"])

    resolve, predict = captured("resolve_adapter"), captured("predict")
    unresolved = model_pb2.PredictRequest()
    unresolved.CopyFrom(predict.predict)
    unresolved.context.env_id = "unknown"
    groups = model_pb2.GroupedPredictRequest(groups=[predict.predict, unresolved])
    grouped = model_pb2.JoinRequest(request_id="g", grouped_predict=groups)
    empty = model_pb2.JoinRequest(request_id="e")
    close = model_pb2.JoinRequest(request_id="c", close=model_pb2.CloseParticipantRequest())
    with peers.model_endpoint("predict") as peer, record(peer.address) as seen:
        send("model", seen.address, [resolve, grouped, empty, close])
        kinds = "JoinResponse.grouped_predict JoinResponse.error JoinResponse.close"
        captures.take("model", seen, kinds)
        shut_down("model", seen.address)
        captures.take("model", seen, "ShutdownResponse")


def main() -> None:
    """Record everything anew."""
    captures = Captures()
    for scenario in (env_sessions, env_catalogue, env_errors, model_sessions, model_answers):
        scenario(captures)
    captures.write()


if __name__ == "__main__":
    main()
