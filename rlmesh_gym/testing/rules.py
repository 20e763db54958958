"""What the protocol's rules are made of: a client that asks, and an error that names the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError, EnvError
from rlmesh_gym.lanes import mint_episode_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym._proto.spaces.v1 import value_pb2
    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc import EnvSession, Pending


class BrokenRuleError(AssertionError):
    """An endpoint does not keep to a rule of the protocol.

    Attributes:
        rule: Name of the rule.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class EnvProbe:
    """A client of one env endpoint that names the rule which is checked in its errors."""

    def __init__(self, session: EnvSession, timeout: float) -> None:
        self.rule = "reset"
        self.session = session
        self.contract: EnvContract = session.contract
        self.num_envs: int = session.contract.num_envs
        self.timeout = timeout
        self.observations: SpaceCodec = SpaceCodec(self.contract.single_observation_space)
        self.actions: SpaceCodec = SpaceCodec(self.contract.single_action_space)
        self.episode_ids: list[str] = []
        self.contract.single_action_space.seed(0)

    def wait(self, pending: Pending[Any]) -> Any:
        """The answer, within the probe's timeout."""
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

    def ended(self, step: interaction_pb2.StepResponse) -> NDArray[np.bool_]:
        """Which lanes terminated or were truncated."""
        masks = (step.terminated_mask, step.truncated_mask)
        return np.logical_or(*(np.frombuffer(mask, np.uint8) for mask in masks))

    def require(self, condition: object, message: str) -> None:
        """Raise :class:`BrokenRuleError` unless ``condition`` holds."""
        if not condition:
            raise BrokenRuleError(self.rule, message)

    def require_equal(self, name: str, got: Any, expected: Any) -> None:
        """Require that a value is the expected one."""
        self.require(got == expected, f"{name} is {got!r}, expected {expected!r}")

    def refuses(self, call: Callable[[], Pending[Any]], code: str) -> None:
        """Require that ``call`` is answered with a recoverable error of ``code``."""
        try:
            self.wait(call())
        except EnvError as error:
            self.require(error.code == code, f"expected the code {code}, got {error}")
            self.require(error.is_recoverable, f"expected a recoverable error, got {error}")
            return
        raise BrokenRuleError(self.rule, f"expected an error {code}, got an answer")

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
