"""Endpoints with scripted sessions, for faults that a real server does not commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.env.v1 import service_pb2 as env_service_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym._proto.model.v1 import service_pb2 as model_service_pb2
from rlmesh_gym.codec import EnvContract, SpaceCodec, encode_contract
from rlmesh_gym.rpc import (
    OBSERVATION_HISTORY,
    EnvServiceCallbacks,
    GrpcHost,
    JoinPeer,
    ModelServiceCallbacks,
    answer_handshake,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue

__all__ = [
    "ACTION",
    "CONTRACT",
    "OBSERVATION",
    "env_answer",
    "env_handshake",
    "env_host",
    "env_join",
    "env_shutdown",
    "model_host",
    "model_join",
]

CONTRACT = EnvContract(
    env_id="Scripted-v0",
    single_observation_space=spaces.Box(-1, 1, (3,), np.float32),
    single_action_space=spaces.Discrete(2),
    metadata={},
    num_envs=2,
    render_mode=None,
    autoreset_mode=AutoresetMode.DISABLED,
)


def _zeros(space: Any, rows: int) -> SpaceValue:
    codec = SpaceCodec(space)
    return codec.encode(codec.empty(rows), rows)


ACTION = _zeros(CONTRACT.single_action_space, 2)
OBSERVATION = _zeros(CONTRACT.single_observation_space, 2)


def env_answer(request: env_pb2.JoinRequest, reward: float = 0.0) -> env_pb2.JoinResponse:
    """Return the right answer to ``request``; the reward tells answers apart."""
    kind = request.WhichOneof("kind")
    response = env_pb2.JoinResponse(request_id=request.request_id)
    if kind == "reset":
        response.reset.observation.CopyFrom(OBSERVATION)
    elif kind == "step":
        response.step.observation.CopyFrom(OBSERVATION)
        response.step.rewards.extend([reward, reward])
        response.step.terminated_mask = response.step.truncated_mask = b"\0\0"
    elif kind is not None:
        getattr(response, kind).SetInParent()
    return response


def env_join(requests: Iterator[env_pb2.JoinRequest], peer: JoinPeer) -> Iterator[Any]:
    """Serve a session as it should be; rewards count the steps."""
    steps = 0
    for request in requests:
        steps += request.HasField("step")
        yield env_answer(request, float(steps))
        if request.HasField("close"):
            return


def env_handshake(request: env_service_pb2.HandshakeRequest) -> env_service_pb2.HandshakeResponse:
    """Answer as a lane endpoint."""
    return env_service_pb2.HandshakeResponse(
        base=answer_handshake(request.base, "env", ["subset_step"]),
        env_contract=encode_contract(CONTRACT),
    )


def env_shutdown(_request: env_service_pb2.ShutdownRequest) -> env_service_pb2.ShutdownResponse:
    """Refuse."""
    response = env_service_pb2.ShutdownResponse()
    response.base.message = "not today"
    return response


@contextlib.contextmanager
def env_host(
    join: Any = env_join,
    *,
    address: str | None = None,
    handshake: Any = env_handshake,
    shutdown: Any = env_shutdown,
    **options: Any,
) -> Iterator[str]:
    """Serve the callbacks and hand out the address."""
    host = GrpcHost(EnvServiceCallbacks(handshake, join, shutdown), address, **options)
    try:
        yield host.start()
    finally:
        host.stop()


def _model_handshake(
    request: model_service_pb2.HandshakeRequest,
) -> model_service_pb2.HandshakeResponse:
    return model_service_pb2.HandshakeResponse(
        base=answer_handshake(request.base, "model", [OBSERVATION_HISTORY])
    )


def _model_shutdown(
    _request: model_service_pb2.ShutdownRequest,
) -> model_service_pb2.ShutdownResponse:
    return model_service_pb2.ShutdownResponse()


def model_join(requests: Iterator[model_pb2.JoinRequest], peer: JoinPeer) -> Iterator[Any]:
    """Answer every request; a predict with the observation as its only action."""
    for request in requests:
        kind = request.WhichOneof("kind")
        response = model_pb2.JoinResponse(request_id=request.request_id)
        if kind == "predict":
            response.predict.context.CopyFrom(request.predict.context)
            response.predict.actions.append(request.predict.observation)
        elif kind == "grouped_predict":
            response.grouped_predict.SetInParent()
            for group in request.grouped_predict.groups:
                result = response.grouped_predict.results.add()
                result.response.context.CopyFrom(group.context)
        elif kind is not None:
            getattr(response, kind).SetInParent()
        yield response


@contextlib.contextmanager
def model_host(
    join: Any = model_join, *, address: str | None = None, **options: Any
) -> Iterator[str]:
    """Serve the callbacks and hand out the address."""
    host = GrpcHost(
        ModelServiceCallbacks(_model_handshake, join, _model_shutdown), address, **options
    )
    try:
        yield host.start()
    finally:
        host.stop()
