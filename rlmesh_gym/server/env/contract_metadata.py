"""The part of an environment's metadata that the wire can carry."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from rlmesh_gym.codec import split_metadata

if TYPE_CHECKING:
    from rlmesh_gym.codec import EnvContract

__all__ = ["without_unsupported"]


def without_unsupported(contract: EnvContract) -> EnvContract:
    """Return the contract without metadata entries that have no wire form, warning of each."""
    kept, left_out = split_metadata(contract.metadata)
    for key, reason in left_out.items():
        warnings.warn(
            f"metadata[{key!r}] is not sent to clients: {reason}", UserWarning, stacklevel=2
        )
    return replace(contract, metadata=kept) if left_out else contract
