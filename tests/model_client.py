"""A small client of model servers for the tests: requests by hand, over gRPC or without it.

Observations and actions are both ``Box((2,), float64)`` unless said otherwise, so that an answer
can hold what was asked.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.codec import SpaceCodec, encode_env_spec
from rlmesh_gym.rpc import EDITION, HistoryRows, ModelSession
from rlmesh_gym.server import ModelHandler, ModelServer, PredictFrames
from rlmesh_gym.server.model.service import ModelService
from rlmesh_gym.server.model.stream import ModelStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.server import ModelObservation

__all__ = [
    "SPACE",
    "TIMEOUT",
    "Client",
    "EchoHandler",
    "connected",
    "encode",
    "exchange",
    "frame",
    "predict_request",
    "request_of",
    "resolve_request",
    "service_of",
    "serving",
]

SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float64)
TIMEOUT = 20.0
_CODEC = SpaceCodec(SPACE)


class EchoHandler(ModelHandler):
    """Answers each row with its own observation; frame ``j`` of a chunk adds ``j``."""

    def __init__(self, chunk: int = 1) -> None:
        self.chunk = chunk
        self.seen: list[ModelObservation] = []
        self.resets: list[tuple[str, tuple[str, ...]]] = []
        self.closes = 0

    def predict(self, observation: ModelObservation) -> Any:
        self.seen.append(observation)
        return observation.observation

    def predict_chunked(self, observation: ModelObservation) -> Any:
        actions = self.predict(observation)
        return PredictFrames(actions, [actions + j for j in range(1, self.chunk)])

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        self.resets.append((env_id, tuple(episode_ids)))

    def on_close(self) -> None:
        self.closes += 1


def encode(values: Sequence[float]) -> SpaceValue:
    """Rows ``(value, -value)`` as a message."""
    rows = np.array([[value, -value] for value in values], np.float64).reshape(-1, 2)
    return _CODEC.encode([rows], len(rows))


def frame(step: int, rows: Mapping[str, float]) -> pb.ObservationHistoryFrame:
    """One history frame: episode id to value."""
    message = pb.ObservationHistoryFrame(observation=encode(list(rows.values())), step=step)
    for episode_id in rows:
        message.episode_info.add(episode_id=episode_id)
    return message


def resolve_request(
    env_id: str = "env",
    *,
    request_id: str = "r",
    horizon: int = 0,
    delivers_history: bool = False,
    session_id: str = "",
    observation_space: spaces.Space[Any] = SPACE,
    action_space: spaces.Space[Any] = SPACE,
) -> pb.JoinRequest:
    """A ResolveAdapter that is right."""
    request = pb.JoinRequest(request_id=request_id)
    resolve = request.resolve_adapter
    resolve.context.env_id = env_id
    resolve.context.session_id = session_id
    resolve.env_spec.CopyFrom(encode_env_spec("Test-v0", observation_space, action_space, {}))
    resolve.selected_workflow_edition = EDITION
    resolve.execution_horizon = horizon
    resolve.delivers_history = delivers_history
    return request


def predict_request(
    rows: Mapping[str, float],
    env_id: str = "env",
    *,
    request_id: str = "p",
    step: int | None = None,
    history: Sequence[pb.ObservationHistoryFrame] = (),
    session_id: str = "",
) -> pb.JoinRequest:
    """A Predict: episode id to value."""
    request = pb.JoinRequest(request_id=request_id)
    predict = request.predict
    predict.context.env_id = env_id
    predict.context.session_id = session_id
    predict.context.request_id = request_id
    predict.observation.CopyFrom(encode(list(rows.values())))
    for index, episode_id in enumerate(rows):
        predict.episode_info.add(episode_id=episode_id, seed=index)
    predict.history.extend(history)
    if step is not None:
        predict.step = step
    return request


def request_of(kind: str, env_id: str = "env", *, request_id: str = "x", **fields: Any) -> Any:
    """A request of another kind."""
    request = pb.JoinRequest(request_id=request_id)
    part = getattr(request, kind)
    part.SetInParent()
    if hasattr(part, "context"):
        part.context.env_id = env_id
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
    return request


@contextlib.contextmanager
def service_of(handler: ModelHandler, *, max_adapters: int = 1024) -> Iterator[ModelService]:
    """A model service without gRPC."""
    service = ModelService(handler, max_adapters=max_adapters)
    try:
        yield service
    finally:
        service.drain()
        service.close(handler.on_close, TIMEOUT)


def exchange(service: ModelService, *requests: pb.JoinRequest) -> list[pb.JoinResponse]:
    """Play requests on a stream of their own and return the answers, in order of the requests."""
    answers = list(ModelStream(service, iter(requests)).responses())
    order = [request.request_id for request in requests]
    return sorted(answers, key=lambda answer: order.index(answer.request_id))


@contextlib.contextmanager
def serving(handler: Any, socket_dir: Path, **options: Any) -> Iterator[ModelServer]:
    """A model server on a Unix socket."""
    with ModelServer(handler, f"unix://{socket_dir}/model.sock", **options) as server:
        yield server


@contextlib.contextmanager
def connected(server: ModelServer) -> Iterator[Client]:
    """A client of a server."""
    with ModelSession.open(server.address) as session:
        yield Client(session)


class Client:
    """A :class:`ModelSession` that speaks in episode ids and numbers."""

    def __init__(self, session: ModelSession) -> None:
        self.session = session

    def resolve(
        self, env_id: str = "env", *, horizon: int = 1, delivers_history: bool = False
    ) -> pb.ResolveAdapterResponse:
        """Resolve with the default spaces."""
        spec = encode_env_spec("Test-v0", SPACE, SPACE, {"fps": 30})
        return self.session.resolve_adapter(
            env_id, spec, execution_horizon=horizon, delivers_history=delivers_history
        ).result(TIMEOUT)

    def begin(
        self,
        rows: Mapping[str, float],
        env_id: str = "env",
        *,
        step: int | None = None,
        history: Sequence[pb.ObservationHistoryFrame] = (),
    ) -> Any:
        """Send a predict, without waiting."""
        episodes = [(episode_id, None) for episode_id in rows]
        replayed = [
            HistoryRows(
                one.step,
                one.observation,
                [(row.episode_id, None) for row in one.episode_info],
            )
            for one in history
        ]
        return self.session.predict(
            env_id, encode(list(rows.values())), episodes, history=replayed, step=step
        )

    def predict(self, rows: Mapping[str, float], env_id: str = "env", **options: Any) -> Any:
        """Predict; returns the first number of each row, frame by frame."""
        return self.actions(self.begin(rows, env_id, **options), len(rows))

    @staticmethod
    def actions(pending: Any, num_rows: int = 1) -> list[list[float]]:
        """Wait for an answer and decode it."""
        frames = pending.result(TIMEOUT).actions
        return [_CODEC.decode(value, num_rows)[0][:, 0].tolist() for value in frames]
