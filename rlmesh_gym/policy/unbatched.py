"""One lane's observation told from a batch of one lane's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    import gymnasium

__all__ = ["is_unbatched"]


def is_unbatched(space: gymnasium.Space[Any], value: Any) -> bool | None:
    """Tell one observation from a batch of one, by the first leaf that shows the difference.

    Returns:
        None where nothing shows it, as in an empty Dict or in what fits neither.
    """
    if isinstance(space, spaces.Dict):
        named = value if isinstance(value, dict) else {}
        children = [(child, named[key]) for key, child in space.items() if key in named]
    elif isinstance(space, spaces.Tuple):
        members = value if isinstance(value, (tuple, list)) else ()
        children = list(zip(space.spaces, members, strict=False))
    elif isinstance(space, spaces.Text):
        return isinstance(value, str)
    else:
        return np.ndim(value) == len(space.shape or ())
    answers = (is_unbatched(child, member) for child, member in children)
    return next((answer for answer in answers if answer is not None), None)
