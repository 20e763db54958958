"""What a served model is made of, above both servers and the run loop."""

from __future__ import annotations

from rlmesh_gym.model.handler import (
    CallableHandler,
    ModelHandler,
    ModelRouteSetup,
    as_handler,
    predict_frames,
)
from rlmesh_gym.model.observation import (
    MAX_EXECUTION_HORIZON,
    HeldState,
    HistoryFrame,
    HistoryNeeds,
    ModelObservation,
    ModelRoute,
    PredictFrames,
    ResolveOptions,
    RouteNeeds,
)

__all__ = [
    "MAX_EXECUTION_HORIZON",
    "CallableHandler",
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
    "as_handler",
    "predict_frames",
]
