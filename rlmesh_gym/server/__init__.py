"""The serving side: environments and models behind an address."""

from __future__ import annotations

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

__all__ = [
    "HeldState",
    "HistoryFrame",
    "HistoryNeeds",
    "ModelHandler",
    "ModelObservation",
    "ModelRoute",
    "ModelRouteSetup",
    "PredictFrames",
    "ResolveOptions",
    "RouteNeeds",
]
