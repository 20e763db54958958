"""Lanes' infos in Gymnasium's vector form: a dict of arrays with a boolean mask beside each.

The rules are those of ``VectorEnv._add_info``, which does the work. Where a later value does not
fit the array that the first one chose, the key becomes an object array instead of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium.vector import VectorEnv

from rlmesh_gym.codec.lane_infos import FINAL_OBS, column_of, is_mask, lane_info, plain_scalar
from rlmesh_gym.codec.spaces.cast import object_array

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray


_GYMNASIUMS: Any = VectorEnv._add_info  # noqa: SLF001 - the rules are nowhere else

_NONE: frozenset[int] = frozenset()

_MISFITS = (TypeError, ValueError, OverflowError, AttributeError, IndexError)
"""What adding a value to an array of another kind raises."""


def join_infos(
    rows: Iterable[tuple[int, Mapping[str, Any]]], num_envs: int, shared: AbstractSet[int] = _NONE
) -> dict[str, Any]:
    """Join lanes' infos.

    Args:
        rows: ``(lane, info)`` in lane order; a lane may come several times.
        num_envs: Number of lanes.
        shared: The ``id`` of arrays that many lanes share; they become objects, not a row each.

    Returns:
        Arrays of length ``num_envs`` beside ``_key`` masks, nested dicts likewise.
    """
    infos: dict[str, Any] = {}
    width = _Width(num_envs, shared)
    for lane, info in rows:
        width.add(infos, info, lane)
    return infos


def add_info(
    infos: dict[str, Any], info: Mapping[str, Any], lane: int, num_envs: int
) -> dict[str, Any]:
    """Add one lane's info to a vector's, in place; return the vector's."""
    return _Width(num_envs).add(infos, info, lane)


def one_dict(infos: Any, num_envs: int) -> dict[str, Any] | None:
    """Return the infos of a vector env as one dict, joined where they are one dict per lane.

    None stays None, for a vector env that says nothing.

    Raises:
        TypeError: They are neither.
    """
    if infos is None or isinstance(infos, (dict, Mapping)):  # A dict first: that is quicker.
        return None if infos is None else dict(infos)
    column = column_of(infos, num_envs)
    if column is None or not all(info is None or isinstance(info, Mapping) for info in column):
        raise TypeError(f"infos must be a dict, or one dict for each lane, got {infos!r}")
    return join_infos(((lane, info) for lane, info in enumerate(column) if info), num_envs)


