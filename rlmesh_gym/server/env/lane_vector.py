"""A Gymnasium vector env over scalar envs, stepped one after the other in this process.

Values, infos and masks are those of ``gymnasium.vector.SyncVectorEnv``. It differs where that one
costs time or truth: observations are written once into buffers that are used again (no deep copy),
and under SAME_STEP the terminal observation and info are copied before the lane is reset, so a lane
that changes its arrays in place cannot overwrite them. An info value that does not fit the array
that another lane's has begun turns that key into objects, instead of failing the step. It knows
nothing of the wire.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlmesh_gym.codec import add_info
from rlmesh_gym.codec.reset_arguments import expand_seeds, split_options
from rlmesh_gym.errors import ResetNeededError
from rlmesh_gym.server.env.lane_envs import check_equal_spaces, close_all
from rlmesh_gym.server.env.lane_values import as_flag, as_reward, detached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium as gym
    from numpy.typing import NDArray

    StepResult = tuple[
        Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]

__all__ = ["LaneVector"]

_SMALL_ROW_BYTES = 1024


def _blank(space: gym.Space[Any]) -> Any:
    # Gymnasium's iterate() cannot take a batch of a Dict or Tuple without members apart.
    if isinstance(space, Dict):
        return {key: _blank(child) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_blank(child) for child in space.spaces)
    return next(iter(iterate(batch_space(space, 1), create_empty_array(space, 1, np.zeros))))


class LaneVector(VectorEnv[Any, Any, Any]):
    """Vector env over scalar envs, in any autoreset mode.

    Args:
        envs: Scalar envs with equal spaces; this object owns and closes them.
        autoreset_mode: When a lane whose episode ended is reset.
        copy: Return fresh observation arrays. With False every call returns the same arrays, valid
            until the next one, which is all that a server needs.

    Raises:
        ConfigurationError: No envs, or their spaces differ.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        super().__init__()
        self.envs: list[gym.Env[Any, Any]] = list(envs)
        first = check_equal_spaces(self.envs)
        self.num_envs: int = len(self.envs)
        self.autoreset_mode = autoreset_mode
        self.copy = copy
        self.metadata: dict[str, Any] = {**first.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode: str | None = first.render_mode
        self.single_observation_space: gym.Space[Any] = first.observation_space
        self.single_action_space: gym.Space[Any] = first.action_space
        self.observation_space: gym.Space[Any] = batch_space(first.observation_space, self.num_envs)
        self.action_space: gym.Space[Any] = batch_space(first.action_space, self.num_envs)
        # What lanes that were never reset show until then.
        self._lane_observations = [_blank(first.observation_space)] * self.num_envs
        self._buffer: Any = create_empty_array(
            self.single_observation_space, n=self.num_envs, fn=np.zeros
        )
        space = first.observation_space
        self._has_small_rows = isinstance(space, Box) and space.low.nbytes <= _SMALL_ROW_BYTES
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    @classmethod
    def adopt(cls, envs: SyncVectorEnv, *, copy: bool = False) -> LaneVector:
        """Drive the lanes of ``envs`` in its stead; close this one, not both."""
        lanes = cls(envs.envs, autoreset_mode=envs.autoreset_mode, copy=copy)
        lanes.metadata = dict(envs.metadata)
        lanes.render_mode = envs.render_mode
        lanes.spec = envs.spec
        return lanes

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every lane, or those that ``options["reset_mask"]`` marks.

        Args:
            seed: None, one int ``s`` (lane ``i`` gets ``s + i``), or one per lane.
            options: Passed to every lane that is reset, without ``reset_mask``, a bool array of
                shape ``(num_envs,)``. The mapping itself is left as it is.

        Returns:
            Observations of all lanes, unmasked ones showing their last; infos of the reset ones.
        """
        seeds = expand_seeds(seed, self.num_envs)
        lane_options, mask = split_options(options, self.num_envs)
        lanes = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        infos: dict[str, Any] = {}
        for lane in lanes:
            observation, info = self.envs[lane].reset(seed=seeds[lane], options=lane_options)
            self._lane_observations[lane] = observation
            self._ended[lane] = False
            if info:
                infos = self._add_info(infos, info, lane)
        return self._observations(), infos

    def step(self, actions: Any) -> StepResult:
        """Step every lane, and reset those whose turn it is.

        Args:
            actions: Batch from ``action_space``.

        Returns:
            Gymnasium's five; rewards float64, flags bool, each of shape ``(num_envs,)`` and fresh.
        """
        each = list(iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            message = f"expected {self.num_envs} actions, got {len(each)}"
            raise ValueError(message)
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        ended = self._ended.tolist()
        if self.autoreset_mode is AutoresetMode.DISABLED and any(ended):
            stale = [lane for lane, over in enumerate(ended) if over]
            message = f"the episodes of lanes {stale} are over; reset them first"
            raise ResetNeededError(message)
        observations = self._lane_observations
        rewards = [0.0] * self.num_envs
        terminations = [False] * self.num_envs
        truncations = [False] * self.num_envs
        infos: dict[str, Any] = {}
        for lane, env in enumerate(self.envs):
            if next_step and ended[lane]:
                observations[lane], info = env.reset()
            else:
                observation, reward, terminated, truncated, info = env.step(each[lane])
                rewards[lane] = as_reward(reward, lane)
                terminations[lane] = as_flag(terminated, "terminated", lane)
                truncations[lane] = as_flag(truncated, "truncated", lane)
                if same_step and (terminations[lane] or truncations[lane]):
                    final = {"final_obs": detached(observation), "final_info": detached(info)}
                    infos = self._add_info(infos, final, lane)
                    observation, info = env.reset()
                observations[lane] = observation
            if info:
                infos = self._add_info(infos, info, lane)
        terminated_lanes = np.array(terminations, dtype=np.bool_)
        truncated_lanes = np.array(truncations, dtype=np.bool_)
        self._ended = terminated_lanes | truncated_lanes
        return (
            self._observations(),
            np.array(rewards, dtype=np.float64),
            terminated_lanes,
            truncated_lanes,
            infos,
        )

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What each env says that it was seeded with, also where no seed was asked for."""
        return tuple(env.np_random_seed for env in self.envs)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each env's own random number generator."""
        return tuple(env.np_random for env in self.envs)

    def render(self) -> tuple[Any, ...]:
        """Return one frame per lane."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - Gymnasium's signature
        """Close every lane, also when one of them fails to; the first failure is raised."""
        try:
            close_all(self.envs)
        finally:
            self.closed = True  # Also after a failure: a second time would only fail again.

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Add one lane's info as Gymnasium does; what does not fit turns the key into objects."""
        return add_info(vector_infos, env_info, env_num, self.num_envs)

    def _observations(self) -> Any:
        if self._has_small_rows:
            # The usual case, in a third of concatenate's time; all else is left to that.
            with contextlib.suppress(ValueError):  # Of different shapes.
                rows = np.array(self._lane_observations)
                if rows.dtype == self._buffer.dtype and rows.shape == self._buffer.shape:
                    return rows
        self._buffer = concatenate(
            self.single_observation_space, self._lane_observations, self._buffer
        )
        return detached(self._buffer) if self.copy else self._buffer
