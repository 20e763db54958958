"""What the protocol's rules are made of: a client that asks, and an error that names the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import EnvError
from rlmesh_gym.lanes import mint_episode_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym._proto.spaces.v1 import value_pb2
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc import EnvSession, Pending

__all__ = ["BrokenRuleError", "EnvProbe", "require"]


class BrokenRuleError(AssertionError):
    """An endpoint does not keep to a rule of the protocol.

    Attributes:
        rule: Name of the rule.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def require(condition: object, rule: str, message: str) -> None:
    """Raise :class:`BrokenRuleError` unless ``condition`` holds."""
    if not condition:
        raise BrokenRuleError(rule, message)


class EnvProbe:
    """A client of one env endpoint, with what its contract says.

    Args:
        session: Used until the endpoint ends it; the owner closes it.
        timeout: Seconds to wait for each answer.
    """

    def __init__(self, session: EnvSession, timeout: float) -> None:
        self.session = session
        self.contract: EnvContract = session.contract
        self.num_envs: int = session.contract.num_envs
        self.timeout = timeout
        self.observations: SpaceCodec = SpaceCodec(self.contract.single_observation_space)
        self.actions: SpaceCodec = SpaceCodec(self.contract.single_action_space)
        self.episode_ids: list[str] = []
        self.contract.single_action_space.seed(0)

    def wait(self, pending: Pending[Any]) -> Any:
        """Return the answer."""
        return pending.result(self.timeout)

    def sample(self, rows: int) -> value_pb2.SpaceValue:
        """Return random actions for ``rows`` lanes."""
        samples = [self.contract.single_action_space.sample() for _ in range(rows)]
        return self.actions.encode(self.actions.flatten_rows(samples), rows)

    def reset(self, seeds: Sequence[int] = ()) -> interaction_pb2.ResetResponse:
        """Reset all lanes, into episodes with new ids."""
        self.episode_ids = [mint_episode_id() for _ in range(self.num_envs)]
        pending = self.session.reset(seeds=seeds, episode_ids=self.episode_ids)
        return self.wait(pending)  # type: ignore[no-any-return]

    def step(self) -> interaction_pb2.StepResponse:
        """Step all lanes with random actions."""
        pending = self.session.step(self.sample(self.num_envs), episode_ids=self.episode_ids)
        return self.wait(pending)  # type: ignore[no-any-return]

    def flags(
        self, step: interaction_pb2.StepResponse
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which lanes terminated and which were truncated."""
        return (
            np.frombuffer(step.terminated_mask, dtype=np.uint8) != 0,
            np.frombuffer(step.truncated_mask, dtype=np.uint8) != 0,
        )

    def refuses(self, call: Callable[[], Pending[Any]], rule: str, code: str) -> None:
        """Require that ``call`` is answered with a recoverable error of ``code``."""
        try:
            self.wait(call())
        except EnvError as error:
            require(error.code == code, rule, f"expected the code {code}, got {error}")
            require(error.is_recoverable, rule, f"expected a recoverable error, got {error}")
            return
        raise BrokenRuleError(rule, f"expected an error {code}, got an answer")
