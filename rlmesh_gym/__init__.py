"""Remote environments and served policies as ordinary Gymnasium objects.

This module is the public API and holds no logic. Names are resolved on first use, so that
``import rlmesh_gym`` registers the environment ids without paying for gRPC.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from rlmesh_gym import errors
from rlmesh_gym._version import __version__
from rlmesh_gym.registration import register

# gRPC logs on its own what our errors say better; it reads this once, at its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

if TYPE_CHECKING:
    from rlmesh_gym.env import ConformanceWarning, RemoteEnv, RemoteVectorEnv
    from rlmesh_gym.episodes import EpisodeLog, EpisodeRecord, EpisodeSummary
    from rlmesh_gym.lanes import LanePhase
    from rlmesh_gym.policy import RemotePolicy
    from rlmesh_gym.rpc import Timeouts, TLSConfig
    from rlmesh_gym.runtime import (
        ActionReceived,
        ActionTransform,
        EnvConnected,
        EpisodeCompleted,
        EpisodeStarted,
        LogEvent,
        ModelConnected,
        ObservationEmitted,
        ObservationTransform,
        RuntimeDriver,
        RuntimeEvent,
        RuntimeHooks,
        RuntimeLimits,
        RuntimeReport,
        RuntimeSessionSpec,
        SessionEnded,
        SessionFailed,
        SessionStarted,
        StepCompleted,
        run,
    )
    from rlmesh_gym.server import (
        EnvServer,
        HeldState,
        HistoryFrame,
        HistoryNeeds,
        ModelHandler,
        ModelObservation,
        ModelRoute,
        ModelRouteSetup,
        ModelServer,
        PredictFrames,
        ResolveOptions,
        RouteNeeds,
    )

register()

_PUBLIC = {
    "env": "ConformanceWarning RemoteEnv RemoteVectorEnv",
    "episodes": "EpisodeLog EpisodeRecord EpisodeSummary",
    "lanes": "LanePhase",
    "policy": "RemotePolicy",
    "rpc": "TLSConfig Timeouts",
    "runtime": (
        "ActionReceived ActionTransform EnvConnected EpisodeCompleted EpisodeStarted "
        "LogEvent ModelConnected ObservationEmitted ObservationTransform RuntimeEvent "
        "SessionEnded SessionFailed SessionStarted StepCompleted RuntimeDriver "
        "RuntimeHooks RuntimeLimits RuntimeReport RuntimeSessionSpec run"
    ),
    "server": (
        "EnvServer HeldState HistoryFrame HistoryNeeds ModelHandler ModelObservation "
        "ModelRoute ModelRouteSetup ModelServer PredictFrames ResolveOptions RouteNeeds"
    ),
}
_HOME = {name: home for home, names in _PUBLIC.items() for name in names.split()}
# Modules that ``rg.NAME`` finds without an import line of its own.
_MODULES = frozenset(
    (
        *("cli", "codec", "env", "episodes", "integrations", "lanes", "model"),
        *("policy", "rpc", "runtime", "server", "testing"),
    )
)

__all__ = [
    "ActionReceived",
    "ActionTransform",
    "ConformanceWarning",
    "EnvConnected",
    "EnvServer",
    "EpisodeCompleted",
    "EpisodeLog",
    "EpisodeRecord",
    "EpisodeStarted",
    "EpisodeSummary",
    "HeldState",
    "HistoryFrame",
    "HistoryNeeds",
    "LanePhase",
    "LogEvent",
    "ModelConnected",
    "ModelHandler",
    "ModelObservation",
    "ModelRoute",
    "ModelRouteSetup",
    "ModelServer",
    "ObservationEmitted",
    "ObservationTransform",
    "PredictFrames",
    "RemoteEnv",
    "RemotePolicy",
    "RemoteVectorEnv",
    "ResolveOptions",
    "RouteNeeds",
    "RuntimeDriver",
    "RuntimeEvent",
    "RuntimeHooks",
    "RuntimeLimits",
    "RuntimeReport",
    "RuntimeSessionSpec",
    "SessionEnded",
    "SessionFailed",
    "SessionStarted",
    "StepCompleted",
    "TLSConfig",
    "Timeouts",
    "__version__",
    "errors",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rlmesh_gym.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlmesh_gym.{home}"), name)
    globals()[name] = value  # The next look-up is a plain attribute.
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
