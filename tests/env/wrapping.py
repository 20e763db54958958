"""Two wrapped vectors side by side: one remote, one that Gymnasium's wrappers get right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlmesh_gym.env import RemoteVectorEnv
from tests.env.comparison import assert_equal
from tests.env.seeded_env import SeededEnv

__all__ = ["CarefulSyncVectorEnv", "Wrap", "reference", "same_results", "without_times"]

Wrap = Callable[[Any], VectorEnv[Any, Any, Any]]


class CarefulSyncVectorEnv(SyncVectorEnv):
    """Leaves ``reset_mask`` in the caller's options.

    Gymnasium's takes it out of them, and wrappers outside then believe that all lanes were reset.
    """

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=None if options is None else dict(options))


def reference(
    num_envs: int, mode: AutoresetMode, *, render_mode: str | None = None, **kwargs: Any
) -> CarefulSyncVectorEnv:
    makers = [partial(SeededEnv, render_mode=render_mode, **kwargs)] * num_envs
    return CarefulSyncVectorEnv(makers, autoreset_mode=mode)


def without_times(result: Any) -> Any:
    """Leave out how long episodes took, the one thing that no two runs share."""
    infos = result[-1]
    for info in [infos] if isinstance(infos, dict) else infos:
        if "episode" in info:
            info["episode"].pop("t")
            info["episode"].pop("_t", None)
    return result


def same_results(
    remote: RemoteVectorEnv,
    local: SyncVectorEnv,
    wrap: Wrap,
    *,
    steps: int = 80,
    partial_resets: bool = True,
    close: bool = False,
) -> tuple[VectorEnv[Any, Any, Any], VectorEnv[Any, Any, Any]]:
    """Drive both under ``wrap`` with the same actions and resets and compare all results.

    Args:
        remote: To be wrapped.
        local: The same lanes here; closed at the end.
        wrap: Puts wrappers around a vector.
        steps: How many.
        partial_resets: Reset some lanes now and then; else only all of them.
        close: Close both wrapped vectors at the end.

    Returns:
        Both wrapped vectors, for a look at what they gathered.
    """
    mode = remote.autoreset_mode
    left, right = wrap(remote), wrap(local)
    generator = np.random.default_rng(1)
    right.action_space.seed(5)
    assert_equal(without_times(left.reset(seed=3)), without_times(right.reset(seed=3)), "reset")
    ended = np.zeros(remote.num_envs, dtype=np.bool_)
    for step in range(steps):
        must = mode is AutoresetMode.DISABLED and bool(ended.any())
        if must or generator.random() < 0.04:
            mask = ended.copy() if must else generator.random(remote.num_envs) < 0.5
            if not partial_resets or not mask.any():
                mask[:] = True
            got = left.reset(options={"reset_mask": mask.copy()})
            expected = right.reset(options={"reset_mask": mask.copy()})
            assert_equal(without_times(got), without_times(expected), f"reset before step {step}")
        actions = right.action_space.sample()
        got = left.step(_copy(actions))  # type: ignore[assignment]
        expected = right.step(_copy(actions))  # type: ignore[assignment]
        assert_equal(without_times(got), without_times(expected), f"step {step}")
        ended = expected[2] | expected[3]  # type: ignore[misc]
    if close:
        left.close()
        right.close()
    local.close()
    return left, right


def _copy(actions: Any) -> Any:
    # Some wrappers write into the array that they are given.
    return actions.copy() if isinstance(actions, np.ndarray) else actions
