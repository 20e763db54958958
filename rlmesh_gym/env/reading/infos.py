"""Infos as endpoints send them, in two shapes, read lane by lane or as a whole.

Lane endpoints send one dict per answered lane, vector endpoints Gymnasium's batched dict. Either
may hold a server's notes about values outside their range, which become Python warnings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from rlmesh_gym.codec import decode_meta_map, join_infos, lane_info
from rlmesh_gym.codec.lane_infos import (
    CONFORMANCE_KEY,
    FINAL_INFO,
    FINAL_OBS,
    column_of,
    decode_final_obs,
    is_mask,
    plain_scalar,
)
from rlmesh_gym.codec.spaces.limits import SPACE_VARIABLE, max_space_bytes
from rlmesh_gym.codec.vector_infos import is_large, number_array, vector_form
from rlmesh_gym.errors import CodecError
from rlmesh_gym.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from rlmesh_gym._proto.spaces.v1 import meta_pb2
    from rlmesh_gym.codec import SpaceCodec


class ConformanceWarning(UserWarning):
    """An observation or action left the range that its space declares."""


class ConformanceLog:
    """Turns a server's conformance notes into Python warnings, once per kind and path."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._seen: set[tuple[str, str]] = set()

    def take_from(self, info: dict[str, Any]) -> None:
        """Remove the reserved key from ``info`` and warn about what it says."""
        info.pop(f"_{CONFORMANCE_KEY}", None)
        self._warn(info.pop(CONFORMANCE_KEY, None))

    def _warn(self, note: Any) -> None:
        if note is None:
            return
        if isinstance(note, list):  # Several, or one list per lane as a batched dict holds them.
            for item in note:
                self._warn(item)
            return
        fields = note if isinstance(note, dict) else {"detail": note}
        kind, path = str(fields.get("kind", "value")), str(fields.get("path", "$"))
        if (kind, path) not in self._seen:
            self._seen.add((kind, path))
            detail = fields.get("detail", "out of its range")
            message = printable(f"{self._endpoint}: {kind} at {path}: {detail}")
            warnings.warn(message, ConformanceWarning, stacklevel=2)


class LaneInfos:
    """One decoded dict per row, owned.

    ``typed``: arrays came as arrays, so that a list is a list of the environment's own.
    """

    def __init__(self, rows: list[dict[str, Any]], *, typed: bool = False) -> None:
        self._rows = rows
        self._typed = typed

    def row(self, index: int) -> dict[str, Any]:
        """Return the info of one row as its lane's env gave it; fresh at every call."""
        return _as_given(self._rows[index], typed=self._typed)


_KEY_BYTES = 64
_FREE_KEYS = 256
"""What a key takes in a dict, about, and how many each lane may have in any case."""


