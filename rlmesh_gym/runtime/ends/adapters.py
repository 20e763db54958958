"""Whatever users have for an environment or a model, as what the run loop works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import VectorEnv

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import ModelHandler
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.runtime.ends.local_env import LocalRuntimeEnv
from rlmesh_gym.runtime.ends.local_model import LocalRuntimeModel
from rlmesh_gym.runtime.ends.remote_env import RemoteRuntimeEnv
from rlmesh_gym.runtime.ends.remote_model import RemoteRuntimeModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlmesh_gym.rpc import TLSConfig
    from rlmesh_gym.runtime.ends.protocols import RuntimeEnv, RuntimeModel

__all__ = ["as_runtime_env", "as_runtime_envs", "as_runtime_model"]


def as_runtime_envs(
    env: Any,
    *,
    token: str | None = None,
    tls: bool | Mapping[str, Any] | TLSConfig | None = None,
) -> tuple[RuntimeEnv, ...]:
    """Return the endpoints of a run for one env, or for a list or tuple of them.

    Raises:
        ConfigurationError: One of them is nothing that a run takes, or is there twice.
    """
    several = env if isinstance(env, (list, tuple)) else [env]
    objects = [one for one in several if not isinstance(one, str)]
    if len({id(one) for one in objects}) < len(objects):
        message = "the same env object stands in the list twice; its lanes can be played only once"
        raise ConfigurationError(message)
    return tuple(as_runtime_env(one, token=token, tls=tls) for one in several)


def as_runtime_env(
    env: Any,
    *,
    token: str | None = None,
    tls: bool | Mapping[str, Any] | TLSConfig | None = None,
) -> RuntimeEnv:
    """Return what the driver runs, for any env that :func:`run` takes.

    Raises:
        ConfigurationError: It is none of them.
    """
    if isinstance(env, str):
        return RemoteRuntimeEnv(env, token=token, tls=tls)
    if isinstance(env, EnvSession):
        return RemoteRuntimeEnv(session=env)
    if isinstance(env, (VectorEnv, gymnasium.Env)):
        return LocalRuntimeEnv(env)
    if _has_methods(env, "connect", "reset", "step", "close"):
        end: RuntimeEnv = env
        return end
    message = (
        "env must be an address, several addresses, a VectorEnv or an Env, got "
        f"{type(env).__name__}"
    )
    raise ConfigurationError(message)


def as_runtime_model(
    policy: Any,
    *,
    token: str | None = None,
    tls: bool | Mapping[str, Any] | TLSConfig | None = None,
) -> RuntimeModel:
    """Return what the driver runs, for any policy that :func:`run` takes.

    Raises:
        ConfigurationError: It is none of them.
    """
    if isinstance(policy, str):
        return RemoteRuntimeModel(policy, token=token, tls=tls)
    if isinstance(policy, RemotePolicy):
        return RemoteRuntimeModel(session=policy.session)
    if isinstance(policy, ModelSession):
        return RemoteRuntimeModel(session=policy)
    if _has_methods(policy, "connect", "resolve", "predict", "close"):
        end: RuntimeModel = policy
        return end
    if isinstance(policy, ModelHandler) or callable(policy):
        return LocalRuntimeModel(policy)
    message = (
        "policy must be an address, a RemotePolicy, a ModelHandler or a function, got "
        f"{type(policy).__name__}"
    )
    raise ConfigurationError(message)


def _has_methods(candidate: Any, *names: str) -> bool:
    # On the type: an end that is not connected yet has properties that only raise.
    return all(callable(getattr(type(candidate), name, None)) for name in names)
