"""The last observations of episodes that a SAME_STEP vector has reset; they travel in its infos.

Each is the bytes of a one-row ``SpaceValue`` (capability ``rlmesh_gym.final_obs``), which keeps its
dtypes; a server without that sends plain lists, read through the space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from gymnasium import spaces

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.codec.spaces.space_codec import SpaceCodec

__all__ = ["decode_final_obs", "encode_final_obs", "read_sample"]


def encode_final_obs(
    codec: SpaceCodec, final_obs: Any, ended: NDArray[np.bool_]
) -> list[bytes | None]:
    """Encode terminal observations one by one.

    Args:
        codec: Codec of the single observation space.
        final_obs: Gymnasium's object array with one observation, or None, per lane; or the dense
            batch that some vector envs give.
        ended: Which lanes ended, shape ``(num_envs,)``; the others get None.

    Raises:
        CodecError: A terminal observation does not fit the space.
    """
    lanes = np.flatnonzero(ended).tolist()
    encoded: list[bytes | None] = [None] * len(ended)
    is_per_lane = isinstance(final_obs, (list, tuple)) or (
        isinstance(final_obs, np.ndarray) and final_obs.dtype.hasobject
    )
    if is_per_lane and len(final_obs) != len(ended):
        raise CodecError(f"expected {len(ended)} rows, got {len(final_obs)}", path="final_obs")
    batch = None if is_per_lane else codec.flatten(final_obs, len(ended))
    for lane in lanes:
        if batch is None:
            row = codec.flatten_row(final_obs[lane])
        else:
            row = [leaf[lane : lane + 1] for leaf in batch]
        encoded[lane] = codec.encode(row, 1).SerializeToString()
    return encoded


def decode_final_obs(codec: SpaceCodec, item: Any) -> Any:
    """Return one lane's terminal observation as its space has it; None for lanes that go on.

    Raises:
        CodecError: It does not fit the space.
    """
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
