"""Members of spaces, and spaces compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec.spaces.space_encoding import encode_space

if TYPE_CHECKING:
    from rlmesh_gym.codec.spaces.space_codec import Leaves, SpaceCodec

__all__ = ["filler_action", "legal_member", "same_space"]


def legal_member(space: spaces.Space[Any]) -> Any:
    """Return a member of a space that has a form on the wire, as near to zero as there is one."""
    if isinstance(space, spaces.Dict):
        return {key: legal_member(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(legal_member(child) for child in space.spaces)
    if isinstance(space, spaces.Box):
        zeros = np.zeros(space.shape, dtype=space.dtype)
        return np.asarray(np.clip(zeros, space.low, space.high))
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return np.clip(0, space.start, space.start + count - 1).astype(space.dtype)
    if isinstance(space, spaces.Text):
        return next(iter(space.character_list), "") * space.min_length
    return np.zeros(space.shape or (), dtype=space.dtype)


def filler_action(codec: SpaceCodec) -> Leaves:
    """Return a legal action for lanes whose action is not used, as leaves with one row."""
    return codec.flatten_row(legal_member(codec.space))


def same_space(first: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Return whether two spaces are the same in all that matters to their values.

    Stricter than ``==``: dtypes and bounds are the same to the last bit, and the keys of a Dict
    are in the same order.

    Raises:
        UnsupportedSpaceError: One of them has no form on the wire.
    """
    return first is other or encode_space(first) == encode_space(other)
