"""What a policy must know of the env that it acts in: spaces, lanes, boundaries, description.

Envs are recognised by what they have, never by their class: remote ones by their lane table, vector
envs by their single spaces.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec import EnvSpec, find_autoreset_mode, find_env_id, split_metadata
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.policy.caller_warning import warn_caller
from rlmesh_gym.policy.episodes import LocalEpisodes, TrackedEnv, TrackedEpisodes

if TYPE_CHECKING:
    from rlmesh_gym.policy.episodes import Episodes


@dataclass(frozen=True)
class EnvView:
    """An env as a policy sees it; the spaces are those of one lane."""

    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    num_envs: int
    episodes: Episodes
    env_spec: EnvSpec


def view_env(
    envs: Any,
    single_observation_space: spaces.Space[Any] | None,
    single_action_space: spaces.Space[Any] | None,
    num_envs: int | None,
) -> EnvView:
    """Look at an env, through its wrappers.

    Spaces are those of the outermost wrapper, which is what the policy sees and answers; the lane
    table and the metadata are those of the innermost env. Arguments and errors are those of
    ``RemotePolicy``.
    """
    if envs is not None:
        own = getattr(envs, "num_envs", 1)
        if num_envs not in (None, own):
            raise ConfigurationError(f"num_envs={num_envs}, but the env has {own} lanes")
        num_envs = int(own)
        single_observation_space = single_observation_space or _space(envs, "observation_space")
        single_action_space = single_action_space or _space(envs, "action_space")
    if single_observation_space is None or single_action_space is None:
        raise ConfigurationError(
            "a policy needs envs, or single_observation_space and single_action_space (and "
            "num_envs for several lanes)"
        )
    lanes = _count(1 if num_envs is None else num_envs)
    base = getattr(envs, "unwrapped", envs)
    contract = getattr(base, "contract", None)
    metadata, left_out = split_metadata(getattr(contract or base, "metadata", None) or {})
    for key, reason in left_out.items():
        warn_caller(f"metadata[{key!r}] of the env is not told to the model: {reason}")
    return EnvView(
        single_observation_space,
        single_action_space,
        lanes,
        TrackedEpisodes(base, lanes)
        if isinstance(base, TrackedEnv)
        else LocalEpisodes(lanes, find_autoreset_mode(envs), warns=envs is not None or lanes > 1),
        EnvSpec(find_env_id(envs), single_observation_space, single_action_space, metadata),
    )


def _space(envs: Any, name: str) -> spaces.Space[Any]:
    """Space of one lane: ``single_*`` of a vector env, the plain one of any other."""
    space: spaces.Space[Any] | None = getattr(envs, f"single_{name}", None)
    if space is None:
        space = getattr(envs, name, None)
    if space is None:
        raise ConfigurationError(
            "envs must be a vector env, a single env or a vector env of Stable-Baselines3, got "
            f"{envs!r} without {name}; the model's address comes first, then the env"
        )
    return space


def _count(num_envs: Any) -> int:
    try:
        count = operator.index(num_envs)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigurationError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
    return count


def is_unbatched(space: spaces.Space[Any], value: Any) -> bool | None:
    """Tell one observation from a batch of one, by the first leaf that shows the difference.

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
