"""Gymnasium's vector infos on their way to the wire: rows of some lanes, terminal observations.

Pure functions on dicts of arrays with ``_key`` masks; they know no environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import SpaceCodec

__all__ = ["encode_final_obs", "rows_of"]


def _has_rows(value: Any, num_envs: int) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and len(value) == num_envs
    return isinstance(value, (list, tuple)) and len(value) == num_envs


def rows_of(infos: Mapping[str, Any], lanes: Sequence[int], num_envs: int) -> dict[str, Any]:
    """Return ``infos`` with only the rows of ``lanes``, in that order; masks are cut alike."""
    index = np.asarray(lanes, dtype=np.int64)
    cut: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            cut[key] = rows_of(value, lanes, num_envs)
        elif _has_rows(value, num_envs):
            cut[key] = value[index] if isinstance(value, np.ndarray) else [value[i] for i in lanes]
        else:
            cut[key] = value
    return cut


def encode_final_obs(
    codec: SpaceCodec, final_obs: Any, ended: NDArray[np.bool_]
) -> list[bytes | None]:
    """Encode terminal observations one by one, as bytes of a one-row ``SpaceValue`` each.

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
    if isinstance(final_obs, (list, tuple)) or (
        isinstance(final_obs, np.ndarray) and final_obs.dtype == object
    ):
        if len(final_obs) != len(ended):
            raise CodecError(f"expected {len(ended)} rows, got {len(final_obs)}", path="final_obs")
        for lane in lanes:
            leaves = codec.flatten_row(final_obs[lane])
            encoded[lane] = codec.encode(leaves, 1).SerializeToString()
        return encoded
    leaves = codec.flatten(final_obs, len(ended))
    for lane in lanes:
        row = [leaf[lane : lane + 1] for leaf in leaves]
        encoded[lane] = codec.encode(row, 1).SerializeToString()
    return encoded
