"""Spoilt bytes, either way and over each transport: typed errors, and the next one works."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlmesh_gym as rg
from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import Error
from rlmesh_gym.rpc import (
    EnvServiceCallbacks,
    EnvSession,
    GrpcHost,
    ModelServiceCallbacks,
    ModelSession,
)
from rlmesh_gym.rpc.client.link import LinkCall
from rlmesh_gym.server import EnvServer, ModelServer
from tests.fake_envs import AllSpacesEnv, InfoVarietyEnv
from tests.lengths import shortened
from tests.model_client import predict_request, resolve_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BOX = spaces.Box(-1, 1, (2,), np.float32)
TRANSPORTS = ["tcp", "unix", "link"]
EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck))
REQUESTS = settings(EXAMPLES, max_examples=shortened(400))
ANSWERS = settings(EXAMPLES, max_examples=shortened(120))
PATIENCE = 0.2
"""Seconds to wait for answers that may not be known as such any more."""
WAIT = 30.0
Change = tuple[str, float, int]
changes: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "repeat", "drop"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=4,
)


def spoil(data: bytes, how: list[Change]) -> bytes:
    """Change some bytes."""
    for kind, where, number in how:
        at = int(where * len(data))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ number]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + bytes([number]) + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[at : at + number] * 2 + data[at + number :]
        elif kind == "drop":
            data = data[:at] + data[at + number :]
    return data


class Spoiler:
    """Passes the answers of a server on, those of one kind spoilt."""

    def __init__(self) -> None:
        self.how: list[Change] = []
        self.victim = "reset"

    def join(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what serves a session."""

        def join(requests: Any, peer: Any) -> Iterator[bytes]:
            for answer in honest(requests, peer):
                is_raw = isinstance(answer, bytes)
                message = env_pb2.JoinResponse.FromString(answer) if is_raw else answer
                data = answer if is_raw else message.SerializeToString()
                is_victim = message.WhichOneof("kind") == self.victim
                yield spoil(data, self.how) if is_victim else data

        return join


