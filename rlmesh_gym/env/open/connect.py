"""From endpoint sources to a group of open endpoints, with everything checked on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.codec import same_space
from rlmesh_gym.env.drive.group import EndpointGroup
from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium.vector import AutoresetMode

    from rlmesh_gym.env.drive.recovery import Recovery
    from rlmesh_gym.env.open.sources import AnyEnvSession, Source
    from rlmesh_gym.rpc import Timeouts

__all__ = ["connect", "step_limit"]


def step_limit(value: int | None) -> int | None:
    """Return ``max_episode_steps``; -1 means none, as in ``gymnasium.make``.

    Raises:
        ConfigurationError: Not a positive number.
    """
    if value is None or value == -1:
        return None
    if not _is_whole(value) or value < 1:
        raise ConfigurationError(f"max_episode_steps must be 1 or more, got {value!r}")
    return int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def connect(
    sources: Sequence[Source],
    *,
    autoreset_mode: AutoresetMode | None,
    timeouts: Timeouts,
    num_envs: int | None = None,
    single: bool = False,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    recovery: Recovery | None = None,
    episodes_kept: int | None = 1000,
) -> EndpointGroup:
    """Connect to all sources and make a group of them; on a failure nothing stays open.

    Args:
        sources: At least one.
        autoreset_mode: Mode to show; None for the endpoints' own.
        timeouts: Of every kind of call.
        num_envs: Lanes that the user expects; None and 1 expect nothing.
        single: There must be one lane.
        render_mode: What the endpoints must render; None for anything.
        max_episode_steps: Length at which the client truncates; None for no limit.
        recovery: What to do about lost endpoints; None raises.
        episodes_kept: Size of the episode log.

    Raises:
        RemoteError: One of the sources cannot be reached.
        ConfigurationError: What is there is not what was asked for.
    """
    if episodes_kept is not None and (not _is_whole(episodes_kept) or episodes_kept < 0):
        raise ConfigurationError(f"episodes_kept must be 0 or more, or None, got {episodes_kept!r}")
    sessions: list[AnyEnvSession] = []
    try:
        for source in sources:
            source.prepare()
        for source in sources:
            sessions.append(source.open())
            _check_alike(sessions[0], sessions[-1])
        _check_width(sessions, num_envs, single=single)
        _check_render_mode(sessions, render_mode)
        return EndpointGroup(
            sources,
            sessions,
            autoreset_mode=autoreset_mode or _common_mode(sessions),
            timeouts=timeouts,
            max_episode_steps=max_episode_steps,
            recovery=recovery,
            episodes_kept=episodes_kept,
        )
    except BaseException as error:
        for session in sessions:
            session.close()
        for source in sources:
            source.close(0.0)
        if isinstance(error, TypeError):
            # gymnasium.make repeats a TypeError together with all arguments, a token among them.
            raise ConfigurationError(str(error)) from error
        raise


def _check_alike(first: AnyEnvSession, other: AnyEnvSession) -> None:
    """Check that two endpoints have the same spaces.

    Raises:
        ConfigurationError: They differ.
    """
    for name in ("single_observation_space", "single_action_space"):
        expected, got = getattr(first.contract, name), getattr(other.contract, name)
        if not same_space(expected, got):
            raise ConfigurationError(
                f"{other.endpoint}: {name} is {got}, but {first.endpoint} has {expected}; the "
                "endpoints of one vector must serve the same spaces"
            )


def _check_width(sessions: Sequence[AnyEnvSession], num_envs: int | None, *, single: bool) -> None:
    total = sum(session.contract.num_envs for session in sessions)
    names = ", ".join(session.endpoint for session in sessions)
    if single and total != 1:
        raise ConfigurationError(
            f"{names} serves {total} lanes, and one environment takes an endpoint with 1; use "
            "RemoteVectorEnv or gymnasium.make_vec"
        )
    if num_envs not in (None, 1, total):
        raise ConfigurationError(
            f"num_envs={num_envs}, but {names} has {total} lanes in total; give {total}, or leave "
            "num_envs out"
        )


def _check_render_mode(sessions: Sequence[AnyEnvSession], asked: str | None) -> None:
    for session in sessions:
        served = session.contract.render_mode
        if asked is not None and asked != served:
            raise ConfigurationError(
                f"render_mode={asked!r}, but {session.endpoint} serves an environment with "
                f"render_mode={served!r}; start the endpoint with the mode wanted"
            )


def _common_mode(sessions: Sequence[AnyEnvSession]) -> AutoresetMode:
    modes = {session.contract.autoreset_mode for session in sessions}
    if len(modes) == 1:
        return modes.pop()
    each = ", ".join(
        f"{session.endpoint} {session.contract.autoreset_mode.value}" for session in sessions
    )
    raise ConfigurationError(
        f"the endpoints differ in their autoreset mode ({each}); say which one to show with "
        "autoreset_mode="
    )
