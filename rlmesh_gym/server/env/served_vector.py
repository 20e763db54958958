"""A Gymnasium vector env in its own autoreset mode: stepped whole, reset whole or by mask."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from rlmesh_gym.codec import EnvContract, SpaceCodec, final_info, find_autoreset_mode, one_dict
from rlmesh_gym.codec.lane_infos import CONFORMANCE_KEY, FINAL_OBS, encode_final_obs, take_lanes
from rlmesh_gym.codec.reset_arguments import RESET_MASK, are_consecutive, lane_arguments
from rlmesh_gym.errors import CodecError, ConfigurationError
from rlmesh_gym.server.env.lane_vector import LaneVector
from rlmesh_gym.server.env.served_env import Outcome, ServedEnv, once_per_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    from rlmesh_gym.server.env.served_env import Lanes, Options, Warnings


_PICTURE_AXES = 3


class ServedVector(ServedEnv):
    """A vector env, whatever its width; this object closes it.

    A plain ``SyncVectorEnv`` is driven lane by lane with the same results: that saves its deep
    copies, and keeps terminal observations from lanes that change theirs in place.

    Args:
        envs: The vector env.
        env_id: Name that the contract announces.
        partial_reset: Whether it honours ``options["reset_mask"]``; None finds out.
        in_process: Drive it just as it is, since it belongs to a run of this process.
    """

    has_lane_operations = False

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        env_id: str,
        *,
        partial_reset: bool | None = None,
        in_process: bool = False,
    ) -> None:
        mode = find_autoreset_mode(envs)
        base = envs.unwrapped
        if partial_reset is None:
            partial_reset = isinstance(base, (SyncVectorEnv, AsyncVectorEnv))
        self.has_partial_reset = partial_reset
        self.base = base
        self.takes_lane_seeds: bool = (
            partial_reset or envs.num_envs == 1 or hasattr(base, "lane_engine")
        )
        self.gives_fresh_arrays: bool = envs is base and getattr(envs, "copy", None) is True
        self.has_own_processes: bool = isinstance(base, AsyncVectorEnv)
        self._owner = envs
        self._frames: dict[int, Any] = {}  # Rendered, and not asked for yet.
        self.envs: VectorEnv[Any, Any, Any] = envs
        if not in_process and type(envs) is SyncVectorEnv and envs.observation_mode == "same":
            self.envs = LaneVector(envs.envs, autoreset_mode=mode, copy=False)
        self.observation_codec: SpaceCodec = SpaceCodec(envs.single_observation_space)
        self.action_codec: SpaceCodec = SpaceCodec(envs.single_action_space)
        if not in_process:
            _refuse_spaces_per_lane(envs)
        self.contract: EnvContract = EnvContract(
            env_id=env_id,
            single_observation_space=envs.single_observation_space,
            single_action_space=envs.single_action_space,
            metadata={**(envs.metadata or {}), "autoreset_mode": mode.value},
            num_envs=envs.num_envs,
            render_mode=envs.render_mode,
            autoreset_mode=mode,
        )

    def reset(self, lanes: Lanes, seeds: Sequence[int], options: Options) -> Outcome:
        """Reset all lanes, or some through ``options["reset_mask"]``.

        One seed ``s`` for a full reset of several lanes is spread by the vector env: ``s``,
        ``s + 1`` … Seeds that follow one another are given as that one seed, since a vector env
        promises to take an int and no more.
        """
        seed: Any = list(seeds) or None
        if lanes is not None:
            seed, options = lane_arguments(lanes, seeds, options, self.num_envs)
        elif len(seeds) in (1, self.num_envs) and are_consecutive(seeds):
            seed = seeds[0]
        if options is not None and isinstance(options.get(RESET_MASK), list):
            # A mask may come off the wire as a list; Gymnasium takes arrays only.
            options = {**options, RESET_MASK: np.asarray(options[RESET_MASK])}
        self._frames = {}
        begun = time.perf_counter_ns()
        try:
            observation, infos = self.envs.reset(seed=seed, options=options)
        except (gymnasium.error.Error, TypeError) as error:
            if not isinstance(seed, list) or self.has_partial_reset:
                raise
            message = (
                f"{type(self.envs.unwrapped).__name__} does not take one seed per lane, only an "
                "int s for s, s + 1, …: pass such seeds, or serve a list of environments"
            )
            raise ValueError(message) from error
        user_ns = time.perf_counter_ns() - begun
        leaves = self.observation_codec.flatten(observation, self.num_envs)
        known = one_dict(infos, self.num_envs)
        if lanes is not None:
            leaves = [leaf[np.asarray(lanes)] for leaf in leaves]
            known = take_lanes(known or {}, lanes, self.num_envs)
        return Outcome(leaves, known, user_ns=user_ns)

    def step(self, lanes: Lanes, action: Any) -> Outcome:
        """Step all lanes with the batch as the vector env's own ``action_space`` has it."""
        del lanes  # It has no lane operations, so that nobody names any.
        actions = self.action_codec.unflatten(action, self.num_envs)
        self._frames = {}
        begun = time.perf_counter_ns()
        observation, rewards, terminated, truncated, infos = self.envs.step(actions)
        user_ns = time.perf_counter_ns() - begun
        return Outcome(
            self.observation_codec.flatten(observation, self.num_envs),
            one_dict(infos, self.num_envs),
            self._row(rewards, "fiub", "rewards", "numbers").astype(np.float64),
            self._row(terminated, "b", "terminations", "bools"),
            self._row(truncated, "b", "truncations", "bools"),
            user_ns=user_ns,
        )

    def _row(self, values: Any, kinds: str, name: str, unit: str) -> NDArray[Any]:
        array = np.asarray(values)
        if array.dtype.kind not in kinds or array.size != self.num_envs:
            raise TypeError(f"{name} must be {self.num_envs} {unit}, got {values!r}")
        return array if array.ndim == 1 else array.reshape(self.num_envs)

    def render(self, lane: int) -> Any:
        """Return the lane's frame; every env is rendered once for a frame of each lane.

        A vector that renders all lanes at once is asked once; what it gave is handed out lane by
        lane, until a lane is asked for again or the vector moves on. One picture of all lanes
        counts as the first lane's.
        """
        if self._owner.render_mode is None:
            return None
        if isinstance(self.envs, LaneVector):
            return self.envs.envs[lane].render()
        if lane not in self._frames:
            frames: Any = self.envs.render()
            if isinstance(frames, np.ndarray) and frames.ndim <= _PICTURE_AXES:
                frames = (frames, *[None] * (self.num_envs - 1))
            if frames is None or len(frames) != self.num_envs:
                frames = [None] * self.num_envs
            self._frames = dict(enumerate(frames))
        return self._frames.pop(lane)

    def wire_infos(self, outcome: Outcome, warnings: Warnings) -> dict[str, Any] | None:
        """Return the batched dict, terminal observations as bytes of one-row values."""
        if outcome.infos is None and not warnings:
            return None
        wire = dict(outcome.infos or {})
        if FINAL_OBS in wire and self.contract.autoreset_mode is AutoresetMode.SAME_STEP:
            ended = outcome.terminated | outcome.truncated
            try:
                wire[FINAL_OBS] = encode_final_obs(self.observation_codec, wire[FINAL_OBS], ended)
            except CodecError as error:
                message = f"a terminal observation does not fit its space: {error}"
                raise CodecError(message, path=FINAL_OBS) from error
        if warnings:
            wire.setdefault(CONFORMANCE_KEY, once_per_path(warnings))
        return wire

    def final_info(self, outcome: Outcome, row: int) -> Mapping[str, Any] | None:
        """Return the lane's share of the infos; under SAME_STEP of the last ones in them."""
        return final_info(outcome.infos, row, self.num_envs)

    def close(self) -> None:
        """Close the vector env."""
        self._owner.close()


def _refuse_spaces_per_lane(envs: VectorEnv[Any, Any, Any]) -> None:
    """Refuse what would be announced wrongly: the wire has one space for all lanes."""
    common = batch_space(envs.single_observation_space, envs.num_envs)
    own = envs.observation_space
    if own != common and type(own) is type(common) and is_space_dtype_shape_equiv(own, common):
        raise ConfigurationError(
            f"the lanes of {type(envs.unwrapped).__name__} have observation spaces of their own "
            "(observation_mode='different'), and an endpoint announces one for all. Make the "
            "vector with observation_mode=(batch_space(space, num_envs), space), where space "
            "holds the values of every lane, or serve each kind of lane at an address of its own"
        )
