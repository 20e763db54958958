"""JSON with numpy arrays in it, for talking to the peer's scripts. Needs neither package."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

__all__ = ["dumps", "loads"]


def dumps(value: Any) -> str:
    """Return one line of JSON; arrays, numpy scalars, bytes and tuples survive."""
    return json.dumps(_pack(value))


def loads(text: str) -> Any:
    """Return what :func:`dumps` was given."""
    return _unpack(json.loads(text))


def _pack(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _pack(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item) for item in value]}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return {"$array": value.tolist(), "dtype": value.dtype.str, "scalar": True}
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {"$objects": [_pack(item) for item in value]}
        return {"$array": value.tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"$repr": repr(value)}


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_unpack(item) for item in value["$tuple"])
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    if "$objects" in value:
        array = np.empty(len(value["$objects"]), dtype=object)
        array[:] = [_unpack(item) for item in value["$objects"]]
        return array
    if "$array" in value:
        array = np.array(value["$array"], dtype=value["dtype"])
        return array[()] if value.get("scalar") else array.reshape(value["shape"])
    return {key: _unpack(item) for key, item in value.items()}
