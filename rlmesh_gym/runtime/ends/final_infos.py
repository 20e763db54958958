"""One lane's last info, out of any of the forms in which infos of several lanes come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.plain_data import jsonable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["final_info_of"]

# Observations have their own way, and a warning about the wire is no info of the environment.
_NOT_INFO = frozenset({"final_obs", "rlmesh.conformance.warning"})


def final_info_of(infos: Mapping[str, Any], row: int, num_rows: int) -> dict[str, Any]:
    """Take the info of an ended lane out of the infos of its last step.

    Understood are Gymnasium's batched form (arrays or lists with a mask ``_key`` beside each, and
    ``final_info`` under SAME_STEP), a list of one dict per lane under ``final_info``, and a bare
    dict for a single lane.

    Args:
        infos: As they came, decoded.
        row: Row of the lane in the step's answer.
        num_rows: Rows of that answer.

    Returns:
        Plain data, fresh.
    """
    final = infos.get("final_info")
    if isinstance(final, (list, tuple)) and len(final) == num_rows:
        chosen = final[row]
    elif isinstance(final, dict):
        chosen = _slice(final, row, num_rows)
    else:
        chosen = _slice(infos, row, num_rows)
    if not isinstance(chosen, dict):
        return {}
    plain: dict[str, Any] = jsonable(
        {key: value for key, value in chosen.items() if key not in _NOT_INFO}
    )
    return plain


def _slice(infos: Mapping[str, Any], row: int, num_rows: int) -> dict[str, Any]:
    lane: dict[str, Any] = {}
    for key, value in infos.items():
        if key in _NOT_INFO or _is_mask(infos, key, num_rows):
            continue
        mask = _column(infos.get(f"_{key}"), num_rows)
        if mask is None:
            lane[key] = value
        elif mask[row]:
            if isinstance(value, dict):
                lane[key] = _slice(value, row, num_rows)
            else:
                column = _column(value, num_rows)
                lane[key] = value if column is None else column[row]
    return lane


def _is_mask(infos: Mapping[str, Any], key: object, num_rows: int) -> bool:
    # Names of an env's own nested dicts need not be strings.
    if not isinstance(key, str) or not key.startswith("_"):
        return False
    return key[1:] in infos and _column(infos[key], num_rows) is not None


def _column(value: Any, num_rows: int) -> Sequence[Any] | None:
    """Return the value if it has one entry per row."""
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) == num_rows:
        return value  # type: ignore[return-value]
    return None
