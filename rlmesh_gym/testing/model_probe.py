"""A client of a model endpoint for the rules: random observations, checked actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError, ConfigurationError, ModelError
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.testing.rules import BrokenRuleError, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gymnasium import spaces

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym._proto.spaces.v1 import value_pb2
    from rlmesh_gym.codec import EnvSpec
    from rlmesh_gym.rpc import ModelSession, Pending


class ModelProbe(Probe):
    """A client of one model endpoint; ``connect`` opens another session with it."""

    def __init__(self, connect: Callable[[], ModelSession], spec: EnvSpec, timeout: float) -> None:
        super().__init__(timeout)
        self.connect = connect
        self.spec = spec
        self.env_id: str = f"check-{mint_episode_id()}"  # Models know no two clients apart by it.
        observed = spec.single_observation_space
        if observed is None:
            raise ConfigurationError("a model is checked with observations, which need a space")
        self._unnamed = ""
        self._observed: spaces.Space[Any] = observed
        self.observations: SpaceCodec = SpaceCodec(observed)
        self.actions: SpaceCodec = SpaceCodec(spec.single_action_space)
        observed.seed(0)
        self.session: ModelSession = connect()

    def close(self) -> None:
        """End the session, and let the model forget the environment."""
        self.session.close("checked", env_id=self.env_id)

    def resolve(self, execution_horizon: int = 1) -> None:
        """Make the environment known."""
        self.wait(
            self.session.resolve_adapter(
                self.env_id, self.spec, execution_horizon=execution_horizon
            )
        )

    def sample(self, rows: int) -> value_pb2.SpaceValue:
        """Return random observations for ``rows`` lanes."""
        samples = [self._observed.sample() for _ in range(rows)]
        return self.observations.encode(self.observations.flatten_rows(samples), rows)

    def ask(
        self,
        rows: int,
        episode_ids: Sequence[str] = (),
        *,
        env_id: str | None = None,
        observation: value_pb2.SpaceValue | None = None,
    ) -> Pending[interaction_pb2.PredictResponse]:
        """Ask for actions, for random observations and new episodes where none are given."""
        ids = episode_ids or [mint_episode_id() for _ in range(rows)]
        sent = self.sample(rows) if observation is None else observation
        episodes = [(episode_id, None) for episode_id in ids]
        return self.session.predict(env_id or self.env_id, sent, episodes)

    def predict(
        self, rows: int, episode_ids: Sequence[str] = ()
    ) -> interaction_pb2.PredictResponse:
        """Ask, and wait for the answer."""
        return self.wait(self.ask(rows, episode_ids))  # type: ignore[no-any-return]

    def refused(self, call: Callable[[], Pending[Any]], code: str) -> None:
        """Require that ``call`` is answered with an error; see :meth:`told_apart`."""
        try:
            self.wait(call())
        except ModelError as error:
            if error.code != code or not error.is_recoverable:
                kind = "recoverable" if error.is_recoverable else "final"
                self._unnamed = f"the error is a {kind} {error.code}, not a recoverable {code}"
            return
        raise BrokenRuleError(self.rule, f"expected an error {code}, got an answer")

    def told_apart(self) -> None:
        """End the rule, which is kept, where errors did not say what is wrong, or that it goes on.

        The released package answers all that goes wrong with a final ``INTERNAL``, and goes on.
        """
        if self._unnamed:
            raise self.lacking(self._unnamed)

    def check_frames(self, answer: interaction_pb2.PredictResponse, rows: int) -> None:
        """Require frames of ``rows`` actions of the space, one at least."""
        self.require(answer.actions, "the answer holds no action frame")
        for number, frame in enumerate(answer.actions):
            try:
                leaves = self.actions.decode(frame, rows)
            except CodecError as error:
                message = f"action frame {number} does not fit {rows} rows of its space: {error}"
                raise BrokenRuleError(self.rule, message) from error
            found = self.actions.out_of_domain(leaves)
            self.require(not found, f"action frame {number} leaves its domain: {found[:1]}")
