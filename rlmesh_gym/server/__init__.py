"""The serving side: environments and models behind an address."""

from __future__ import annotations

from rlmesh_gym.server.env_server import EnvServer
from rlmesh_gym.server.handler import (
    HeldState,
    HistoryFrame,
    HistoryNeeds,
    ModelHandler,
    ModelObservation,
    ModelRoute,
    ModelRouteSetup,
    PredictFrames,
    ResolveOptions,
    RouteNeeds,
)
from rlmesh_gym.server.model_server import ModelServer

__all__ = [
    "EnvServer",
    "HeldState",
    "HistoryFrame",
    "HistoryNeeds",
    "ModelHandler",
    "ModelObservation",
    "ModelRoute",
    "ModelRouteSetup",
    "ModelServer",
    "PredictFrames",
    "ResolveOptions",
    "RouteNeeds",
]
