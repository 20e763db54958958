"""The serving side: environments and models behind an address."""

from __future__ import annotations

from rlmesh_gym.model import (
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
from rlmesh_gym.server.env.server import EnvServer
from rlmesh_gym.server.model.server import ModelServer

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
