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


_RESET = "partial reset (capability 'rlmesh_gym.partial_reset' or 'subset_step')"
_STEP = "subset step (capability 'subset_step')"
_OTHER_MODE = "an endpoint that does not reset in the same step"


def choose_conversion(endpoint: Endpoint, asked: AutoresetMode) -> Conversion:
    """Return the conversion from the endpoint's mode to the one asked for.

    An AutoresetError says what the endpoint lacks for that, a ConfigurationError what it lacks for
    ``max_episode_steps``.
    """
    limited = endpoint.max_episode_steps is not None
    conversion, missing = _plan(endpoint, asked, limited=limited)
    if not missing:
        return conversion(endpoint)
    what = " and ".join(missing)
    if not _plan(endpoint, asked, limited=False)[1]:
        raise ConfigurationError(
            f"{endpoint.address}: max_episode_steps under {asked.value} needs {what}, which the "
            f"endpoint ({endpoint.mode.value}, {endpoint.num_envs} lanes) lacks; put the limit on "
            "the environment itself"
        )
    plans = {mode.value: _plan(endpoint, mode, limited=limited) for mode in AutoresetMode}
    possible = [mode for mode, (_, missing) in plans.items() if not missing]
    raise AutoresetError(
        f"{endpoint.address} resets its {endpoint.num_envs} lanes by {endpoint.mode.value}; "
        f"autoreset_mode {asked.value!r} over it needs {what}, which it lacks. "
        f"Modes that work: {', '.join(possible)}"
    )


def _plan(
    endpoint: Endpoint, asked: AutoresetMode, *, limited: bool
) -> tuple[type[Conversion], list[str]]:
    """Return the conversion of one cell of the table, and what the endpoint lacks for it."""
    mode = endpoint.mode
    is_native = asked is mode and not limited
    conversion: type[Conversion]
    needs: tuple[str, ...] = () if is_native else (_RESET,)
    if asked is AutoresetMode.SAME_STEP:
        conversion = SameStep
    elif mode is AutoresetMode.SAME_STEP:
        conversion = HeldFirstObservation
        needs = (_RESET,) if limited else ()
        if asked is AutoresetMode.NEXT_STEP:
            needs = (_STEP, _OTHER_MODE) if limited else (_STEP,)
    elif asked is AutoresetMode.DISABLED:
        conversion = Conversion
    else:
        conversion = NativeNextStep if is_native else NextStepByLanes
        needs = () if is_native else (_RESET, _STEP)
    has = {_RESET: endpoint.can_reset_lanes, _STEP: endpoint.can_step_lanes}
    return conversion, [need for need in needs if not has.get(need, False)]
