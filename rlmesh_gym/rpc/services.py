"""The two services of the wire, as both ends call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.env.v1 import service_pb2 as env_service_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym._proto.model.v1 import service_pb2 as model_service_pb2
from rlmesh_gym.errors import EnvError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.errors import Error


@dataclass(frozen=True, slots=True)
class Service:
    """One of the two."""

    kind: str
    messages: Any  # The module with its unary messages.
    join_request: Any
    parse: Callable[[bytes], Any]  # Reads a JoinResponse; raises protobuf's DecodeError.
    error: Callable[[Any, Any], Error]  # Of an in-band error and the pending that it answers.

    @property
    def name(self) -> str:
        """Full name, as gRPC calls it."""
        return f"rlmesh.{self.kind}.v1.{self.kind.title()}Service"


def _code_name(codes: Any, code: int, prefix: str) -> str:
    try:
        name: str = codes.Name(code)
    except ValueError:  # A code of a later edition.
        return f"UNKNOWN_{code}"
    return name.removeprefix(prefix)


def _env_error(error: env_pb2.EnvError, pending: Any) -> EnvError:
    code = _code_name(env_pb2.EnvErrorCode, error.code, "ENV_ERROR_CODE_")
    lanes = f" (env_indices {list(pending.lanes)})" if pending.lanes else ""
    return EnvError(
        f"{pending.operation}{lanes}: the environment answered {code}: {error.message}",
        endpoint=pending.endpoint,
        operation=pending.operation,
        code=code,
        is_recoverable=error.is_recoverable,
        debug_info=error.debug_info,
        lanes=pending.lanes,
        interrupted_episodes=[episode.episode_id for episode in error.interrupted_episodes],
    )


def _model_error(error: model_pb2.ModelError, pending: Any) -> ModelError:
    code = _code_name(model_pb2.ModelErrorCode, error.code, "MODEL_ERROR_CODE_")
    return ModelError(
        f"{pending.operation}: the model answered {code}: {error.message}",
        endpoint=pending.endpoint,
        operation=pending.operation,
        code=code,
        is_recoverable=error.is_recoverable,
        debug_info=error.debug_info,
        env_id=pending.context.env_id,
        episode_ids=list(pending.context.episode_ids),
    )


ENV = Service(
    kind="env",
    messages=env_service_pb2,
    join_request=env_pb2.JoinRequest,
    parse=env_pb2.JoinResponse.FromString,
    error=_env_error,
)
MODEL = Service(
    kind="model",
    messages=model_service_pb2,
    join_request=model_pb2.JoinRequest,
    parse=model_pb2.JoinResponse.FromString,
    error=_model_error,
)
