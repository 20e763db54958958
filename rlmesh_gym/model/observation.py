"""What a served model is given, and what it may answer. No wire, no threads, no gRPC in here.

Everything batched is in Gymnasium's *vector* form: a ``Dict`` space gives a dict of arrays whose
first axis is the row, a ``Text`` space a tuple of strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium

    from rlmesh_gym.codec import EnvSpec


MAX_EXECUTION_HORIZON = 1024
"""The protocol's bound on the number of frames that one prediction may hold."""


@dataclass(frozen=True)
class ResolveOptions:
    """What the client asks of a route.

    Attributes:
        execution_horizon: Frames that the client replays of one prediction; at least 1.
        delivers_history: The client can send the observations of replayed steps.
    """

    execution_horizon: int = 1
    delivers_history: bool = False


@dataclass(frozen=True)
class HistoryNeeds:
    """A route's wish to see the observations of replayed steps too.

    Attributes:
        keys: The model inputs that look back; empty for the whole observation.
        prunable: Rows may leave out what the keys do not name, which then comes as zeros and empty
            strings. Clients may send full rows anyway.
    """

    keys: tuple[str, ...] = ()
    prunable: bool = False


@dataclass(frozen=True)
class RouteNeeds:
    """What a route answers when it is resolved.

    Attributes:
        native_chunk: Frames that the model gives per prediction; None when it is not fixed. A
            client that asks for a longer horizon is refused.
        history: What the model needs of replayed steps; None for nothing.
    """

    native_chunk: int | None = None
    history: HistoryNeeds | None = None


@dataclass(frozen=True)
class HeldState:
    """How much a handler remembers, for telemetry.

    Attributes:
        episodes: Episodes with state.
        bytes: Size of that state; None when it is not known.
    """

    episodes: int
    bytes: int | None = None


@dataclass(frozen=True)
class ModelRoute:
    """One resolved environment, as every prediction for it sees it.

    Attributes:
        env_id: The client's name for its environment; the key of all state.
        contract: The environment's spaces and metadata, those of one lane.
        options: What the client asked for.
        needs: What the handler answered.
    """

    env_id: str
    contract: EnvSpec
    options: ResolveOptions = field(default_factory=ResolveOptions)
    needs: RouteNeeds = field(default_factory=RouteNeeds)

    @property
    def single_observation_space(self) -> gymnasium.Space[Any] | None:
        """Space of one row of an observation; None when the client named none."""
        return self.contract.single_observation_space

    @property
    def single_action_space(self) -> gymnasium.Space[Any]:
        """Space of one row of the actions."""
        return self.contract.single_action_space

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, as plain Python values."""
        return self.contract.metadata


@dataclass(frozen=True)
class HistoryFrame:
    """The observations of one replayed step, for the rows that replayed it.

    Attributes:
        step: The session's step count at this frame.
        observation: Batched observation, one row per episode id.
        episode_ids: Episode of each row.
        seeds: Seed of each row's episode, None where it is not known.
    """

    step: int
    observation: Any
    episode_ids: tuple[str, ...]
    seeds: tuple[int | None, ...] = ()

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return len(self.episode_ids)


@dataclass(frozen=True)
class ModelObservation:
    """One request for actions.

    The rows are whatever lanes need a plan now: their number and order change from call to call,
    and state belongs to the episode id, never to the row.

    Attributes:
        env_id: The environment that the rows come from.
        observation: Batched observation in vector form. Arrays are fresh and the handler's own.
        episode_ids: Episode of each row, unique within the request.
        seeds: Seed of each row's episode, None where it is not known.
        execution_horizon: Frames that the client replays; at least 1.
        history: Replayed steps since the last prediction, in the order sent, which is ascending for
            each episode and without a gap up to ``step``; empty unless the route asked for them.
            When ``predict`` raises, they count as not delivered and come again with a retry.
        step: The session's step count at this observation; None when it was not sent.
        route: The resolved environment; None only in handlers called without a server.
    """

    env_id: str
    observation: Any
    episode_ids: tuple[str, ...]
    seeds: tuple[int | None, ...] = ()
    execution_horizon: int = 1
    history: tuple[HistoryFrame, ...] = ()
    step: int | None = None
    route: ModelRoute | None = None

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return len(self.episode_ids)


@dataclass(frozen=True)
class PredictFrames:
    """Actions for this step and, for models that plan ahead, for the steps after it.

    Attributes:
        actions: Batch for this step, in vector form, one row per row of the observation.
        replay: ``replay[j]`` is the batch for step ``j + 1``. Frames beyond the execution horizon
            are dropped.
    """

    actions: Any
    replay: Sequence[Any] = ()

    @property
    def num_frames(self) -> int:
        """Number of steps that this covers, this one included."""
        return 1 + len(self.replay)
