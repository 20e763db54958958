"""Remote environments as Gymnasium objects: one lane, or a vector over one or several endpoints."""

from __future__ import annotations

from rlmesh_gym.env.reading.infos import ConformanceWarning
from rlmesh_gym.env.remote_env import RemoteEnv
from rlmesh_gym.env.vector_env import RemoteVectorEnv

__all__ = ["ConformanceWarning", "RemoteEnv", "RemoteVectorEnv"]
