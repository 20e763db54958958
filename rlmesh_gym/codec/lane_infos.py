"""One lane's info out of the infos of several lanes, in whatever form these come.

The forms: Gymnasium's one dict of arrays with a boolean mask ``_key`` beside each; the same without
masks, or with lists for arrays; one dict per lane, in a list, tuple or object array. The inverse
stands in :mod:`rlmesh_gym.codec.vector_infos`.

The last observations of episodes that a SAME_STEP vector has reset travel in its infos, each as the
bytes of a one-row ``SpaceValue`` (capability ``rlmesh_gym.final_obs``), which keeps its dtypes; a
server without that sends plain lists, read through the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec.spaces.space_codec import SpaceCodec


FINAL_OBS = "final_obs"
"""Where SAME_STEP keeps the last observation of an episode."""
FINAL_INFO = "final_info"
"""Where SAME_STEP keeps the last info of an episode, and a lane endpoint the infos of its lanes."""
CONFORMANCE_KEY = "rlmesh.conformance.warning"
"""Reserved key under which a server tells what left its declared range."""

_PLAIN_DTYPES = (np.int64, np.float64, np.bool_)


def lane_info(infos: Any, lane: int, num_envs: int) -> dict[str, Any]:
    """Return what the infos of a vector say of one lane.

    Args:
        infos: Any of the forms above. A key without a mask speaks of all lanes.
        lane: Which one.
        num_envs: How many there are.

    Returns:
        A fresh dict of the keys whose mask names the lane. Values are the lane's own entries, not
        copied; what does not have one entry per lane is taken as it is.
    """
    if not isinstance(infos, Mapping):
        column = column_of(infos, num_envs)
        own = None if column is None else column[lane]
        return dict(own) if isinstance(own, Mapping) else {}
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if is_mask(infos, key):
            continue
        mask = _mask(infos.get(f"_{key}"), num_envs)
        if mask is not None and not mask[lane]:
            continue
        if isinstance(value, dict):
            info[key] = lane_info(value, lane, num_envs)
        else:
            column = column_of(value, num_envs)
            info[key] = value if column is None else column[lane]
    return info


def final_info(infos: Any, lane: int, num_envs: int) -> dict[str, Any]:
    """Return the last info of the episode of a lane that has ended with this step.

    Args:
        infos: Infos of that step, in any form. Under SAME_STEP they hold the lane's last info
            apart, in any form too, since the rest speaks of the next episode.
        lane: Which one.
        num_envs: How many there are.

    Returns:
        As :func:`lane_info`, without what is no info of the environment.
    """
    final = infos.get(FINAL_INFO) if isinstance(infos, Mapping) else None
    if isinstance(final, Mapping):
        mask = _mask(infos.get(f"_{FINAL_INFO}"), num_envs)
        is_apart = mask is None or bool(mask[lane])
    else:
        column = column_of(final, num_envs)
        is_apart = column is not None and isinstance(column[lane], Mapping)
    info = lane_info(final if is_apart else infos, lane, num_envs)
    return {key: info[key] for key in info if key not in (FINAL_OBS, CONFORMANCE_KEY)}


def take_lanes(infos: Mapping[str, Any], lanes: Sequence[int], num_envs: int) -> dict[str, Any]:
    """Return a vector's infos with only the rows of ``lanes``, in that order, masks alike."""
    taken: dict[str, Any] = {}
    for key, value in infos.items():
        column = column_of(value, num_envs)
        if isinstance(value, Mapping):
            taken[key] = take_lanes(value, lanes, num_envs)
        elif column is None:
            taken[key] = value
        elif isinstance(column, np.ndarray):
            taken[key] = column[list(lanes)]
        else:
            taken[key] = [column[lane] for lane in lanes]
    return taken


def plain_scalar(value: Any) -> Any:
    """Return int64, float64 and bool, which a vector's infos make of Python's scalars, as those."""
    return value.item() if isinstance(value, _PLAIN_DTYPES) else value


def is_mask(infos: Mapping[str, Any], key: object) -> bool:
    """Return whether ``key`` is the mask of another key."""
    if not isinstance(key, str) or not key.startswith("_"):
        return False
    return key[1:] in infos and not isinstance(infos[key], dict)


def column_of(value: Any, num_envs: int) -> Sequence[Any] | None:
    """Return the value if it has one entry per lane."""
    has_rows = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, (list, tuple))
    return value if has_rows and len(value) == num_envs else None


def _mask(value: Any, num_envs: int) -> Sequence[Any] | None:
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return None  # An env's own key that only looks like one.
    return column_of(value, num_envs)


def encode_final_obs(
    codec: SpaceCodec, final_obs: Any, ended: NDArray[np.bool_]
) -> list[bytes | None]:
    """Encode the terminal observations of the lanes that ended; the others get None.

    Gymnasium gives an object array with one observation, or None, per lane; some vector envs a
    dense batch.
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
    return codec.unflatten_row(codec.flatten_row(item), 0)
