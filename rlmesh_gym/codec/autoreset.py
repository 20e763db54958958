"""Autoreset modes: what a user typed, and what an environment says of itself."""

from __future__ import annotations

import warnings
from typing import Any

from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import ConfigurationError

MODE_KEY = "autoreset_mode"
"""Where an environment's metadata say how it resets its lanes."""

_MODES = {mode.name.replace("_", ""): mode for mode in AutoresetMode}


def mode_named(name: object) -> AutoresetMode | None:
    """Return the mode of that name, in any spelling such as ``"same-step"``; None for no mode."""
    if isinstance(name, str):
        return _MODES.get(name.upper().replace("_", "").replace("-", ""))
    return name if isinstance(name, AutoresetMode) else None


def as_autoreset_mode(value: AutoresetMode | str | None) -> AutoresetMode | None:
    """Return the mode that the user means.

    Args:
        value: A mode, its name in any spelling (``"SameStep"``, ``"same-step"``, ``"SAME_STEP"``),
            or None.

    Raises:
        ConfigurationError: Not a mode.
    """
    mode = mode_named(value)
    if mode is None and value is not None:
        known = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ConfigurationError(f"autoreset_mode must be one of {known} or None, got {value!r}")
    return mode


def find_autoreset_mode(envs: Any) -> AutoresetMode:
    """Return how an environment resets its lanes.

    The attribute of the innermost env comes first: Gymnasium 1.1 lets all vectors of one class
    share their metadata, so these may speak of another vector.

    Args:
        envs: A vector env, wrapped or not; a single env, which resets nothing by itself; or a
            vector env of Stable-Baselines3, which resets a lane within the step that ends it.

    Returns:
        The mode; NEXT_STEP, with a warning, for a vector env that does not say.

    Raises:
        ConfigurationError: It names a mode that there is not.
    """
    if not hasattr(envs, "num_envs"):
        return AutoresetMode.DISABLED
    base = getattr(envs, "unwrapped", envs)
    said = getattr(base, MODE_KEY, None)
    if said is None:
        said = (getattr(envs, "metadata", None) or {}).get(MODE_KEY)
    if said is not None:
        mode = mode_named(said)
        if mode is None:
            raise ConfigurationError(f"{envs}: unknown autoreset mode {said!r}")
        return mode
    if not hasattr(envs, "single_action_space"):
        return AutoresetMode.SAME_STEP
    warnings.warn(
        f"{envs} does not say how it resets its lanes (metadata['{MODE_KEY}']); "
        "taken for NEXT_STEP",
        UserWarning,
        stacklevel=3,
    )
    return AutoresetMode.NEXT_STEP
