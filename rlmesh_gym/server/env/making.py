"""Environments made from a Gymnasium id: one, bare lanes, or a vector that resets its lanes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlmesh_gym.server.env.lane_vector import LaneVector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.vector import AutoresetMode, VectorEnv

    Made = gym.Env[Any, Any] | list[gym.Env[Any, Any]] | VectorEnv[Any, Any, Any]

__all__ = ["make_envs"]


def make_envs(
    env_id: str,
    *,
    num_envs: int | None = None,
    autoreset_mode: AutoresetMode | None = None,
    processes: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Made:
    """Make what a server serves; when one lane fails, those made before are closed.

    Args:
        env_id: Gymnasium id, with ``module:`` before it where a module registers it.
        num_envs: Lanes; None for one plain environment.
        autoreset_mode: Of a vector; None for bare lanes.
        processes: Run each lane of the vector in a process of its own.
        env_kwargs: Arguments of every lane.
        **options: Further arguments of ``gymnasium.make``.

    Raises:
        Exception: Whatever ``gymnasium.make`` raises.
    """
    arguments = {**options, **(env_kwargs or {})}
    if processes:
        vector_kwargs = {"autoreset_mode": autoreset_mode}
        return gym.make_vec(
            env_id, num_envs or 1, "async", vector_kwargs=vector_kwargs, **arguments
        )
    with ExitStack() as made:
        lanes: list[gym.Env[Any, Any]] = []
        for _ in range(num_envs or 1):
            lanes.append(gym.make(env_id, **arguments))
            made.callback(lanes[-1].close)
        envs: Made = lanes[0] if num_envs is None else lanes
        if autoreset_mode is not None:
            envs = LaneVector(lanes, autoreset_mode=autoreset_mode, copy=False)
            envs.spec = lanes[0].spec
        made.pop_all()
    return envs
