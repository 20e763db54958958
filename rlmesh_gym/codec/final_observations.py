"""The last observations of episodes that a SAME_STEP vector has reset; they travel in its infos.

Each is the bytes of a one-row ``SpaceValue`` (capability ``rlmesh_gym.final_obs``), which keeps its
dtypes; a server without that sends plain lists, read through the space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlmesh_gym.codec.spaces.space_codec import SpaceCodec

__all__ = ["decode_final_obs", "encode_final_obs"]


def encode_final_obs(
    codec: SpaceCodec, final_obs: Any, ended: NDArray[np.bool_]
) -> list[bytes | None]:
    """Encode the terminal observations of the lanes that ended; the others get None.

    Gymnasium gives an object array with one observation, or None, per lane; some vector envs a
    dense batch.

    Raises:
        CodecError: A terminal observation does not fit the space.
    """
    encoded: list[bytes | None] = [None] * len(ended)
    is_per_lane = isinstance(final_obs, (list, tuple)) or (
        isinstance(final_obs, np.ndarray) and final_obs.dtype.hasobject
    )
    if is_per_lane and len(final_obs) != len(ended):
        raise CodecError(f"expected {len(ended)} rows, got {len(final_obs)}", path="final_obs")
    batch = None if is_per_lane else codec.flatten(final_obs, len(ended))
    for lane in np.flatnonzero(ended).tolist():
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
    return codec.unflatten_row(codec.flatten_row(item), 0)
