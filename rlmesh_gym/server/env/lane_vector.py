"""A Gymnasium vector env over scalar envs, stepped one after the other in this process.

Values, infos and masks are those of ``gymnasium.vector.SyncVectorEnv``. It differs where that one
costs time or truth: observations are written once into buffers that are used again (no deep copy),
and under SAME_STEP the terminal observation and info are copied before the lane is reset, so a lane
that changes its arrays in place cannot overwrite them. An info value that does not fit the array
that another lane's has begun turns that key into objects, instead of failing the step. It knows
nothing of the wire.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from rlmesh_gym.codec import SpaceCodec, add_info
from rlmesh_gym.codec.reset_arguments import expand_seeds, split_options
from rlmesh_gym.errors import ResetNeededError
from rlmesh_gym.server.env.scalar_envs import (
    as_flag,
    as_reward,
    check_equal_spaces,
    close_all,
    detached,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    Made = gym.Env[Any, Any] | list[gym.Env[Any, Any]] | VectorEnv[Any, Any, Any]
    StepResult = tuple[
        Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]


_SMALL_ROW_BYTES = 1024


class LaneVector(SyncVectorEnv):
    """Vector env over scalar envs with equal spaces, in any autoreset mode; it closes them.

    Without ``copy`` every call returns the same arrays, valid until the next one, which is all that
    a server needs.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        self.envs = []  # All that there is to close if the spaces differ.
        first = check_equal_spaces(envs)
        space, metadata = first.observation_space, dict(first.metadata)
        makers = [partial(lambda env: env, env) for env in envs]
        super().__init__(makers, copy=copy, autoreset_mode=autoreset_mode)
        if self.metadata is first.metadata:  # Gymnasium 1.1 writes the mode into the env's own.
            self.metadata = dict(first.metadata)
            first.metadata.clear()
            first.metadata.update(metadata)
        codec = SpaceCodec(space)
        # What lanes that were never reset show until then.
        self._lane_observations = [codec.unflatten_row(codec.empty(1), 0)] * self.num_envs
        self._buffer: Any = create_empty_array(space, n=self.num_envs, fn=np.zeros)
        self._has_small_rows = isinstance(space, Box) and space.low.nbytes <= _SMALL_ROW_BYTES
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every lane, or those that ``options["reset_mask"]`` marks; others show their last.

        The options, which are left as they are, go to the lanes without the mask.
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
                infos = add_info(infos, info, lane, self.num_envs)
        return self._batch(), infos

    def step(self, actions: Any) -> StepResult:
        """Step every lane, and reset those whose turn it is."""
        each = list(iterate(self.action_space, actions))
        if len(each) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(each)}")
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        ended = self._ended.tolist()
        if self.autoreset_mode is AutoresetMode.DISABLED and any(ended):
            stale = [lane for lane, over in enumerate(ended) if over]
            raise ResetNeededError(f"the episodes of lanes {stale} are over; reset them first")
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
                    infos = add_info(infos, final, lane, self.num_envs)
                    observation, info = env.reset()
                observations[lane] = observation
            if info:
                infos = add_info(infos, info, lane, self.num_envs)
        terminated_lanes = np.array(terminations, dtype=np.bool_)
        truncated_lanes = np.array(truncations, dtype=np.bool_)
        self._ended = terminated_lanes | truncated_lanes
        return (
            self._batch(),
            np.array(rewards, dtype=np.float64),
            terminated_lanes,
            truncated_lanes,
            infos,
        )

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - Gymnasium's signature
        """Close every lane, also when one of them fails to; the first failure is raised."""
        try:
            close_all(self.envs)
        finally:
            self.closed = True  # Also after a failure: a second time would only fail again.

    def _batch(self) -> Any:
        if self._has_small_rows:
            # The usual case, in a third of concatenate's time; all else is left to that.
            with suppress(ValueError):  # Of different shapes.
                rows = np.array(self._lane_observations)
                if rows.dtype == self._buffer.dtype and rows.shape == self._buffer.shape:
                    return rows
        self._buffer = concatenate(
            self.single_observation_space, self._lane_observations, self._buffer
        )
        return detached(self._buffer) if self.copy else self._buffer


def make_envs(
    env_id: str,
    *,
    num_envs: int | None = None,
    autoreset_mode: AutoresetMode | None = None,
    processes: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    tell: Callable[[int], None] | None = None,
    **options: Any,
) -> Made:
    """Make what a server serves; when one lane fails, those made before are closed.

    Without ``num_envs`` that is one plain environment, without ``autoreset_mode`` bare lanes;
    ``processes`` runs each lane of the vector in a process of its own. Arguments of every lane are
    the options of ``gymnasium.make`` and ``env_kwargs``. ``tell`` is called with the number of
    lanes made so far.
    """
    arguments = {**options, **(env_kwargs or {})}
    if processes:
        vector_kwargs = {"autoreset_mode": autoreset_mode}
        return gym.make_vec(
            env_id, num_envs or 1, "async", vector_kwargs=vector_kwargs, **arguments
        )
    with ExitStack() as made:
        lanes: list[gym.Env[Any, Any]] = []
        for _ in range(num_envs or 1):
            lanes.append(gym.make(env_id, **arguments))
            made.callback(lanes[-1].close)
            if tell is not None:
                tell(len(lanes))
        envs: Made = lanes[0] if num_envs is None else lanes
        if autoreset_mode is not None:
            envs = LaneVector(lanes, autoreset_mode=autoreset_mode, copy=False)
            envs.spec = lanes[0].spec
        made.pop_all()
    return envs