class BatchedInfos:
    """Gymnasium's batched dict, decoded and owned: ``num_rows`` values per key beside a mask.

    What speaks of all rows at once goes to each of them, so that a small message could take very
    much: large arrays are the same read-only one for all rows, and the keys are bounded.
    """

    def __init__(self, infos: dict[str, Any], num_rows: int, *, typed: bool = False) -> None:
        self._infos = infos
        self._num_rows = num_rows
        self._typed = typed
        self._by_rows: dict[str, Any] | None = None
        self._shared: set[int] = set()
        self._num_keys = 0  # That each row gets, whatever masks say.

    @property
    def shared(self) -> AbstractSet[int]:
        """The ``id`` of each array that is the same one for all rows."""
        self._prepare()
        return self._shared

    def row(self, index: int) -> dict[str, Any]:
        """Return the share of one row, the keys whose mask names it; fresh, see the class.

        Raises:
            CodecError: For all rows together it would take more than ``max_space_bytes()``.
        """
        info = lane_info(self._prepare(), index, self._num_rows)
        return _as_given(info, typed=self._typed, shared=self._shared)

    def _prepare(self) -> dict[str, Any]:
        if self._by_rows is None:
            by_rows = self._with_shared(self._infos)
            most = max(_FREE_KEYS, max_space_bytes() // (_KEY_BYTES * self._num_rows))
            if self._num_keys > most:
                raise CodecError(
                    f"infos: {self._num_keys} keys for each of {self._num_rows} lanes, at most "
                    f"{most} are expected; set {SPACE_VARIABLE} to take more"
                )
            self._by_rows = by_rows
        return self._by_rows

    def _with_shared(self, infos: dict[str, Any]) -> dict[str, Any]:
        by_rows = dict(infos)
        for key, value in infos.items():
            if isinstance(value, dict):
                self._num_keys += 1
                by_rows[key] = self._with_shared(value)
            elif column_of(value, self._num_rows) is None and not is_mask(infos, key):
                self._num_keys += 1
                is_plain = isinstance(value, list) and not self._typed
                array = number_array(value) if is_plain else value
                if isinstance(array, np.ndarray) and is_large(array, self._num_rows):
                    by_rows[key] = shared = array.view()
                    shared.flags.writeable = False
                    self._shared.add(id(shared))
        return by_rows

    def arrays(self) -> dict[str, Any]:
        """Return the whole in Gymnasium's vector form; for one caller, whose arrays they are."""
        return vector_form(self._infos, self._num_rows)


class LaneSpan(Protocol):
    """The lanes of one endpoint, as the user numbers them."""

    start: int
    num_envs: int


InfoRows: TypeAlias = "BatchedInfos | list[tuple[int, dict[str, Any]]] | None"
"""Infos of one endpoint: the batched dict of all lanes, or ``(env_index, info)`` in lane order."""


def read_infos(
    message: meta_pb2.MetaMap,
    num_rows: int,
    *,
    per_lane: bool,
    conformance: ConformanceLog,
    observation_codec: SpaceCodec | None = None,
    typed: bool = False,
) -> LaneInfos | BatchedInfos:
    """Read the infos of one reply of ``num_rows`` rows.

    ``per_lane`` endpoints are ones of lanes, the others of a vector env. The codec is given where
    ``final_obs`` holds terminal observations (SAME_STEP).
    """
    infos = decode_meta_map(message, typed=typed)
    conformance.take_from(infos)
    if per_lane:
        if num_rows == 1:
            return LaneInfos([infos], typed=typed)
        rows = infos.get(FINAL_INFO)
        if isinstance(rows, list) and len(rows) == num_rows:
            dicts = [row if isinstance(row, dict) else {} for row in rows]
            for row in dicts:
                conformance.take_from(row)
            return LaneInfos(dicts, typed=typed)
    if observation_codec is not None:
        final = infos.get(FINAL_OBS)
        if isinstance(final, list):
            infos[FINAL_OBS] = [decode_final_obs(observation_codec, item) for item in final]
        if isinstance(infos.get(FINAL_INFO), dict):
            conformance.take_from(infos[FINAL_INFO])
    return BatchedInfos(infos, num_rows, typed=typed)


def hand_over_infos(
    infos: list[Any] | dict[str, Any] | None, num_rows: int
) -> LaneInfos | BatchedInfos | None:
    """Take over infos of an environment in this process: one dict per lane, or a batched one."""
    if not infos:
        return None
    if isinstance(infos, list):
        return LaneInfos([row if isinstance(row, dict) else {} for row in infos], typed=True)
    return BatchedInfos(infos, num_rows, typed=True)


def all_rows(
    infos: LaneInfos | BatchedInfos | None, num_rows: int
) -> list[tuple[int, dict[str, Any]]]:
    """Return ``(row, info)`` of every row; nothing where there are no infos."""
    return [] if infos is None else [(index, infos.row(index)) for index in range(num_rows)]


def lane_rows(parts: Sequence[tuple[LaneSpan, InfoRows]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return ``(lane, info)`` of all endpoints, in lane order."""
    for endpoint, infos in parts:
        if isinstance(infos, BatchedInfos):
            for index in range(endpoint.num_envs):
                yield endpoint.start + index, infos.row(index)
        elif infos is not None:
            for index, info in infos:
                yield endpoint.start + index, info


def vector_infos(parts: Sequence[tuple[LaneSpan, InfoRows]], num_envs: int) -> dict[str, Any]:
    """Return the infos of all endpoints in Gymnasium's vector form."""
    first = parts[0][1] if parts else None
    if len(parts) == 1 and isinstance(first, BatchedInfos) and parts[0][0].num_envs == num_envs:
        return first.arrays()
    shared = {one for _, infos in parts if isinstance(infos, BatchedInfos) for one in infos.shared}
    return join_infos(lane_rows(parts), num_envs, shared)


def _as_given(
    info: dict[str, Any], *, typed: bool, shared: AbstractSet[int] = frozenset()
) -> dict[str, Any]:
    return {
        key: value if key == FINAL_OBS else _value(value, typed=typed, shared=shared)
        for key, value in info.items()
    }


def _value(value: Any, *, typed: bool, shared: AbstractSet[int]) -> Any:
    if isinstance(value, dict):
        return {key: _value(item, typed=typed, shared=shared) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value if id(value) in shared else value.copy()
    if isinstance(value, list) and not typed:
        array = number_array(value)
        return value if array is None else array
    return plain_scalar(value)