@contextmanager
def spoilt(server: Any, spoiler: Spoiler, transport: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Serve what ``server`` serves, through ``spoiler``; gives how to open a session."""
    kind = EnvServiceCallbacks if isinstance(server, EnvServer) else ModelServiceCallbacks
    server._prepare()
    callbacks = kind(server._handshake, spoiler.join(server._join), server._shutdown)
    host = GrpcHost(callbacks, None if transport == "tcp" else f"unix://{folder}/host")
    link = f"{folder}/link" if transport == "link" else None
    try:
        address = host.start()
        if link is not None:
            host.open_link(link)
        yield {"address": address} | ({} if link is None else {"link": link})
    finally:
        host.stop()
        server.stop()


@pytest.fixture(scope="module", params=TRANSPORTS)
def spoilt_env(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Spoiler, dict[str, Any]]]:
    spoiler = Spoiler()
    server = EnvServer(lambda: [AllSpacesEnv(composite_action=True) for _ in range(2)])
    folder = tmp_path_factory.mktemp("s")
    with spoilt(server, spoiler, request.param, folder) as how:
        yield spoiler, how


@ANSWERS
@given(how=changes, victim=st.sampled_from(["reset", "step", "close", "configure"]))
def test_spoilt_answers_of_an_env(
    spoilt_env: tuple[Spoiler, dict[str, Any]], how: list[Change], victim: str
) -> None:
    spoiler, options = spoilt_env
    for spoiler.how, spoiler.victim in ((how, victim), ([], "")):
        session = EnvSession.open(**options, timeouts={"close": PATIENCE})
        wait = PATIENCE if spoiler.how else WAIT
        try:
            codec = SpaceCodec(session.contract.single_observation_space)
            actions = SpaceCodec(session.contract.single_action_space)
            action = session.contract.single_action_space.sample()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                codec.decode(session.reset().result(wait).observation, 2)
                value = actions.encode(actions.flatten_rows([action] * 2), 2)
                codec.decode(session.step(value).result(wait).observation, 2)
        except Error:
            assert spoiler.how
        finally:
            session.close()


@pytest.fixture(scope="module", params=TRANSPORTS[:2])
def spoilt_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Spoiler, dict[str, Any]]]:
    spoiler = Spoiler()
    server = ModelServer(lambda observation: np.zeros((len(observation), 2), np.float32))
    folder = tmp_path_factory.mktemp("m")
    with spoilt(server, spoiler, request.param, folder) as how:
        yield spoiler, how


@ANSWERS
@given(how=changes, victim=st.sampled_from(["resolve_adapter", "predict", "release_adapter"]))
def test_spoilt_answers_of_a_model(
    spoilt_model: tuple[Spoiler, dict[str, Any]], how: list[Change], victim: str
) -> None:
    spoiler, options = spoilt_model
    for spoiler.how, spoiler.victim in ((how, victim), ([], "")):
        wait = PATIENCE if spoiler.how else WAIT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with rg.RemotePolicy(
                    options["address"],
                    single_observation_space=BOX,
                    single_action_space=BOX,
                    num_envs=3,
                    timeouts={"predict": wait, "resolve": wait, "close": PATIENCE},
                ) as policy:
                    starts = np.ones(3, np.bool_)
                    actions = policy.predict(np.zeros((3, 2), np.float32), episode_start=starts)[0]
                    assert np.asarray(actions).shape == (3, 2)
            except Error:
                assert spoiler.how


def env_requests() -> list[env_pb2.JoinRequest]:
    """Return requests as a client sends them."""
    env = InfoVarietyEnv()
    codec = SpaceCodec(env.action_space)
    value = codec.encode(codec.flatten_rows([env.action_space.sample()] * 2), 2)
    return [
        env_pb2.JoinRequest(request_id="r", reset=env_pb2.ResetRequest(seeds=[1, 2])),
        env_pb2.JoinRequest(request_id="s", step=env_pb2.StepRequest(action=value)),
        env_pb2.JoinRequest(
            request_id="l", step=env_pb2.StepRequest(action=value, env_indices=[1, 0])
        ),
    ]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("r")
    with (
        EnvServer(lambda: [InfoVarietyEnv(), InfoVarietyEnv()], f"unix://{folder}/u") as unix,
        EnvServer(lambda: [InfoVarietyEnv(), InfoVarietyEnv()]) as tcp,
        ModelServer(lambda observation: np.zeros(len(observation))) as model,
    ):
        unix.open_link(f"{folder}/link")
        yield {
            "unix": unix.address,
            "tcp": tcp.address,
            "link": f"{folder}/link",
            "model": model.address,
        }


GOOD_ENDS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}


def end_of(address: str, service: str, requests: list[bytes]) -> Any:
    """Send bytes as requests; return how the call ended."""
    target = address.removeprefix("tcp://").replace("unix://", "unix:")
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        join: Any = channel.stream_stream(service)
        call = join(iter(requests))
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        return call.code()


def end_of_link(path: str, requests: list[bytes]) -> Any:
    """Do the same over a link."""
    call = LinkCall(path, None, lambda data: None)
    for data in requests:
        call.put(data)
    call.put(None)
    for _ in call:
        pass
    return call.code()


@REQUESTS
@given(how=changes, victim=st.integers(0, 2), transport=st.sampled_from(TRANSPORTS))
def test_spoilt_requests_to_an_env(
    servers: dict[str, str], how: list[Change], victim: int, transport: str
) -> None:
    requests = [one.SerializeToString() for one in env_requests()]
    requests[victim] = spoil(requests[victim], how)
    if transport == "link":
        end = end_of_link(servers["link"], requests)
    else:
        end = end_of(servers[transport], "/rlmesh.env.v1.EnvService/Join", requests)
    assert end in GOOD_ENDS
    address = servers["tcp" if transport == "tcp" else "unix"]
    with EnvSession.open(address) as session:
        assert session.reset().result(20).HasField("observation")


@REQUESTS
@given(how=changes, victim=st.integers(0, 1))
def test_spoilt_requests_to_a_model(
    servers: dict[str, str], how: list[Change], victim: int
) -> None:
    requests = [one.SerializeToString() for one in (resolve_request("e"), PREDICT)]
    requests[victim] = spoil(requests[victim], how)
    end = end_of(servers["model"], "/rlmesh.model.v1.ModelService/Join", requests)
    assert end in GOOD_ENDS
    with ModelSession.open(servers["model"]) as session:
        assert session.ping() > 0


PREDICT: model_pb2.JoinRequest = predict_request({"a": 1}, "e")
