"""What ``reset`` is given: seeds, options and ``reset_mask``, from Gymnasium's forms and into them.

Pure functions; they know lanes by number and nothing of environments.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from rlmesh_gym.errors import ConfigurationError

RESET_MASK = "reset_mask"
"""The option that names the lanes to reset: a bool array of shape ``(num_envs,)``."""

Seeds = int | np.integer[Any] | Sequence[SupportsIndex | None] | npt.NDArray[Any] | None

_MAX_SEED = 2**63 - 1
"""Seeds are int64 on the wire."""


def expand_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """Return one seed per lane: of an int ``s`` it makes ``s, s + 1 …``.

    Raises the ValueError and TypeError that Gymnasium does, and a ConfigurationError for a seed
    that is below 0 or above int64.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        first = int(seed)
        seeds: list[int | None] = [first + lane for lane in range(num_envs)]
    else:
        if isinstance(seed, (str, bytes)) or not hasattr(seed, "__len__"):
            raise TypeError(f"seed must be None, an int, or one int or None per lane, got {seed!r}")
        if len(seed) != num_envs:
            raise ValueError(
                "If seeds are passed as a list the length must match "
                f"num_envs={num_envs} but got length={len(seed)}."
            )
        seeds = [None if item is None else _integer(item, lane) for lane, item in enumerate(seed)]
    for lane, value in enumerate(seeds):
        if value is not None and not 0 <= value <= _MAX_SEED:
            raise ConfigurationError(
                f"reset: the seed of lane {lane} must be between 0 and {_MAX_SEED}, got {value}"
            )
    return seeds


def are_consecutive(seeds: Sequence[int]) -> bool:
    """Return whether seeds are ``s, s + 1, …``, which a vector env makes of the one seed ``s``."""
    return all(seed == seeds[0] + lane for lane, seed in enumerate(seeds))


def _integer(value: Any, lane: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"reset: the seed of lane {lane} must be an integer or None, got {value!r}"
        ) from None


def copy_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the options; a TypeError where they are no mapping."""
    if not isinstance(options, Mapping):
        raise TypeError(f"reset: options must be None or a mapping, got {options!r}")
    return dict(options)


def split_options(
    options: Mapping[str, Any] | None, num_envs: int
) -> tuple[dict[str, Any] | None, npt.NDArray[np.bool_] | None]:
    """Take ``reset_mask`` out of a copy of the options; wrappers outside still see it in theirs.

    Returns what goes to the lanes (``{}`` if there was only the mask), and a copy of the mask or
    None. A mask that will not do is refused as Gymnasium does it.
    """
    if options is None:
        return None, None
    rest = copy_options(options)
    if RESET_MASK not in rest:
        return rest, None
    mask = rest.pop(RESET_MASK)
    # Gymnasium's own sentences.
    name = f"`options['{RESET_MASK}']`"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"{name} must contain a boolean array with at least one True value, "
            f"got {RESET_MASK}={mask}"
        )
    return rest, mask.copy()


def warn_of_mask(options: Mapping[str, Any] | None) -> None:
    """Warn of the option ``mask``, which older documents of Gymnasium name; it resets all lanes."""
    if options is not None and "mask" in options:
        warnings.warn(
            "reset: the option 'mask' goes to the environments as it is and resets every lane; "
            f"to reset some lanes only, give options={{'{RESET_MASK}': mask}}",
            UserWarning,
            stacklevel=4,
        )


def lane_arguments(
    lanes: Sequence[int],
    seeds: Sequence[int | None],
    options: Mapping[str, Any] | None,
    num_envs: int,
) -> tuple[list[int | None] | None, dict[str, Any]]:
    """Return ``seed`` and ``options`` for some lanes of a vector env, with a seed each or none."""
    mask = np.zeros(num_envs, dtype=np.bool_)
    mask[list(lanes)] = True
    each: list[int | None] = [None] * num_envs
    for lane, seed in zip(lanes, seeds, strict=False):
        each[lane] = seed
    return each if len(seeds) else None, {**(options or {}), RESET_MASK: mask}
