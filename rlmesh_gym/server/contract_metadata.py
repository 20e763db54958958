"""The part of an environment's metadata that the wire can carry."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import encode_meta_value
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from rlmesh_gym.codec import EnvContract

__all__ = ["without_unsupported"]


def without_unsupported(contract: EnvContract) -> EnvContract:
    """Return the contract without metadata entries that have no wire form, warning of each.

    Metadata is free text about the environment; an odd entry is no reason not to serve it.
    """
    kept: dict[str, Any] = {}
    entries: dict[Any, Any] = contract.metadata
    for key, value in entries.items():
        reason = "its key is not a str" if not isinstance(key, str) else _fault(value)
        if reason is None:
            kept[key] = value
        else:
            warnings.warn(
                f"metadata[{key!r}] is not sent to clients: {reason}", UserWarning, stacklevel=2
            )
    return contract if len(kept) == len(contract.metadata) else replace(contract, metadata=kept)


def _fault(value: Any) -> str | None:
    try:
        encode_meta_value(value)
    except CodecError as error:
        return str(error)
    return None
