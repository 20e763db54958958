"""What the run loop asks of an environment and of a model, wherever they are.

Lanes are counted within one endpoint here. Batches are ``Rows``, so neither side
needs to know whether the other one is remote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.runtime.calls import Call
    from rlmesh_gym.runtime.ends.rows import RowFormat, Rows
    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = [
    "LOCAL",
    "Episode",
    "HistoryRows",
    "ModelNeeds",
    "ResetReply",
    "RuntimeEnv",
    "RuntimeModel",
    "StepReply",
]

LOCAL = "local"
"""Stands for the address of something in this process."""

Episode = tuple[str, "int | None"]
"""Id and seed of one row's episode."""


class ResetReply(NamedTuple):
    """What a reset answered.

    Attributes:
        observations: One row per lane that was reset, in the order asked for.
        is_seeded: Whether each lane got the seed that was given for it; False where the env takes
            one seed for all of them. Of no meaning without seeds.
    """

    observations: Rows
    is_seeded: bool = True


class StepReply(NamedTuple):
    """What a step answered, one row per lane that was stepped, in the order asked for.

    Attributes:
        observations: Under SAME_STEP an ended lane's row is the next episode's first one.
        rewards: float64 ``(k,)``.
        terminations: bool ``(k,)``.
        truncations: bool ``(k,)``.
        final_info: Takes a row and its episode's id; gives that lane's last info as plain data.
            Only asked for rows whose episode is over.
    """

    observations: Rows
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    final_info: Callable[[int, str], dict[str, Any]]


@dataclass(frozen=True)
class ModelNeeds:
    """What a model answered when it set the environment up.

    Attributes:
        native_chunk: Frames that it predicts; None when it does not say.
        wants_history: It must get the observations of replayed steps.
    """

    native_chunk: int | None = None
    wants_history: bool = False


class HistoryRows(NamedTuple):
    """Observations of one replayed step, for the episodes that replayed it.

    Attributes:
        step: Number of the vector step that replayed.
        observations: One row per episode.
        episodes: Id and seed of each row's episode.
    """

    step: int
    observations: Rows
    episodes: tuple[Episode, ...]


class RuntimeEnv(Protocol):
    """One env endpoint of a run.

    Attributes:
        endpoint: Its address, :data:`LOCAL` in this process. All else is valid after ``connect``.
    """

    endpoint: str

    @property
    def contract(self) -> EnvContract:
        """Spaces, lanes, autoreset mode."""
        ...

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What the endpoint announced."""
        ...

    @property
    def has_lane_operations(self) -> bool:
        """Whether steps and resets may name lanes."""
        ...

    @property
    def has_partial_reset(self) -> bool:
        """Whether resets may name lanes."""
        ...

    @property
    def action_format(self) -> RowFormat:
        """Format of the actions it takes."""
        ...

    @property
    def observation_format(self) -> RowFormat:
        """Format of the observations it gives."""
        ...

    def connect(self, limits: RuntimeLimits) -> None:
        """Get ready; called once, first.

        Raises:
            Error: The endpoint cannot be reached, or is of the wrong kind.
        """
        ...

    def reset(
        self,
        *,
        lanes: Sequence[int] | None,
        seeds: Sequence[int] | None,
        episode_ids: Sequence[str],
        options: Mapping[str, Any] | None,
    ) -> Call[ResetReply]:
        """Begin to reset lanes.

        Args:
            lanes: Ascending, without repeats; None for all.
            seeds: One per lane, in the same order; None for none.
            episode_ids: One per lane, in the same order.
            options: For the environment.
        """
        ...

    def step(
        self, actions: Rows, *, lanes: Sequence[int] | None, episode_ids: Sequence[str]
    ) -> Call[StepReply]:
        """Begin to step lanes.

        Args:
            actions: One row per lane.
            lanes: Ascending, without repeats; None for all.
            episode_ids: One per lane. Under NEXT_STEP a lane that rolls over has its new id here.
        """
        ...

    def render(self, lane: int) -> Call[NDArray[np.uint8] | None]:
        """Begin to fetch one lane's frame, ``(height, width, 3)``; None where there is none."""
        ...

    def close(self, timeout: float) -> None:
        """Let go, within about ``timeout`` seconds, of what the run owns. Never raises."""
        ...


class RuntimeModel(Protocol):
    """The model of a run.

    Attributes:
        endpoint: Its address, :data:`LOCAL` in this process.
        batches_lanes: It takes the rows of several lanes in one request as it takes a single one,
            chunks included; valid after ``connect``.
    """

    endpoint: str

    @property
    def batches_lanes(self) -> bool:
        """Whether rows of several lanes may go together."""
        ...

    def connect(self, limits: RuntimeLimits) -> None:
        """Get ready; called once, first.

        Raises:
            Error: The endpoint cannot be reached, or is of the wrong kind.
        """
        ...

    def resolve(
        self, env: RuntimeEnv, route: str, session_id: str, execution_horizon: int
    ) -> Call[ModelNeeds]:
        """Begin to set the environment up.

        Args:
            env: The environment, connected.
            route: The model's key for it, unique to this run.
            session_id: Name of the run.
            execution_horizon: Frames that will be executed of each prediction.
        """
        ...

    def predict(
        self,
        observations: Rows,
        episodes: Sequence[Episode],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> Call[list[Rows]]:
        """Begin to predict.

        Args:
            observations: One row per episode.
            episodes: Id and seed of each row's episode.
            history: Replayed steps since the last prediction, oldest first.
            step: Number of this vector step, where the model wants history.

        Returns:
            A call for the frames, at least one, each with one row per episode.
        """
        ...

    def forget(self, episode_ids: Sequence[str]) -> Call[object]:
        """Begin to let the model drop what it holds of episodes that are over."""
        ...

    def release(self, reason: str) -> Call[object]:
        """Begin to let the model drop the environment."""
        ...

    def close(self, timeout: float) -> None:
        """Let go, within about ``timeout`` seconds, of what the run owns. Never raises."""
        ...
