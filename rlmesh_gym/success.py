"""Whether an episode succeeded, read from its last info. The only place that knows the keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["SUCCESS_KEYS", "success_of"]

SUCCESS_KEYS = ("is_success", "success", "task_success")
"""Read in this order, first in the info itself, then inside its ``episode``."""


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Read whether an episode succeeded from its final info.

    Args:
        info: Info of the episode's last step, of one lane. A flag is a bool, a number, or an
            array, tensor, list or tuple with exactly one of these in it.

    Returns:
        The flag, or None where the info holds none that is one truth value.
    """
    for place in (info, info.get("episode")):
        if isinstance(place, Mapping):
            for key in SUCCESS_KEYS:
                flag = _truth(place.get(key))
                if flag is not None:
                    return flag
    return None


def _truth(value: Any) -> bool | None:
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    item = getattr(value, "item", None)
    if callable(item):  # Arrays, numpy scalars and tensors, on whatever device.
        try:
            value = item()
        except (TypeError, ValueError, RuntimeError):
            return None  # Several values, or none.
    elif callable(getattr(value, "__array__", None)):
        return _truth(value.__array__())
    if isinstance(value, (list, tuple)):
        return _truth(value) if len(value) == 1 else None
    if not isinstance(value, (bool, int, float)) or math.isnan(value):
        return None
    return bool(value)
