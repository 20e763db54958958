"""Lanes' infos joined in Gymnasium's vector form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import lane_info
from rlmesh_gym.env.reading.infos import FINAL_OBS, BatchedInfos, lane_values, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.drive.exchange import InfoRows

__all__ = ["AddInfo", "join", "lane_rows"]

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]
"""``VectorEnv._add_info``."""


def lane_rows(
    parts: Sequence[tuple[Endpoint, InfoRows]],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return ``(lane, info)`` of all endpoints, in lane order."""
    for endpoint, infos in parts:
        if isinstance(infos, BatchedInfos):
            for index in range(endpoint.num_envs):
                yield endpoint.start + index, infos.row(index)
        elif infos is not None:
            for index, info in infos:
                yield endpoint.start + index, info


def join(
    rows: Iterable[tuple[int, dict[str, Any]]], num_envs: int, add_info: AddInfo
) -> dict[str, Any]:
    """Join lanes' infos in Gymnasium's vector form.

    Args:
        rows: ``(lane, info)`` in lane order; a lane may come several times.
        num_envs: Number of lanes.
        add_info: ``VectorEnv._add_info`` of the env that the user sees.

    Returns:
        A dict of arrays of length ``num_envs`` beside ``_key`` masks. A key whose values do not fit
        one array is an object array.
    """
    infos: dict[str, Any] = {}
    for lane, info in rows:
        _merge(infos, info, lane, num_envs, add_info)
    return infos


def _merge(
    infos: dict[str, Any], info: dict[str, Any], lane: int, num_envs: int, add_info: AddInfo
) -> None:
    for key, value in info.items():
        if not _has_mask_place(infos, key):
            del infos[f"_{key}"]
        present = infos.get(key)
        nested = isinstance(value, dict) and key != FINAL_OBS
        if nested and (present is None or isinstance(present, dict)):
            child = {} if present is None else present
            _merge(child, value, lane, num_envs, add_info)
            infos[key] = child
            _mark(infos, key, lane, num_envs)
        elif nested or isinstance(present, dict):
            _widen(infos, key, lane, value, num_envs)
        else:
            try:
                add_info(infos, {key: value}, lane)
            except (TypeError, ValueError, OverflowError):
                _widen(infos, key, lane, value, num_envs)


def _has_mask_place(infos: dict[str, Any], key: str) -> bool:
    # An env may have a key `_x` of its own beside `x`; whatever cannot be the mask must go.
    present = infos.get(f"_{key}")
    return present is None or (isinstance(present, np.ndarray) and present.ndim == 1)


def _mark(infos: dict[str, Any], key: str, lane: int, num_envs: int) -> None:
    mask = infos.get(f"_{key}")
    if mask is None:
        mask = infos[f"_{key}"] = np.zeros(num_envs, dtype=np.bool_)
    mask[lane] = True


def _widen(infos: dict[str, Any], key: str, lane: int, value: Any, num_envs: int) -> None:
    """Turn ``infos[key]`` into an object array, since ``value`` does not fit what is there."""
    present = infos[key]
    if f"_{key}" not in infos:
        return  # The mask of another key, and as that it stays.
    if isinstance(present, np.ndarray) and present.dtype == object and present.ndim == 1:
        present[lane] = value
    else:
        wide = np.full(num_envs, None, dtype=object)
        mask = infos[f"_{key}"]
        for other in np.flatnonzero(mask).tolist():
            wide[other] = (
                lane_values(lane_info(present, other, num_envs))
                if isinstance(present, dict)
                else plain(present[other])
            )
        wide[lane] = value
        infos[key] = wide
    _mark(infos, key, lane, num_envs)
