"""From the endpoint's autoreset mode to the one asked for: one class per kind of conversion."""

from __future__ import annotations

from rlmesh_gym.env.autoreset.choice import choose_conversion
from rlmesh_gym.env.autoreset.conversion import Conversion

__all__ = ["Conversion", "choose_conversion"]
