"""What one lane's ``step`` returns, read strictly where a wrong guess would spoil training."""

from __future__ import annotations

from copy import copy as shallow_copy
from typing import Any

import numpy as np

__all__ = ["as_flag", "as_reward", "detached"]


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
    """Read one lane's reward: anything with exactly one number in it.

    Raises:
        TypeError: ``value`` is no number, or holds none or several.
    """
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
    message = f"lane {lane}: the reward must be one number, got {value!r}"
    raise TypeError(message)


def as_flag(value: Any, name: str, lane: int) -> bool:
    """Read ``terminated`` or ``truncated``: ``bool``, ``np.bool_`` or a bool array of one element.

    Raises:
        TypeError: ``value`` is anything else, an ``int`` included.
    """
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.size == 1
    ):
        return bool(value)
    message = f"lane {lane}: {name} must be a bool, got {value!r}"
    raise TypeError(message)
