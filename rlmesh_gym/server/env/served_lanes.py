"""One scalar env, or a list of them: lanes that are stepped and reset one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import EnvContract, SpaceCodec
from rlmesh_gym.codec.lane_infos import CONFORMANCE_KEY, FINAL_INFO
from rlmesh_gym.errors import CodecError
from rlmesh_gym.server.env.lane_calls import LaneCalls
from rlmesh_gym.server.env.scalar_envs import as_flag, as_reward, check_equal_spaces, close_all
from rlmesh_gym.server.env.served_env import Outcome, ServedEnv, once_per_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium as gym

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.server.env.served_env import Lanes, Options, Warnings


_LEGACY_RESULT = 4
"""Length of a step's result before ``truncated`` had its own place."""


class ServedLanes(ServedEnv):
    """Scalar envs with equal spaces, DISABLED autoreset; one of them makes a single endpoint.

    This object closes them. With ``overlap`` they may be at work at the same time, on threads of
    their own; they are where a call takes long enough to be worth it.
    """

    has_lane_operations = True
    has_partial_reset = True

    def __init__(
        self, envs: Sequence[gym.Env[Any, Any]], env_id: str, *, overlap: bool = False
    ) -> None:
        self.envs: list[gym.Env[Any, Any]] = list(envs)
        first = check_equal_spaces(self.envs)
        self.base: Any = first.unwrapped
        self.observation_codec: SpaceCodec = SpaceCodec(first.observation_space)
        self.action_codec: SpaceCodec = SpaceCodec(first.action_space)
        self._is_discrete = isinstance(first.action_space, Discrete)
        self._calls = LaneCalls(overlap=overlap)
        metadata = dict(first.metadata or {})
        metadata.pop("autoreset_mode", None)
        self.contract: EnvContract = EnvContract(
            env_id=env_id,
            single_observation_space=first.observation_space,
            single_action_space=first.action_space,
            metadata=metadata,
            num_envs=len(self.envs),
            render_mode=first.render_mode,
            autoreset_mode=AutoresetMode.DISABLED,
        )

    def reset(self, lanes: Lanes, seeds: Sequence[int], options: Options) -> Outcome:
        """Reset lanes; the n-th seed goes to the n-th lane, missing ones leave it unseeded."""

        def reset(row: int, lane: int) -> tuple[Any, Any]:
            seed = seeds[row] if row < len(seeds) else None
            return self.envs[lane].reset(seed=seed, options=options)

        named = range(len(self.envs)) if lanes is None else lanes
        results, user_ns, skew_ns = self._calls.run("reset", named, reset)
        return Outcome(
            self._rows([observation for observation, _ in results], named),
            [info for _, info in results],
            user_ns=user_ns,
            lane_skew_ns=skew_ns,
        )

    def step(self, lanes: Lanes, action: Leaves) -> Outcome:
        """Step lanes, each with its own row as the space samples it."""
        named = range(len(self.envs)) if lanes is None else lanes
        if self._is_discrete:
            actions = list(action[0])  # Numpy integers already; many lanes feel the rest.
        else:
            actions = [self.action_codec.unflatten_row(action, row) for row in range(len(named))]
        results, user_ns, skew_ns = self._calls.run(
            "step", named, lambda row, lane: self.envs[lane].step(actions[row])
        )
        observations, infos = [], []
        rewards, terminated, truncated = [], [], []
        for lane, result in zip(named, results, strict=True):
            five = _modern(result, lane) if len(result) == _LEGACY_RESULT else result
            observation, reward, ended, cut, info = five
            observations.append(observation)
            rewards.append(as_reward(reward, lane))
            terminated.append(as_flag(ended, "terminated", lane))
            truncated.append(as_flag(cut, "truncated", lane))
            infos.append(info)
        return Outcome(
            self._rows(observations, named),
            infos,
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            user_ns=user_ns,
            lane_skew_ns=skew_ns,
        )

    def render(self, lane: int) -> Any:
        """Return the lane's frame, None where it was made without a render mode."""
        env = self.envs[lane]
        return None if env.render_mode is None else env.render()

    def wire_infos(self, outcome: Outcome, warnings: Warnings) -> dict[str, Any] | None:
        """Return one lane's dict, or several beside a mask of those that ended (reset: all)."""
        infos = list(outcome.infos)
        found: dict[int, list[dict[str, str]]] = {}
        for row, warning in warnings:
            found.setdefault(row, []).append(warning)
        for row, row_warnings in found.items():
            # An env that uses the key itself keeps it.
            infos[row] = {CONFORMANCE_KEY: row_warnings, **(infos[row] or {})}
        if len(infos) == 1:
            return infos[0]  # type: ignore[no-any-return]
        ended = (outcome.terminated | outcome.truncated).tolist() or [True] * len(infos)
        wire: dict[str, Any] = {
            FINAL_INFO: [{} if info is None else info for info in infos],
            f"_{FINAL_INFO}": ended,
        }
        if warnings:
            wire[CONFORMANCE_KEY] = once_per_path(warnings)
        return wire

    def final_info(self, outcome: Outcome, row: int) -> Mapping[str, Any] | None:
        """Return the row's own dict."""
        return outcome.infos[row]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close every lane, also when one of them fails to; the first failure is raised."""
        self._calls.close()
        close_all(self.envs)

    def _rows(self, observations: Sequence[Any], lanes: Sequence[int]) -> Leaves:
        try:
            return self.observation_codec.flatten_rows(observations)
        except CodecError as error:
            # The batch only knows that some row is wrong; find whose.
            for lane, observation in zip(lanes, observations, strict=True):
                try:
                    self.observation_codec.flatten_row(observation)
                except CodecError as own:  # noqa: PERF203 - a failed step may take its time
                    detail = str(own).removeprefix(f"{own.path}: ")
                    raise CodecError(
                        f"the observation of lane {lane} does not fit its space: {detail}",
                        path=own.path,
                    ) from error
            raise


def _modern(result: Sequence[Any], lane: int) -> tuple[Any, Any, Any, Any, Any]:
    observation, reward, done, info = result
    over = as_flag(done, "done", lane)
    by_time = bool((info or {}).get("TimeLimit.truncated", False))
    return observation, reward, over and not by_time, over and by_time, info
