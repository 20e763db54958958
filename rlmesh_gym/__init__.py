"""Remote environments and served policies as ordinary Gymnasium objects.

This module is the public API and holds no logic. Names are resolved on first use, so that
``import rlmesh_gym`` registers the environment ids without paying for gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlmesh_gym import errors
from rlmesh_gym._version import __version__
from rlmesh_gym.registration import register

if TYPE_CHECKING:
    from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
    from rlmesh_gym.lanes import EpisodeRecord, LanePhase
    from rlmesh_gym.policy import RemotePolicy
    from rlmesh_gym.rpc import Timeouts, TLSConfig
    from rlmesh_gym.runtime import (
        RuntimeDriver,
        RuntimeHooks,
        RuntimeLimits,
        RuntimeReport,
        RuntimeSessionSpec,
        run,
    )
    from rlmesh_gym.server import (
        EnvServer,
        HeldState,
        HistoryNeeds,
        ModelHandler,
        ModelObservation,
        ModelRouteSetup,
        ModelServer,
        PredictFrames,
        ResolveOptions,
        RouteNeeds,
    )

register()

_HOME = {
    "EnvServer": "server",
    "EpisodeRecord": "lanes",
    "HeldState": "server",
    "HistoryNeeds": "server",
    "LanePhase": "lanes",
    "ModelHandler": "server",
    "ModelObservation": "server",
    "ModelRouteSetup": "server",
    "ModelServer": "server",
    "PredictFrames": "server",
    "RemoteEnv": "env",
    "RemotePolicy": "policy",
    "RemoteVectorEnv": "env",
    "ResolveOptions": "server",
    "RouteNeeds": "server",
    "RuntimeDriver": "runtime",
    "RuntimeHooks": "runtime",
    "RuntimeLimits": "runtime",
    "RuntimeReport": "runtime",
    "RuntimeSessionSpec": "runtime",
    "TLSConfig": "rpc",
    "Timeouts": "rpc",
    "run": "runtime",
}

__all__ = [
    "EnvServer",
    "EpisodeRecord",
    "HeldState",
    "HistoryNeeds",
    "LanePhase",
    "ModelHandler",
    "ModelObservation",
    "ModelRouteSetup",
    "ModelServer",
    "PredictFrames",
    "RemoteEnv",
    "RemotePolicy",
    "RemoteVectorEnv",
    "ResolveOptions",
    "RouteNeeds",
    "RuntimeDriver",
    "RuntimeHooks",
    "RuntimeLimits",
    "RuntimeReport",
    "RuntimeSessionSpec",
    "TLSConfig",
    "Timeouts",
    "__version__",
    "errors",
    "run",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"rlmesh_gym.{home}"), name)
    globals()[name] = value  # The next look-up is a plain attribute.
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
