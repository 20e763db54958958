"""The Gymnasium id of remote environments. Imports neither gRPC nor protobuf."""

from __future__ import annotations

import gymnasium as gym

REMOTE_ID = "rlmesh/Remote-v0"


def register() -> None:
    """Register ``rlmesh/Remote-v0`` with Gymnasium; once, however often it is called.

    ``gymnasium.make`` gives a ``RemoteEnv``, ``gymnasium.make_vec`` a ``RemoteVectorEnv``. The
    classes are imported when one is made.
    """
    if REMOTE_ID in gym.registry:
        return
    gym.register(
        id=REMOTE_ID,
        entry_point="rlmesh_gym.env:RemoteEnv",
        vector_entry_point="rlmesh_gym.env:RemoteVectorEnv",
    )
