"""What holds for scalar envs that are served as lanes: equal spaces, and each one is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import gymnasium as gym

__all__ = ["check_equal_spaces", "close_all"]


def check_equal_spaces(envs: Sequence[gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    """Return the first env, whose spaces are everybody's.

    Raises:
        ConfigurationError: No envs, or their spaces differ.
    """
    if not envs:
        raise ConfigurationError("a list of environments to serve must not be empty")
    first = envs[0]
    for lane, env in enumerate(envs):
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != getattr(first, name):
                raise ConfigurationError(
                    f"lane {lane}: {name} is {getattr(env, name)}, that of lane 0 is "
                    f"{getattr(first, name)}; the lanes of one endpoint share their spaces"
                )
    return first


def close_all(envs: Iterable[gym.Env[Any, Any]]) -> None:
    """Close every environment, also when one of them fails to.

    Raises:
        BaseException: The first failure, ``SystemExit`` included.
    """
    failure: BaseException | None = None
    for env in envs:
        try:
            env.close()
        except BaseException as error:  # noqa: PERF203 - the others must close too
            failure = failure or error
    if failure is not None:
        raise failure
