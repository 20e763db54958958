"""The end of lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gymnasium as gym

__all__ = ["close_all"]


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
