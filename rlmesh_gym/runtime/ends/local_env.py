"""A run's environment in this process.

Its calls run on the thread of the run and cannot be interrupted; a cancellation takes effect
between them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlmesh_gym.codec import EnvContract, as_frame, final_info, find_autoreset_mode
from rlmesh_gym.runtime.calls import CompletedCall
from rlmesh_gym.runtime.ends.protocols import LOCAL, ResetReply, StepReply
from rlmesh_gym.runtime.ends.rows import RowFormat, Rows
from rlmesh_gym.runtime.report.records import jsonable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = ["LocalRuntimeEnv"]

_UNNAMED = "UnknownEnv-v1"


class LocalRuntimeEnv:
    """A vector env of this process, :class:`~rlmesh_gym.RemoteVectorEnv` included.

    It is not closed when the run is over.

    Args:
        envs: The vector env, wrapped or not; a single env is put into a vector of one lane.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]) -> None:
        self.endpoint = LOCAL
        self.envs: VectorEnv[Any, Any, Any]
        if isinstance(envs, VectorEnv):
            self.envs = envs
        else:
            env = envs
            self.envs = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.DISABLED)
        self._contract = EnvContract(
            env_id=_id_of(envs),
            single_observation_space=self.envs.single_observation_space,
            single_action_space=self.envs.single_action_space,
            metadata=dict(self.envs.metadata or {}),
            num_envs=self.envs.num_envs,
            render_mode=self.envs.render_mode,
            autoreset_mode=find_autoreset_mode(self.envs),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.envs!r})"

    @property
    def contract(self) -> EnvContract:
        """Spaces, lanes, autoreset mode."""
        return self._contract

    @property
    def capabilities(self) -> Mapping[str, str]:
        """None are announced in one process."""
        return {}

    @property
    def has_lane_operations(self) -> bool:
        """A vector env always steps all of its lanes."""
        return False

    @property
    def has_partial_reset(self) -> bool:
        """Whether ``reset_mask`` may be used."""
        if self._contract.autoreset_mode is AutoresetMode.DISABLED:
            return True
        return isinstance(self.envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv))

    @property
    def action_format(self) -> RowFormat:
        """Format of the actions it takes."""
        return self._action_format

    @property
    def observation_format(self) -> RowFormat:
        """Format of the observations it gives."""
        return self._observation_format

    def connect(self, limits: RuntimeLimits) -> None:
        """Compile the formats."""
        del limits
        self._action_format = RowFormat(self._contract.single_action_space)
        self._observation_format = RowFormat(self._contract.single_observation_space)

    def reset(
        self,
        *,
        lanes: Sequence[int] | None,
        seeds: Sequence[int] | None,
        episode_ids: Sequence[str],
        options: Mapping[str, Any] | None,
    ) -> CompletedCall[ResetReply]:
        """Reset all lanes, or some through ``reset_mask``.

        A vector that takes one seed only gets the first lane's.
        """
        del episode_ids
        began = time.perf_counter_ns()
        given = None if options is None else dict(options)
        num_envs = self.envs.num_envs
        asked = range(num_envs) if lanes is None else lanes
        if lanes is not None:
            mask = np.zeros(num_envs, np.bool_)
            mask[list(lanes)] = True
            given = {**(given or {}), "reset_mask": mask}
        seed: Any = None
        if seeds is not None:
            seed = [None] * num_envs
            for lane, value in zip(asked, seeds, strict=True):
                seed[lane] = value
        is_seeded = True
        try:
            observations, _ = self.envs.reset(seed=seed, options=given)
        except (gymnasium.error.Error, TypeError):
            if seeds is None or isinstance(self.envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
                raise
            # VectorEnv promises to take one int; vectors that step their lanes as one take no more.
            observations, _ = self.envs.reset(seed=seeds[0], options=given)
            is_seeded = False
        rows = self._observed(observations).take(asked)
        return CompletedCall(ResetReply(rows, is_seeded), time.perf_counter_ns() - began)

    def step(
        self, actions: Rows, *, lanes: Sequence[int] | None, episode_ids: Sequence[str]
    ) -> CompletedCall[StepReply]:
        """Step all lanes."""
        del lanes, episode_ids
        batch = actions.batch()
        num_rows = self.envs.num_envs
        began = time.perf_counter_ns()
        observations, rewards, terminations, truncations, infos = self.envs.step(batch)
        elapsed = time.perf_counter_ns() - began

        def last_info(row: int, episode_id: str) -> dict[str, Any]:
            del episode_id
            info: dict[str, Any] = jsonable(final_info(infos, row, num_rows))
            return info

        reply = StepReply(
            observations=self._observed(observations),
            rewards=np.asarray(rewards, np.float64),
            terminations=np.asarray(terminations, np.bool_),
            truncations=np.asarray(truncations, np.bool_),
            final_info=last_info,
        )
        return CompletedCall(reply, elapsed)

    def _observed(self, observations: Any) -> Rows:
        num_rows = self.envs.num_envs
        form = self._observation_format
        leaves = form.codec.flatten(observations, num_rows)
        if self.envs is not self.envs.unwrapped or getattr(self.envs, "copy", None) is not True:
            # Whoever does not promise copies may write its next observation over this one.
            leaves = [leaf.copy() for leaf in leaves]
        return form.from_leaves(leaves, num_rows)

    def render(self, lane: int) -> CompletedCall[NDArray[np.uint8] | None]:
        """Fetch one lane's frame from ``render``."""
        began = time.perf_counter_ns()
        frames: Any = self.envs.render() if self.envs.render_mode is not None else None
        frame: NDArray[np.uint8] | None = None
        if isinstance(frames, (tuple, list)) and lane < len(frames) and frames[lane] is not None:
            frame = as_frame(frames[lane])
        return CompletedCall(frame, time.perf_counter_ns() - began)

    def close(self, timeout: float) -> None:
        """Leave the env open: it belongs to whoever made it."""
        del timeout


def _id_of(envs: VectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]) -> str:
    served = getattr(envs.unwrapped, "contract", None)
    if isinstance(served, EnvContract):
        # What runs elsewhere, in place of the id that stands for all remote environments.
        return served.env_id
    # A vector that was built from functions has no spec; its environments have.
    inner = envs.unwrapped.envs if isinstance(envs.unwrapped, SyncVectorEnv) else ()
    specs = (getattr(env, "spec", None) for env in (envs, *inner[:1]))
    return next((spec.id for spec in specs if spec is not None), _UNNAMED)
