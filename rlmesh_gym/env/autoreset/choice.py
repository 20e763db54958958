"""Which conversion serves the mode asked for, or why none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.autoreset.conversion import Conversion
from rlmesh_gym.env.autoreset.next_step import NativeNextStep, NextStepByLanes
from rlmesh_gym.env.autoreset.same_step import HeldFirstObservation, SameStep
from rlmesh_gym.errors import AutoresetError, ConfigurationError

if TYPE_CHECKING:
    from rlmesh_gym.env.drive.endpoint import Endpoint

__all__ = ["choose_conversion"]

_RESET = "partial reset (capability 'rlmesh_gym.partial_reset' or 'subset_step')"
_STEP = "subset step (capability 'subset_step')"


def choose_conversion(endpoint: Endpoint, asked: AutoresetMode) -> Conversion:
    """Return the conversion from the endpoint's mode to the one asked for.

    Raises:
        AutoresetError: The endpoint lacks a capability that the conversion needs.
        ConfigurationError: It lacks one that ``max_episode_steps`` needs.
    """
    conversion, needs = _plan(endpoint, asked)
    missing = _missing(endpoint, needs)
    if not missing:
        return conversion(endpoint)
    what = " and ".join(missing)
    if not _missing(endpoint, _plan(endpoint, asked, limited=False)[1]):
        raise ConfigurationError(
            f"{endpoint.address}: max_episode_steps under {asked.value} needs {what}, which the "
            f"endpoint ({endpoint.mode.value}, {endpoint.num_envs} lanes) lacks; put the limit on "
            "the environment itself"
        )
    possible = [
        mode.value for mode in AutoresetMode if not _missing(endpoint, _plan(endpoint, mode)[1])
    ]
    raise AutoresetError(
        f"{endpoint.address} resets its {endpoint.num_envs} lanes by {endpoint.mode.value}; "
        f"autoreset_mode {asked.value!r} over it needs {what}, which it lacks. "
        f"Modes that work: {', '.join(possible)}"
    )


def _missing(endpoint: Endpoint, needs: tuple[str, ...]) -> list[str]:
    has = {_RESET: endpoint.can_reset_lanes, _STEP: endpoint.can_step_lanes}
    return [need for need in needs if not has.get(need, False)]


def _plan(
    endpoint: Endpoint, asked: AutoresetMode, *, limited: bool | None = None
) -> tuple[type[Conversion], tuple[str, ...]]:
    """Return the conversion of one cell of the table, and what it needs."""
    mode = endpoint.mode
    if limited is None:
        limited = endpoint.max_episode_steps is not None
    is_native = asked is mode and not limited
    if asked is AutoresetMode.SAME_STEP:
        return SameStep, () if is_native else (_RESET,)
    if asked is AutoresetMode.DISABLED:
        if mode is AutoresetMode.SAME_STEP:
            return HeldFirstObservation, (_RESET,) if limited else ()
        return Conversion, () if is_native else (_RESET,)
    if is_native:
        return NativeNextStep, ()
    if mode is AutoresetMode.SAME_STEP:
        own_limit = ("an endpoint that does not reset in the same step",) if limited else ()
        return HeldFirstObservation, (_STEP, *own_limit)
    return NextStepByLanes, (_RESET, _STEP)
