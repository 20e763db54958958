"""Infos as endpoints send them, in two shapes.

Lane endpoints send one dict per answered lane, vector endpoints send Gymnasium's batched dict with
arrays as lists. Both give out one lane's dict; what the user sees is joined from those elsewhere.
Of autoreset modes it knows nothing but the keys ``final_obs`` and ``final_info``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec import decode_meta_map, is_mask, lane_info
from rlmesh_gym.env.reading.samples import read_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym._proto.spaces.v1 import meta_pb2
    from rlmesh_gym.codec import SpaceCodec
    from rlmesh_gym.env.reading.conformance import ConformanceLog

__all__ = [
    "FINAL_INFO",
    "FINAL_OBS",
    "BatchedInfos",
    "Infos",
    "LaneInfos",
    "hand_over_infos",
    "lane_values",
    "plain",
    "read_infos",
]

FINAL_OBS = "final_obs"
FINAL_INFO = "final_info"


class Infos(Protocol):
    """Infos of the rows of one reply."""

    def row(self, index: int) -> dict[str, Any]:
        """Return the info of one row as its lane's env gave it; fresh at every call."""
        ...


class LaneInfos:
    """One dict per row.

    Args:
        rows: Decoded dicts, owned by this object.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def row(self, index: int) -> dict[str, Any]:
        """Return the row's dict, lists of numbers as arrays."""
        return {key: _lane_value(value) for key, value in self._rows[index].items()}


class BatchedInfos:
    """Gymnasium's batched dict, decoded: a list of ``num_rows`` values per key beside a mask.

    Args:
        infos: The dict, owned by this object.
        num_rows: How many rows the reply has.
    """

    def __init__(self, infos: dict[str, Any], num_rows: int) -> None:
        self._infos = infos
        self._num_rows = num_rows

    def row(self, index: int) -> dict[str, Any]:
        """Return the share of one row: the keys whose mask names it."""
        return lane_values(lane_info(self._infos, index, self._num_rows))

    def arrays(self) -> dict[str, Any]:
        """Return the whole in Gymnasium's vector form."""
        return _arrays(self._infos, self._num_rows)


def read_infos(
    message: meta_pb2.MetaMap,
    num_rows: int,
    *,
    per_lane: bool,
    conformance: ConformanceLog,
    observation_codec: SpaceCodec | None = None,
) -> LaneInfos | BatchedInfos:
    """Read the infos of one reply.

    Args:
        message: As it came.
        num_rows: How many rows the reply has.
        per_lane: The endpoint is one of lanes; else one of a vector env.
        conformance: Takes the reserved key.
        observation_codec: Given where ``final_obs`` holds terminal observations (SAME_STEP).
    """
    infos = decode_meta_map(message)
    conformance.take_from(infos)
    if per_lane:
        if num_rows == 1:
            return LaneInfos([infos])
        rows = infos.get(FINAL_INFO)
        if isinstance(rows, list) and len(rows) == num_rows:
            dicts = [row if isinstance(row, dict) else {} for row in rows]
            for row in dicts:
                conformance.take_from(row)
            return LaneInfos(dicts)
    if observation_codec is not None:
        final = infos.get(FINAL_OBS)
        if isinstance(final, list):
            infos[FINAL_OBS] = [_terminal(item, observation_codec) for item in final]
        if isinstance(infos.get(FINAL_INFO), dict):
            conformance.take_from(infos[FINAL_INFO])
    return BatchedInfos(infos, num_rows)


def hand_over_infos(
    infos: list[Any] | dict[str, Any] | None, num_rows: int
) -> LaneInfos | BatchedInfos | None:
    """Take over infos of an environment in this process: one dict per lane, or a batched one."""
    if not infos:
        return None
    if isinstance(infos, list):
        return LaneInfos([row if isinstance(row, dict) else {} for row in infos])
    return BatchedInfos(infos, num_rows)


def _terminal(item: Any, codec: SpaceCodec) -> Any:
    """Return one lane's terminal observation as its space has it; None for lanes that go on."""
    if item is None:
        return None
    if isinstance(item, bytes):
        try:
            value = value_pb2.SpaceValue.FromString(item)
        except DecodeError:
            pass  # A Text observation of another server may be bytes of its own.
        else:
            return codec.unflatten_row(codec.decode(value, 1), 0)
    return read_sample(codec.space, item)


def plain(value: Any) -> Any:
    """Return a numpy scalar as a Python one, all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def lane_values(info: dict[str, Any]) -> dict[str, Any]:
    """Return one lane's dict as its env gave it: lists of numbers are arrays, scalars Python's."""
    return {key: value if key == FINAL_OBS else _lane_value(value) for key, value in info.items()}


def _lane_value(value: Any) -> Any:
    if isinstance(value, list):
        array = _numbers(value)
        return value if array is None else array
    if isinstance(value, dict):
        return {key: _lane_value(item) for key, item in value.items()}
    return plain(value)


_PLAIN_TYPES: dict[frozenset[type], type] = {
    frozenset((int,)): np.int64,
    frozenset((float,)): np.float64,
    frozenset((bool,)): np.bool_,
    frozenset((int, float)): np.float64,
}


def _numbers(values: list[Any]) -> NDArray[Any] | None:
    """Return a rectangular list of numbers or bools as an array; None for any other list."""
    if not values:
        return np.zeros(0, dtype=np.float64)
    types = frozenset(map(type, values))
    dtype = _PLAIN_TYPES.get(types)
    if dtype is not None:
        return np.array(values, dtype=dtype)
    if types != {list}:
        return None
    rows = [_numbers(value) for value in values]
    first = rows[0]
    if first is None:
        return None
    for row in rows:
        if row is None or row.shape != first.shape or (row.dtype == bool) != (first.dtype == bool):
            return None
    return np.array(rows)


def _objects(values: list[Any]) -> NDArray[Any]:
    # Filled one by one: numpy would take lists of equal length for more axes.
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def _arrays(infos: dict[str, Any], num_rows: int) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            arrays[key] = _arrays(value, num_rows)
        elif isinstance(value, list) and len(value) == num_rows:
            array = None if key == FINAL_OBS else _numbers(value)
            arrays[key] = _objects(value) if array is None else array
        elif is_mask(infos, key):
            arrays[key] = np.ones(num_rows, dtype=np.bool_)  # No mask at all.
        else:
            # Not per lane, as a vector env of its own kind may have it: every lane gets it.
            plain = _numbers([value])
            if plain is None:
                arrays[key] = _objects([value] * num_rows)
            else:
                arrays[key] = np.repeat(plain, num_rows, axis=0)
    for key in infos:
        if f"_{key}" not in infos and not is_mask(infos, key):
            arrays[f"_{key}"] = np.ones(num_rows, dtype=np.bool_)
    return arrays
