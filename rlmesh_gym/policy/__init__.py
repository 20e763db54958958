"""Served models as policies: per-lane chunk replay, ensembles, and the client itself.

``chunks`` and ``ensemble`` are plain arrays and usable without a wire.
"""

from __future__ import annotations

from rlmesh_gym.policy.planning.chunks import ActionChunkReplay, lane_indices, stack_frames
from rlmesh_gym.policy.planning.ensemble import EnsembleReplay, EnsembleRule, make_replay
from rlmesh_gym.policy.remote_policy import RemotePolicy
from rlmesh_gym.policy.stats import PolicyStats

__all__ = [
    "ActionChunkReplay",
    "EnsembleReplay",
    "EnsembleRule",
    "PolicyStats",
    "RemotePolicy",
    "lane_indices",
    "make_replay",
    "stack_frames",
]
