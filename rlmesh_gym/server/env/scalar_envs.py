"""Scalar envs as lanes: equal spaces, every one closed, and what their steps return read strictly.

A wrong guess about a reward or a flag would spoil training.
"""

from __future__ import annotations

from copy import copy as shallow_copy
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import gymnasium as gym


def check_equal_spaces(envs: Sequence[gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    """Return the first env, whose spaces are everybody's, or refuse them."""
    if not envs:
        raise ConfigurationError("a list of environments to serve must not be empty")
    first = envs[0]
    for lane, env in enumerate(envs):
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != getattr(first, name):
                raise ConfigurationError(
                    f"lane {lane}: {name} is {getattr(env, name)}, that of lane 0 is "
                    f"{getattr(first, name)}; the lanes of one endpoint share their spaces"
                )
    return first


def close_all(envs: Iterable[gym.Env[Any, Any]]) -> None:
    """Close every environment, also when one fails to; the first failure is raised."""
    failure: BaseException | None = None
    for env in envs:
        try:
            env.close()
        except BaseException as error:  # noqa: PERF203 - the others must close too
            failure = failure or error
    if failure is not None:
        raise failure


def detached(value: Any) -> Any:
    """Copy ``value`` as deep as its containers and arrays go; other objects stay as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        result = shallow_copy(value)
        for key, item in value.items():
            result[key] = detached(item)
        return result
    if isinstance(value, list):
        return [detached(item) for item in value]
    if type(value) is tuple:
        return tuple(detached(item) for item in value)
    return value


def as_reward(value: Any, lane: int) -> float:
    """Read one lane's reward: anything with exactly one number in it."""
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return float(value.reshape(-1)[0])
    elif value is not None and not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"lane {lane}: the reward must be one number, got {value!r}")


def as_flag(value: Any, name: str, lane: int) -> bool:
    """Read ``terminated`` or ``truncated``: a bool, also numpy's or in an array; no ``int``."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.size == 1
    ):
        return bool(value)
    raise TypeError(f"lane {lane}: {name} must be a bool, got {value!r}")
