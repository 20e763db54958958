"""Arrays, numpy scalars, tuples and sets inside free-form dicts (capability ``rlmesh_gym.arrays``).

A ``MetaMap`` has lists only. Between two ends of this package what it has no kind for goes as a map
with the one reserved key ``rlmesh_gym.value``, whose value is

* bytes for an array or a numpy scalar: ``a`` or ``s``, the dtype as numpy writes it (``<f4``), the
  lengths of the axes, each after a space, a newline, and the memory in C order, little-endian;
* a map with one entry, named after the type, for ``tuple``, ``set``, ``frozenset``, for ``objects``
  (an array of Python objects: its items, and its ``shape``), and for a ``dict`` that itself has the
  reserved key.

Nothing of it ever goes to a peer that has not announced the capability.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

import numpy as np

from rlmesh_gym.codec.spaces.cast import object_array
from rlmesh_gym.codec.spaces.limits import MAX_META_DEPTH
from rlmesh_gym.errors import CodecError

RESERVED_KEY = "rlmesh_gym.value"

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_KINDS = "biufcSUmM"
_HEADER = re.compile(
    rb"(?P<form>[as])(?P<dtype>[<|](?:[biufc]\d{1,2}|[SU]\d{1,9}|[mM]8(?:\[\d*[A-Za-z]{1,2}\])?))"
    rb"(?P<shape>(?: \d{1,18})*)"
)
_MAX_AXES = 32
_MAX_HEADER_BYTES = 1024


def pack(value: Any, depth: int = 0) -> Any:
    """Replace what a ``MetaMap`` has no kind for; all else stays as it is."""
    if type(value) in _PLAIN:
        return value
    write = _PACKERS.get(type(value)) or _packer(value)
    if depth > MAX_META_DEPTH:  # as in a list that holds itself
        raise CodecError(f"nested more than {MAX_META_DEPTH} levels deep")
    return write(value, depth)


def _pack_array(value: Any, depth: int) -> Any:
    is_scalar = isinstance(value, np.generic)
    if not is_scalar and type(value) is not np.ndarray:
        value = np.asarray(value)
    dtype: np.dtype[Any] = value.dtype
    if dtype.kind == "O":
        items = [pack(item, depth + 1) for item in value.ravel().tolist()]
        return _marked("objects", {"items": items, "shape": list(value.shape)})
    if dtype.kind not in _KINDS or dtype.itemsize == 0:
        return value
    wire, header = _header(dtype, value.shape, is_scalar=is_scalar)
    if wire is not dtype:
        value = np.asarray(value).astype(wire, copy=False)
    return {RESERVED_KEY: header + value.tobytes()}


@lru_cache(maxsize=256)
def _header(
    dtype: np.dtype[Any], shape: tuple[int, ...], *, is_scalar: bool
) -> tuple[np.dtype[Any], bytes]:
    """Return the dtype to send, and what goes before the memory."""
    wire = dtype
    if dtype.kind == "f" and dtype.itemsize > 8:  # noqa: PLR2004 - no type that others have
        wire = np.dtype("<f8")
    elif dtype.str.startswith(">"):
        wire = dtype.newbyteorder("<")
    form = "s" if is_scalar else "a"
    return wire, "".join([form, wire.str, *(f" {length}" for length in shape), "\n"]).encode()


def _pack_list(value: Any, depth: int) -> list[Any]:
    return [item if type(item) in _PLAIN else pack(item, depth + 1) for item in value]


def _pack_tuple(value: Any, depth: int) -> Any:
    if hasattr(value, "_fields"):
        return _pack_map(dict(zip(value._fields, value, strict=True)), depth)
    return _marked("tuple", _pack_list(value, depth))


def _pack_set(value: AbstractSet[Any], depth: int) -> Any:
    # Sorted, so that the same set makes the same bytes in every process.
    name = "frozenset" if isinstance(value, frozenset) else "set"
    return _marked(name, _pack_list(sorted(value, key=repr), depth))


def _pack_map(value: Mapping[Any, Any], depth: int) -> Any:
    packed = {
        key: item if type(item) in _PLAIN else pack(item, depth + 1) for key, item in value.items()
    }
    return _marked("dict", packed) if RESERVED_KEY in packed else packed


def _pack_foreign_array(value: Any, depth: int) -> Any:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return value  # A tensor on another device, say; its ``tolist`` still serves.
    return value if array.dtype == object else _pack_array(array, depth)


def _keep(value: Any, depth: int) -> Any:  # noqa: ARG001
    return value


def _marked(name: str, content: Any) -> dict[str, Any]:
    return {RESERVED_KEY: {name: content}}


_Packer = Callable[[Any, int], Any]

_PACKERS: dict[type, _Packer] = {
    np.ndarray: _pack_array,
    list: _pack_list,
    tuple: _pack_tuple,
    dict: _pack_map,
    set: _pack_set,
    frozenset: _pack_set,
}
"""The exact types of nearly all values."""

_KINDS_OF: tuple[tuple[type | tuple[type, ...], _Packer], ...] = (
    ((type, str, bytes), _keep),  # also numpy's own text
    ((np.ndarray, np.generic), _pack_array),
    (tuple, _pack_tuple),
    (Mapping, _pack_map),
    (AbstractSet, _pack_set),
    (list, _pack_list),
)


def _packer(value: Any) -> _Packer:
    """Find the packer of a value whose exact type is not in ``_PACKERS``."""
    for kinds, packer in _KINDS_OF:
        if isinstance(value, kinds):
            return packer
    return _pack_foreign_array if callable(getattr(value, "__array__", None)) else _keep


def unpack(value: Any) -> Any:
    """Undo ``pack`` on what came; dicts, lists and arrays are fresh."""
    if isinstance(value, dict):
        if len(value) == 1 and RESERVED_KEY in value:
            try:
                return _unpack_marked(value[RESERVED_KEY])
            except CodecError:
                raise
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                message = f"{RESERVED_KEY} holds nothing that this release knows: {error}"
                raise CodecError(message) from error
        return {key: item if type(item) in _PLAIN else unpack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [item if type(item) in _PLAIN else unpack(item) for item in value]
    return value


def _unpack_marked(content: Any) -> Any:
    if isinstance(content, bytes):
        return _unpack_array(content)
    ((name, value),) = content.items()
    if name == "dict":
        return {key: unpack(item) for key, item in value.items()}
    if name == "objects":
        return object_array(unpack(list(value["items"]))).reshape(value["shape"])
    sequences: dict[str, Callable[[list[Any]], Any]]
    sequences = {"tuple": tuple, "set": set, "frozenset": frozenset}
    return sequences[name](unpack(list(value)))


def _unpack_array(content: bytes) -> Any:
    end = content.index(b"\n")
    is_scalar, dtype, shape = _read_header(content[: min(end, _MAX_HEADER_BYTES)])
    data = memoryview(content)[end + 1 :]
    array: np.ndarray[Any, Any]
    if dtype.kind == "b":
        array = np.frombuffer(data, np.uint8) != 0
    else:
        if dtype.kind == "U" and np.frombuffer(data, "<u4").max(initial=0) > sys.maxunicode:
            raise ValueError("not Unicode text")
        # A copy: what comes is the user's to change, and aligned.
        array = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    array = array.reshape(shape)
    return array[()] if is_scalar else array


@lru_cache(maxsize=256)
def _read_header(header: bytes) -> tuple[bool, np.dtype[Any], tuple[int, ...]]:
    found = _HEADER.fullmatch(header)
    if found is None:
        raise ValueError(header)
    shape = tuple(int(length) for length in found["shape"].split())
    is_scalar = found["form"] == b"s"
    if len(shape) > (0 if is_scalar else _MAX_AXES):
        raise ValueError(f"{len(shape)} axes")
    return is_scalar, np.dtype(found["dtype"].decode()), shape
