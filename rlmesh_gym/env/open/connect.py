"""From what the user typed to a group of open endpoints, with everything checked on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import same_space
from rlmesh_gym.env.drive.group import EndpointGroup
from rlmesh_gym.env.open.embedded import EmbeddedServer
from rlmesh_gym.env.open.sources import AddressSource
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc import parse_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.vector import AutoresetMode

    from rlmesh_gym.env.drive.recovery import Recovery
    from rlmesh_gym.env.open.sources import AnyEnvSession, ConnectionOptions, Source
    from rlmesh_gym.rpc import Timeouts


ADDRESS_VARIABLE = "RLMESH_GYM_ADDRESS"


def step_limit(value: int | None) -> int | None:
    """Return ``max_episode_steps``; -1 means none, as in ``gymnasium.make``."""
    if value is None or value == -1:
        return None
    if not _is_whole(value) or value < 1:
        raise ConfigurationError(f"max_episode_steps must be 1 or more, got {value!r}")
    return int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def find_sources(
    *,
    address: str | None,
    addresses: Sequence[str] | None = None,
    env_id: str | None,
    env_kwargs: Mapping[str, Any],
    options: ConnectionOptions,
    num_envs: int | None = None,
    workers: int = 1,
    thread: str | None = None,
    autoreset_mode: AutoresetMode | None,
    render_mode: str | None,
) -> list[Source]:
    """Return the endpoints meant, in the order: addresses, ``env_id``, the variable.

    From ``env_kwargs`` on all is for embedded endpoints, but ``options``. An ``autoreset_mode`` of
    None serves bare lanes, reset and stepped one by one.
    """
    found = _addresses(address, addresses)
    if found is None and env_id is not None:
        config = {
            "env_id": env_id,
            "autoreset_mode": None if autoreset_mode is None else autoreset_mode.value,
            "render_mode": render_mode,
            "thread": thread,
            "env_kwargs": dict(env_kwargs),
        }
        options = replace(options, tls=None)
        return [
            EmbeddedServer({**config, "num_envs": share}, options)
            for share in _shares(1 if num_envs is None else num_envs, workers)
        ]
    names = ", ".join(sorted(env_kwargs))
    if found is None:
        text = os.environ.get(ADDRESS_VARIABLE, "")
        found = [part.strip() for part in text.split(",") if part.strip()]
        if not found:
            unknown = f" (unknown: {names})" if names else ""
            raise ConfigurationError(
                "no endpoint: give address= or addresses=, or env_id= for an embedded one, or set "
                f"the environment variable {ADDRESS_VARIABLE}{unknown}"
            )
    if env_id is None and names:
        raise ConfigurationError(
            f"unknown arguments: {names}. Arguments for the environment itself go with env_id=; a "
            "running endpoint has made its environment already"
        )
    for each in found:
        if not isinstance(each, str):
            several = "; several go to addresses=" if isinstance(each, (list, tuple)) else ""
            raise ConfigurationError(f"an address must be text, got {each!r}{several}")
        parse_address(each)
    return [AddressSource(each, options) for each in found]


def _addresses(address: str | None, addresses: Sequence[str] | None) -> Sequence[str] | None:
    if address is not None and addresses is not None:
        raise ConfigurationError("give either address or addresses, not both")
    if addresses is None:
        return None if address is None else [address]
    if isinstance(addresses, str) or not isinstance(addresses, Iterable):
        raise ConfigurationError(
            f"addresses must be a sequence of addresses, got {addresses!r}; one address goes "
            "to address"
        )
    found = list(addresses)
    if not found:
        raise ConfigurationError("addresses is empty")
    return found


def _shares(num_envs: int, workers: int) -> list[int]:
    """Spread lanes over processes."""
    try:
        num_envs, workers = index(num_envs), index(workers)
    except TypeError:
        raise ConfigurationError(
            f"num_envs and workers must be whole numbers, got {num_envs!r} and {workers!r}"
        ) from None
    if num_envs < 1:
        raise ConfigurationError(f"num_envs must be 1 or more, got {num_envs}")
    if not 1 <= workers <= num_envs:
        raise ConfigurationError(
            f"workers must be between 1 and num_envs={num_envs}, got {workers}"
        )
    share, extra = divmod(num_envs, workers)
    return [share + (worker < extra) for worker in range(workers)]


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

    ``num_envs`` lanes are expected, None and 1 expect nothing; ``single`` wants just one.
    ``autoreset_mode`` is the mode to show, None the endpoints' own; ``recovery`` says what to do
    about lost endpoints, None raises.
    """
    if episodes_kept is not None and (not _is_whole(episodes_kept) or episodes_kept < 0):
        raise ConfigurationError(f"episodes_kept must be 0 or more, or None, got {episodes_kept!r}")
    sessions: list[AnyEnvSession] = []
    try:
        for source in sources:
            source.prepare()
        for source in sources:
            sessions.append(source.open())
            check_alike(sessions[0], sessions[-1])
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


def check_alike(first: AnyEnvSession, other: AnyEnvSession, *, of: str = "vector") -> None:
    """Refuse endpoints of one vector, or of one run, whose spaces differ."""
    for name in ("single_observation_space", "single_action_space"):
        expected, got = getattr(first.contract, name), getattr(other.contract, name)
        if not same_space(expected, got):
            raise ConfigurationError(
                f"{other.endpoint}: {name} is {got}, but {first.endpoint} has {expected}; the "
                f"endpoints of one {of} must serve the same spaces"
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
    each = ", ".join(f"{one.endpoint} {one.contract.autoreset_mode.value}" for one in sessions)
    raise ConfigurationError(
        f"the endpoints differ in their autoreset mode ({each}); say which one to show with "
        "autoreset_mode="
    )
