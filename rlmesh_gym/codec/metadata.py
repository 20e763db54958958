"""Python dicts of free form (infos, reset options, metadata) to ``MetaMap`` messages and back.

What the wire has no kind for is written as the nearest plain value and comes back as that: tuples,
arrays and sets as lists, numbers of any width as int or float, paths and dates as text. That is how
the released package does it, too. Between two ends of this one (``typed``) arrays, numpy scalars,
tuples and sets come back as what they are; see :mod:`rlmesh_gym.codec.typed_values`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from rlmesh_gym._proto.spaces.v1 import meta_pb2
from rlmesh_gym.codec.spaces.cast import describe
from rlmesh_gym.codec.spaces.limits import MAX_META_DEPTH
from rlmesh_gym.codec.typed_values import pack, unpack
from rlmesh_gym.errors import CodecError

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_Writer = Callable[[Any, meta_pb2.MetaValue, str, int], None]


def encode_meta_map(
    mapping: Mapping[str, Any], path: str = "$", *, typed: bool = False
) -> meta_pb2.MetaMap:
    """Write a mapping.

    Args:
        mapping: Keys are ``str``. Values are None, bool, numbers, str, bytes, mappings, sequences,
            sets, numpy scalars and arrays of any rank, named tuples, dataclasses, enums, paths,
            dates, decimals, or objects with a ``tolist`` method.
        path: Prefix of the paths in errors.
        typed: The peer knows the form of ``rlmesh_gym.arrays``.

    Returns:
        A new message that shares nothing with the mapping.

    Raises:
        CodecError: A value of another type, an integer outside int64, a key that is not a str,
            text that is not Unicode, or nesting too deep (as in a mapping that holds itself).
    """
    message = meta_pb2.MetaMap()
    _write_map(pack(mapping) if typed else mapping, message, path, 0)
    return message


def encode_meta_value(value: Any, path: str = "$") -> meta_pb2.MetaValue:
    """Write one value; see ``encode_meta_map``."""
    message = meta_pb2.MetaValue()
    _write(value, message, path, 0)
    return message


def decode_meta_map(
    message: meta_pb2.MetaMap, path: str = "$", *, typed: bool = False
) -> dict[str, Any]:
    """Read a map as a new dict, keys in alphabetical order (the wire keeps none).

    Args:
        message: Any message; nothing in it is trusted.
        path: Where it stands, for errors.
        typed: The peer knows the form of ``rlmesh_gym.arrays``.

    Raises:
        CodecError: Nesting too deep, or a malformed array.
    """
    plain = _read_map(message, path, 0)
    if not typed:
        return plain
    values = unpack(plain)
    if not isinstance(values, dict):
        raise CodecError(f"expected a dict, got {describe(values)}", path=path)
    return values


def without_misfits(
    mapping: Mapping[str, Any], path: str = "$", *, typed: bool = False
) -> tuple[dict[str, Any], list[CodecError]]:
    """Return a mapping without the entries that ``encode_meta_map`` would refuse, and why.

    Dicts in it, also those in lists, lose no more than the entries at fault.
    """
    left_out: list[CodecError] = []
    return _fitting(mapping, path, left_out, 0, typed=typed), left_out


def _fitting(
    mapping: Mapping[str, Any], path: str, left_out: list[CodecError], depth: int, *, typed: bool
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in mapping.items():
        where = f"{path}.{key}"
        try:
            encode_meta_map({key: value}, path, typed=typed)
        except CodecError as error:
            goes_in = depth < MAX_META_DEPTH
            if goes_in and isinstance(value, Mapping):
                kept[key] = _fitting(value, where, left_out, depth + 1, typed=typed)
            elif goes_in and _are_dicts(value):
                kept[key] = [
                    _fitting(item, f"{where}[{index}]", left_out, depth + 1, typed=typed)
                    for index, item in enumerate(value)
                ]
            else:
                left_out.append(error)
        else:
            kept[key] = value
    return kept


def _are_dicts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, Mapping) for item in value)


# Writing. Each function fills a message in place: protobuf copies what is assigned.


def _write(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:
    write = _WRITERS.get(type(value)) or _writer(value)
    write(value, out, path, depth)


def _write_bool(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    out.bool = bool(value)


def _write_integer(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    number = int(value)
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise CodecError(f"expected an integer in int64, got {describe(number)}", path=path)
    out.integer = number


def _write_number(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    try:
        out.number = float(value)
    except (OverflowError, ValueError) as error:
        raise CodecError(f"{value!r} is not a number for float64: {error}", path=path) from None


def _write_text(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    try:
        out.text = str(value)
    except ValueError as error:  # UnicodeEncodeError is one
        raise CodecError(f"not Unicode text: {error}", path=path) from None


def _write_bytes(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    out.bytes = bytes(value)


def _write_list(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:
    _check_depth(path, depth)
    out.list.SetInParent()
    items = out.list.items
    for index, item in enumerate(value):
        _write(item, items.add(), f"{path}[{index}]", depth + 1)


_FIELDS = {"b": "bool", "i": "integer", "u": "integer", "f": "number"}


def _write_array(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:
    _check_depth(path, depth)  # an object array without axes may hold itself
    dtype = value.dtype
    if dtype.kind == "m":
        _refuse(value, out, path, depth)
    if dtype.kind == "M":
        value = value.astype(str)
    elif dtype.kind == "f":
        value = value.astype(np.float64)  # longdouble has no Python type
    field = None if dtype == np.uint64 else _FIELDS.get(dtype.kind)
    if field is None or value.ndim == 0:
        _write(value.tolist(), out, path, depth + 1)
        return
    # Infos are mostly arrays of numbers, one per lane: no look-up and no path for each of them.
    out.list.SetInParent()
    add = out.list.items.add
    if value.ndim == 1:
        for item in value.tolist():
            setattr(add(), field, item)
    else:
        for index, row in enumerate(value):
            _write_array(row, add(), f"{path}[{index}]", depth + 1)


def _write_map(value: Mapping[Any, Any], out: meta_pb2.MetaMap, path: str, depth: int) -> None:
    _check_depth(path, depth)
    entries = out.entries
    for key, item in value.items():
        if not isinstance(key, str):
            raise CodecError(f"expected str keys, got {describe(key)}", path=path)
        try:
            entry = entries[key]
        except ValueError as error:
            raise CodecError(f"the key {key!r} is not Unicode text: {error}", path=path) from None
        _write(item, entry, f"{path}.{key}", depth + 1)


def _write_mapping(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:
    out.map.SetInParent()
    _write_map(value, out.map, path, depth)


def _check_depth(path: str, depth: int) -> None:
    if depth >= MAX_META_DEPTH:
        raise CodecError(f"nested more than {MAX_META_DEPTH} levels deep", path=path[:200])


def _via(plainer: Callable[[Any], Any]) -> _Writer:
    """Return the writer of values that are written as something plainer."""
    return lambda value, out, path, depth: _write(plainer(value), out, path, depth)


def _in_order(value: AbstractSet[Any]) -> list[Any]:
    # Sorted, since the order of a set of str changes with every process.
    if all(isinstance(item, str) for item in value) or all(isinstance(item, int) for item in value):
        return sorted(value)
    return sorted(value, key=repr)


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _refuse(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:  # noqa: ARG001
    message = f"a {type(value).__name__} is not supported by the protocol"
    if isinstance(value, (np.ndarray, np.generic)):
        message = f"dtype {value.dtype} is not supported by the protocol"
    raise CodecError(message, path=path)


def _write_via_list(value: Any, out: meta_pb2.MetaValue, path: str, depth: int) -> None:
    _check_depth(path, depth)  # a tolist that returns its own object must end somewhere
    try:
        plain = value.tolist()
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        message = f"the tolist of a {type(value).__name__} failed: {error}"
        raise CodecError(message, path=path) from error
    _write(plain, out, path, depth + 1)


_WRITERS: dict[type, _Writer] = {
    type(None): lambda *_: None,  # a value without kind
    bool: _write_bool,
    int: _write_integer,
    float: _write_number,
    str: _write_text,
    bytes: _write_bytes,
    list: _write_list,
    tuple: _write_list,
    dict: _write_mapping,
    np.ndarray: _write_array,
    np.bool_: _write_bool,
    np.float64: _write_number,
    np.int64: _write_integer,
}
"""The exact types of nearly all values; the rest goes through the table below, first match wins."""

_KINDS: tuple[tuple[type | tuple[type, ...], _Writer], ...] = (
    (enum.Enum, _via(lambda value: value.value)),  # before int and str: IntEnum, StrEnum
    (np.timedelta64, _refuse),  # an np.integer, for numpy
    ((int, np.integer), _write_integer),
    ((float, np.floating, decimal.Decimal), _write_number),
    ((str, np.datetime64), _write_text),
    ((bytes, bytearray), _write_bytes),
    (np.ndarray, _write_array),
    (Mapping, _write_mapping),
    (memoryview, _write_via_list),
    (Sequence, _write_list),
    (AbstractSet, _via(_in_order)),
    (os.PathLike, _via(os.fspath)),
    ((dt.date, dt.time), _via(lambda value: value.isoformat())),  # datetime is a date
)


def _writer(value: Any) -> _Writer:
    """Find the writer of a value whose exact type is not in ``_WRITERS``."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _via(lambda value: dict(zip(value._fields, value, strict=True)))
    for kinds, write in _KINDS:
        if isinstance(value, kinds):
            return write
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _via(_fields_of)
    if callable(getattr(value, "tolist", None)) and not isinstance(value, type):
        return _write_via_list  # torch, jax, array.array, pandas
    return _refuse


# Reading.


def _read(message: meta_pb2.MetaValue, path: str, depth: int) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    value = getattr(message, kind)
    if kind == "map":
        return _read_map(value, path, depth)
    if kind == "list":
        _check_depth(path, depth)
        return [_read(item, path, depth + 1) for item in value.items]
    return value


def _read_map(message: meta_pb2.MetaMap, path: str, depth: int) -> dict[str, Any]:
    _check_depth(path, depth)
    entries = message.entries
    return {key: _read(entries[key], path, depth + 1) for key in sorted(entries)}
