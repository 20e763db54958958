"""One lane's info out of the infos of a vector. The inverse of ``VectorEnv._add_info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["is_mask", "lane_info"]


def lane_info(infos: Mapping[str, Any], lane: int, num_envs: int) -> dict[str, Any]:
    """Return what the infos of a vector say of one lane.

    Args:
        infos: Gymnasium's vector form: arrays, lists or nested dicts of ``num_envs`` values, each
            with a boolean mask ``_key`` beside it. A key without a mask speaks of all lanes.
        lane: Which one.
        num_envs: How many there are.

    Returns:
        A fresh dict of the keys whose mask names the lane. Values are the lane's own entries, not
        copied; what does not have one entry per lane is taken as it is.
    """
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if is_mask(infos, key):
            continue
        mask = _mask(infos.get(f"_{key}"), num_envs)
        if mask is not None and not mask[lane]:
            continue
        if isinstance(value, dict):
            info[key] = lane_info(value, lane, num_envs)
        else:
            column = _column(value, num_envs)
            info[key] = value if column is None else column[lane]
    return info


def is_mask(infos: Mapping[str, Any], key: str) -> bool:
    """Return whether ``key`` is the mask of another key."""
    return key.startswith("_") and key[1:] in infos and not isinstance(infos[key], dict)


def _mask(value: Any, num_envs: int) -> Sequence[Any] | None:
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return None  # An env's own key that only looks like one.
    return _column(value, num_envs)


def _column(value: Any, num_envs: int) -> Sequence[Any] | None:
    if isinstance(value, (list, tuple, np.ndarray)) and _length(value) == num_envs:
        return value  # type: ignore[return-value]
    return None


def _length(value: Sequence[Any] | np.ndarray[Any, Any]) -> int:
    return 0 if isinstance(value, np.ndarray) and value.ndim == 0 else len(value)