def vector_form(infos: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Bring one dict of all lanes' infos into Gymnasium's form, whatever its server made of it.

    Lists may stand for arrays, masks may be missing; what does not have one entry per lane speaks
    of all of them.
    """
    arrays: dict[str, Any] = {}
    for key, value in infos.items():
        column = column_of(value, num_envs)
        if isinstance(value, dict):
            arrays[key] = vector_form(value, num_envs)
        elif isinstance(column, np.ndarray):
            arrays[key] = column
        elif column is None and is_mask(infos, key):
            arrays[key] = np.ones(num_envs, dtype=np.bool_)  # No mask at all.
        elif isinstance(value, np.ndarray) or (
            isinstance(value, list) and column is None and key != FINAL_OBS
        ):
            arrays[key] = _for_all(value, num_envs)
        else:
            values = [value] * num_envs if column is None else list(column)
            array = None if key == FINAL_OBS else number_array(values)
            arrays[key] = object_array(values) if array is None else array
    for key in infos:
        if f"_{key}" not in infos and not is_mask(infos, key):
            arrays[f"_{key}"] = np.ones(num_envs, dtype=np.bool_)
    return arrays


_COPIED_BYTES = 4 * 1024 * 1024


def _for_all(value: Any, num_envs: int) -> NDArray[Any]:
    """Return what speaks of all lanes once for each; large, as a read-only view of the one.

    So n lanes and a list of n entries that a peer sent do not cost n times n.
    """
    array = number_array(value) if isinstance(value, list) else value
    if array is None:
        return object_array([value] * num_envs)
    rows = np.broadcast_to(array, (num_envs, *array.shape))
    return rows if is_large(array, num_envs) else rows.copy()


def is_large(array: NDArray[Any], num_envs: int) -> bool:
    """Return whether an array is too large for each of several lanes to have one of its own."""
    return num_envs > 1 and array.nbytes * num_envs > _COPIED_BYTES


_PLAIN_TYPES: dict[frozenset[type], type] = {
    frozenset((int,)): np.int64,
    frozenset((float,)): np.float64,
    frozenset((bool,)): np.bool_,
    frozenset((int, float)): np.float64,
}


def number_array(values: list[Any]) -> NDArray[Any] | None:
    """Return a rectangular list of Python numbers or bools as an array; None for any other."""
    if not values:
        return np.zeros(0, dtype=np.float64)
    types = frozenset(map(type, values))
    dtype = _PLAIN_TYPES.get(types)
    if dtype is not None:
        return np.array(values, dtype=dtype)
    if types != {list}:
        return None
    rows = [number_array(value) for value in values]
    first = rows[0]
    if first is None:
        return None
    for row in rows:
        if row is None or row.shape != first.shape or (row.dtype == bool) != (first.dtype == bool):
            return None
    return np.array(rows)


class _Width:
    """Stands where ``VectorEnv._add_info`` asks a vector env for its width, and mends misfits."""

    def __init__(self, num_envs: int, shared: AbstractSet[int] = _NONE) -> None:
        self.num_envs = num_envs
        self._shared = shared

    def add(self, infos: Any, info: Mapping[str, Any], lane: int) -> dict[str, Any]:
        if not isinstance(infos, dict):
            raise TypeError("a dict beside something else")  # For the level above to settle.
        is_shared = self._shared and any(id(value) in self._shared for value in info.values())
        if not is_shared and not _mixes_dicts(infos, info):
            try:
                return cast("dict[str, Any]", _GYMNASIUMS(self, infos, info, lane))
            except _MISFITS:
                pass
        if len(info) == 1:
            self._add_object(infos, *next(iter(info.items())), lane)
        else:  # Once more key by key; what was added already is only added again.
            for key, value in info.items():
                self.add(infos, {key: value}, lane)
        return infos

    _add_info = add  # By which Gymnasium's function calls itself for nested dicts.

    def _add_object(self, infos: dict[str, Any], key: str, value: Any, lane: int) -> None:
        present, mask = infos.get(key), infos.get(f"_{key}")
        if mask is None and present is not None:
            return  # The mask of another key, and as that it stays.
        if not (isinstance(mask, np.ndarray) and mask.ndim == 1):
            mask = infos[f"_{key}"] = np.zeros(self.num_envs, dtype=np.bool_)
        if not (isinstance(present, np.ndarray) and present.dtype == object and present.ndim == 1):
            objects = np.full(self.num_envs, None, dtype=object)
            for other in np.flatnonzero(mask).tolist():
                if other != lane:
                    own = lane_info({key: present}, other, self.num_envs)[key]
                    objects[other] = _plain_scalars(own)
            infos[key] = present = objects
        present[lane] = value
        mask[lane] = True


def _plain_scalars(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_scalars(item) for key, item in value.items()}
    return plain_scalar(value)


def _mixes_dicts(infos: Mapping[str, Any], info: Mapping[str, Any]) -> bool:
    """Return whether a dict meets something else, which Gymnasium would not notice."""
    for key, value in info.items():
        own = infos.get(f"_{key}", info.get(f"_{key}"))
        if isinstance(own, dict):
            return True  # An env's own key where the mask belongs.
        present = infos.get(key)
        is_other = present is not None and isinstance(present, dict) is not isinstance(value, dict)
        if is_other and key != FINAL_OBS:
            return True
    return False
