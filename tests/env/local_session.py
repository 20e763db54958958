"""A stand-in for ``EnvSession`` that runs its envs here, in any mode, with any capabilities.

It answers as an endpoint would, messages included, so that every cell of the conversion table can
be tried without sockets; also those that no server of ours offers, such as SAME_STEP with subset
step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.codec import EnvContract, SpaceCodec, encode_meta_map
from rlmesh_gym.env.open.sources import Source
from rlmesh_gym.errors import EnvError, Error, ResetNeededError, UnavailableError
from rlmesh_gym.rpc import Timeouts

EnvMaker = Callable[[], gym.Env[Any, Any]]


class Answer:
    """A pending answer that is there already, or an error, or never comes until released."""

    def __init__(self, message: Any, error: Error | None = None) -> None:
        self.message = message
        self.error = error

    def result(self, timeout: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.message


class LocalSession:
    """Envs behind the interface of ``EnvSession``.

    Args:
        makers: One per lane.
        mode: Autoreset mode to announce and to show.
        partial_reset: Whether resets may name lanes.
        subset_step: Whether steps may.
    """

    def __init__(
        self,
        makers: Sequence[EnvMaker],
        mode: AutoresetMode = AutoresetMode.DISABLED,
        *,
        partial_reset: bool = True,
        subset_step: bool = True,
        name: str = "local",
    ) -> None:
        self.envs = [maker() for maker in makers]
        self.mode = mode
        self.has_partial_reset = partial_reset or subset_step
        self.has_lane_operations = subset_step
        self.has_arrays = False
        self.endpoint = name
        self.timeouts = Timeouts()
        first = self.envs[0]
        self.contract = EnvContract(
            env_id="Local-v0",
            single_observation_space=first.observation_space,
            single_action_space=first.action_space,
            metadata={"render_fps": 30},
            num_envs=len(self.envs),
            render_mode=first.render_mode,
            autoreset_mode=mode,
        )
        self.codec = SpaceCodec(first.observation_space)
        self.actions = SpaceCodec(first.action_space)
        self.pending_reset = [False] * len(self.envs)
        self.requests: list[tuple[str, Any]] = []
        self.is_closed = False
        self.fail_next: Error | None = None
        self.is_dead = False

    @staticmethod
    def pack(codec: SpaceCodec, leaves: Any, num_rows: int) -> Any:
        return codec.encode(leaves, num_rows)

    def _refuse(self, operation: str) -> Error | None:
        error, self.fail_next = self.fail_next, None
        if self.is_dead:
            return UnavailableError("gone", endpoint=self.endpoint, operation=operation)
        return error

    def reset(
        self,
        *,
        seeds: Sequence[int] = (),
        options: Any = None,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> Answer:
        self.requests.append(
            ("reset", (list(seeds), options, list(env_indices), list(episode_ids)))
        )
        if (error := self._refuse("reset")) is not None:
            return Answer(None, error)
        indices = list(env_indices) or list(range(len(self.envs)))
        if env_indices and not self.has_partial_reset:
            return Answer(None, EnvError("no lanes", code="UNSUPPORTED", is_recoverable=True))
        if not env_indices and not self.has_lane_operations and len(seeds) == 1:
            seeds = [seeds[0] + index for index in indices]  # As a vector env spreads one seed.
        assert len(seeds) in (0, len(indices))
        assert len(episode_ids) == len(indices)
        observations, infos = [], []
        for position, index in enumerate(indices):
            seed = seeds[position] if seeds else None
            observation, info = self.envs[index].reset(seed=seed, options=options)
            observations.append(self.codec.flatten_row(observation))
            infos.append(dict(info))
            self.pending_reset[index] = False
        response = interaction_pb2.ResetResponse(
            observation=self._rows(observations),
            infos=encode_meta_map(self._infos(infos, [True] * len(indices))),
        )
        return Answer(interaction_pb2.ResetResponse.FromString(response.SerializeToString()))

    def step(
        self, action: Any, *, env_indices: Sequence[int] = (), episode_ids: Sequence[str] = ()
    ) -> Answer:
        self.requests.append(("step", (list(env_indices), list(episode_ids))))
        if (error := self._refuse("step")) is not None:
            return Answer(None, error)
        if env_indices and not self.has_lane_operations:
            return Answer(None, EnvError("no lanes", code="UNSUPPORTED", is_recoverable=True))
        indices = list(env_indices) or list(range(len(self.envs)))
        leaves = self.actions.decode(action, len(indices))
        response = interaction_pb2.StepResponse(env_indices=env_indices)
        observations, infos, done = [], [], []
        for row, index in enumerate(indices):
            env = self.envs[index]
            if self.mode is AutoresetMode.NEXT_STEP and self.pending_reset[index]:
                observation, info = env.reset()
                reward: Any = 0.0
                terminated = truncated = False
            else:
                if self.pending_reset[index]:
                    message = f"lane {index} is stale"
                    raise ResetNeededError(message)
                observation, reward, terminated, truncated, info = env.step(
                    self.actions.unflatten_row(leaves, row)
                )
            info = dict(info)
            over = bool(terminated or truncated)
            if over and self.mode is AutoresetMode.SAME_STEP:
                final = self.codec.encode(self.codec.flatten_row(observation), 1)
                final_info = copy.deepcopy(info)
                observation, reset_info = env.reset()
                info = {"final_obs": final.SerializeToString(), "final_info": final_info}
                info |= reset_info
            self.pending_reset[index] = over and self.mode is not AutoresetMode.SAME_STEP
            observations.append(self.codec.flatten_row(observation))
            infos.append(info)
            done.append(over)
            response.rewards.append(float(np.sum(reward)))
            response.terminated_mask += bytes([bool(terminated)])
            response.truncated_mask += bytes([bool(truncated)])
        response.observation.CopyFrom(self._rows(observations))
        response.infos.CopyFrom(encode_meta_map(self._infos(infos, done)))
        return Answer(interaction_pb2.StepResponse.FromString(response.SerializeToString()))

    def render(self, env_indices: Sequence[int] = ()) -> Answer:
        return Answer(interaction_pb2.RenderResponse())

    def close(self, reason: str = "") -> None:
        if not self.is_closed:
            self.is_closed = True
            for env in self.envs:
                env.close()

    def _rows(self, observations: list[Any]) -> Any:
        columns = zip(*observations, strict=True)
        leaves = [np.concatenate(column) for column in columns]
        return self.codec.encode(leaves, len(observations))

    def _infos(self, infos: list[dict[str, Any]], done: list[bool]) -> dict[str, Any]:
        if self.has_lane_operations and self.mode is AutoresetMode.DISABLED:
            if len(infos) == 1:
                return infos[0]
            return {"final_info": infos, "_final_info": done}
        return batched(infos)


def batched(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join infos as a vector env on the other side would, arrays as lists."""
    vector = gym.vector.VectorEnv[Any, Any, Any]()
    vector.num_envs = len(infos)
    joined: dict[str, Any] = {}
    for lane, info in enumerate(infos):
        joined = vector._add_info(joined, info, lane)
    return joined


class LocalSource(Source):
    """Opens the session given, or makes another one each time.

    Args:
        make: Called at each ``open``.
    """

    def __init__(self, make: Callable[[], LocalSession]) -> None:
        self.label = "local"
        self.make = make
        self.sessions: list[LocalSession] = []
        self.refusals = 0

    def open(self) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("nobody there", endpoint="local", operation="handshake")
        self.sessions.append(self.make())
        return self.sessions[-1]
