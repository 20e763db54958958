"""Keeps tokens out of what Gymnasium stores and prints."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["without_token"]


def without_token(spec: EnvSpec | None) -> EnvSpec | None:
    """Return the spec, or a copy whose arguments hold no ``token``.

    ``gym.make`` writes every argument into the spec, which is printed, logged and saved as JSON.
    An environment that is made again from such a spec reads ``RLMESH_GYM_TOKEN``.
    """
    if spec is None or "token" not in spec.kwargs:
        return spec
    clean = copy.deepcopy(spec)
    del clean.kwargs["token"]
    return clean
