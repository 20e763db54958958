"""A client of an env endpoint for the rules: random actions, fresh episode ids, checked shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.testing.rules import BrokenRuleError, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym._proto.spaces.v1 import value_pb2
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc import EnvSession


MAX_STEPS = 1000
"""Steps to wait for the end of an episode; the rules about ends are left out beyond."""
NO_END = f"no episode ended within {MAX_STEPS} steps of random actions"


class EnvProbe(Probe):
    """A client of one env endpoint; ``connect`` opens another session with it."""

    def __init__(self, connect: Callable[[], EnvSession], timeout: float) -> None:
        super().__init__(timeout)
        self.connect = connect
        self.session: EnvSession = connect()
        self.contract: EnvContract = self.session.contract
        self.num_envs: int = self.contract.num_envs
        self.observations: SpaceCodec = SpaceCodec(self.contract.single_observation_space)
        self.actions: SpaceCodec = SpaceCodec(self.contract.single_action_space)
        self.episode_ids: list[str] = []
        self.contract.single_action_space.seed(0)

    def close(self) -> None:
        """End the session."""
        self.session.close()

    def sample(self, rows: int) -> value_pb2.SpaceValue:
        """Return random actions for ``rows`` lanes."""
        samples = [self.contract.single_action_space.sample() for _ in range(rows)]
        return self.actions.encode(self.actions.flatten_rows(samples), rows)

    def reset(self, seeds: Sequence[int] = ()) -> interaction_pb2.ResetResponse:
        """Reset all lanes, into episodes with new ids."""
        self.episode_ids = [mint_episode_id() for _ in range(self.num_envs)]
        pending = self.session.reset(seeds=seeds, episode_ids=self.episode_ids)
        return self.wait(pending)  # type: ignore[no-any-return]

    def step(self, action: value_pb2.SpaceValue | None = None) -> interaction_pb2.StepResponse:
        """Step all lanes, with random actions where none are given."""
        sent = self.sample(self.num_envs) if action is None else action
        pending = self.session.step(sent, episode_ids=self.episode_ids)
        return self.wait(pending)  # type: ignore[no-any-return]

    def ended(self, step: interaction_pb2.StepResponse) -> NDArray[np.bool_]:
        """Which lanes terminated or were truncated."""
        masks = (step.terminated_mask, step.truncated_mask)
        return np.logical_or(*(np.frombuffer(mask, np.uint8) for mask in masks))

    def expect_mode(self, mode: AutoresetMode) -> None:
        """Skip the rule for an endpoint of another autoreset mode."""
        own = self.contract.autoreset_mode
        if own is not mode:
            raise self.skipped(f"its autoreset mode is {own.name}")

    def first_end(self) -> interaction_pb2.StepResponse:
        """Reset and step until an episode ends."""
        self.reset()
        for _ in range(MAX_STEPS):
            step = self.step()
            if self.ended(step).any():
                return step
        raise self.skipped(NO_END)

    def play(self, seeds: Sequence[int], actions: Sequence[value_pb2.SpaceValue]) -> list[Any]:
        """Return what comes of seeds and actions: observations, rewards, masks."""
        played: list[Any] = [tuple(self.reset(seeds).observation.leaves)]
        for action in actions:
            step = self.step(action)
            rewards = np.array(step.rewards).tobytes()  # As bytes: a NaN is equal to itself.
            masks = (step.terminated_mask, step.truncated_mask)
            played.append((tuple(step.observation.leaves), rewards, masks))
            if self.ended(step).any():
                break  # Lanes that reset nothing by themselves take no step then.
        return played

    def check_rows(
        self, answer: interaction_pb2.ResetResponse | interaction_pb2.StepResponse, rows: int
    ) -> None:
        """Require ``rows`` observations of the space."""
        try:
            leaves = self.observations.decode(answer.observation, rows)
        except CodecError as error:
            message = f"the observation does not fit its space: {error}"
            raise BrokenRuleError(self.rule, message) from error
        found = self.observations.out_of_domain(leaves)
        self.require(not found, f"the observation leaves its domain: {found[:1]}")

    def check_widths(self, step: interaction_pb2.StepResponse, rows: int) -> None:
        """Require a reward and two flags for each of ``rows`` lanes."""
        for name in ("rewards", "terminated_mask", "truncated_mask"):
            width = len(getattr(step, name))
            self.require(width == rows, f"expected {rows} {name}, got {width}")
        wrong = set(step.terminated_mask + step.truncated_mask) - {0, 1}
        self.require(not wrong, f"the masks hold bytes {sorted(wrong)}")
