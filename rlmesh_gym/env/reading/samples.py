"""One observation that came as plain lists, read through its space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym.errors import CodecError

__all__ = ["read_sample"]


def read_sample(space: spaces.Space[Any], plain: Any, path: str = "$") -> Any:
    """Return ``plain`` as ``space.sample()`` would give it.

    Args:
        space: What it is a value of.
        plain: Nested lists, dicts and scalars, as free-form infos carry them.
        path: Where it stands, for errors.

    Raises:
        CodecError: It does not fit.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(plain, dict):
            raise CodecError(f"expected a dict, got {type(plain).__name__}", path=path)
        missing = [key for key in space.spaces if key not in plain]
        if missing:
            raise CodecError(f"the keys {missing} are missing", path=path)
        return {
            key: read_sample(child, plain[key], f"{path}.{key}")
            for key, child in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(plain, (list, tuple)) or len(plain) != len(space.spaces):
            raise CodecError(f"expected {len(space.spaces)} parts, got {plain!r}", path=path)
        pairs = enumerate(zip(space.spaces, plain, strict=True))
        return tuple(read_sample(child, part, f"{path}[{i}]") for i, (child, part) in pairs)
    if isinstance(space, spaces.Text):
        if not isinstance(plain, str):
            raise CodecError(f"expected text, got {type(plain).__name__}", path=path)
        return plain
    try:
        array = np.array(plain, dtype=space.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"no {space.dtype} array: {error}", path=path) from error
    shape = space.shape or ()
    if array.shape != shape:
        raise CodecError(f"expected shape {shape}, got {array.shape}", path=path)
    return array[()] if isinstance(space, spaces.Discrete) else array
