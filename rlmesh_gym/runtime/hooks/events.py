"""The events of a run: frozen dataclasses, each of which names its run, lanes and episodes.

Observations and actions are held as the rows that crossed the wire. They are decoded when a hook
asks for them and not before, so that an event costs little.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rlmesh_gym.plain_data import jsonable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.episodes import EpisodeRecord
    from rlmesh_gym.runtime.ends.rows import Rows
    from rlmesh_gym.runtime.report.runtime_report import RuntimeReport

__all__ = [
    "ActionReceived",
    "ActionTransform",
    "EnvConnected",
    "EpisodeCompleted",
    "EpisodeStarted",
    "LogEvent",
    "ModelConnected",
    "ObservationEmitted",
    "ObservationTransform",
    "RuntimeEvent",
    "SessionEnded",
    "SessionFailed",
    "SessionStarted",
    "StepCompleted",
]


@dataclass(frozen=True)
class RuntimeEvent:
    """What every event carries.

    Attributes:
        session_id: Name of the session, from the spec.
        run_id: A UUIDv7, new in every run.
        env_id: Id of the environment; empty before the env is connected.
    """

    name: ClassVar[str] = "event"

    session_id: str
    run_id: str
    env_id: str

    def __init_subclass__(cls, name: str | None = None) -> None:
        cls.name = name or cls.name

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data, without observations and actions."""
        shown = [item.name for item in dataclasses.fields(self) if item.repr]
        return {"event": self.name, **{name: jsonable(getattr(self, name)) for name in shown}}


@dataclass(frozen=True)
class EnvConnected(RuntimeEvent, name="env_connected"):
    """An env endpoint answered.

    Attributes:
        endpoint: Its address, ``"local"`` for an env in this process.
        lanes: The lanes of the run that it serves.
        autoreset_mode: Name of its mode.
        capabilities: What it says it can do.
        contract: Its spaces and metadata.
    """

    endpoint: str
    lanes: tuple[int, ...]
    autoreset_mode: str
    capabilities: Mapping[str, str]
    contract: EnvContract = field(repr=False)


@dataclass(frozen=True)
class ModelConnected(RuntimeEvent, name="model_connected"):
    """The model has set up the environment.

    Attributes:
        endpoint: Its address, ``"local"`` for one in this process.
        execution_horizon: Frames that the run executes of each chunk.
        native_chunk: Frames that the model says it predicts; None when it does not say.
        wants_history: Whether it gets the observations of replayed steps.
    """

    endpoint: str
    execution_horizon: int
    native_chunk: int | None
    wants_history: bool


@dataclass(frozen=True)
class SessionStarted(RuntimeEvent, name="session_started"):
    """Both ends are connected; the first reset comes next.

    Attributes:
        num_envs: Lanes of the run.
        autoreset_mode: Name of the mode.
        env_endpoints: Addresses of the env endpoints.
        model_endpoint: Address of the model.
        base_seed: From the spec.
        execution_horizon: From the spec.
        max_episodes: From the spec.
        max_steps: From the spec.
    """

    num_envs: int
    autoreset_mode: str
    env_endpoints: tuple[str, ...]
    model_endpoint: str
    base_seed: int | None
    execution_horizon: int
    max_episodes: int | None
    max_steps: int | None


@dataclass(frozen=True)
class EpisodeStarted(RuntimeEvent, name="episode_started"):
    """A lane holds the first observation of an episode that counts.

    Attributes:
        lane: Lane of the run.
        endpoint: Address of its endpoint.
        episode_id: The episode.
        seed: Seed of its reset; None when unseeded or begun by the env itself.
        index: Its number in the run's plan.
        started_from_auto_reset: The env began it by itself.
        render: Takes a lane and fetches a frame of it; see :class:`StepCompleted`.
    """

    lane: int
    endpoint: str
    episode_id: str
    seed: int | None
    index: int
    started_from_auto_reset: bool
    render: Callable[[int], NDArray[np.uint8] | None] = field(repr=False)


@dataclass(frozen=True)
class _RowsEvent(RuntimeEvent):
    """What every event about some lanes' rows carries.

    Attributes:
        step: Number of the vector step that acts on the observations, or that executes the actions
            (of a chunk, its first frame); from 0.
        lanes: Lane of each row.
        episode_ids: Episode of each row.
    """

    step: int
    lanes: tuple[int, ...]
    episode_ids: tuple[str, ...]


@dataclass(frozen=True)
class ObservationEmitted(_RowsEvent, name="observation_emitted"):
    """Observations are about to go to the model, transforms applied.

    Attributes:
        is_history: They were replayed over; the model gets them for its memory only.
        rows: The rows as they go out.
    """

    is_history: bool
    rows: Rows = field(repr=False)

    @property
    def observations(self) -> Any:
        """The observations in Gymnasium's vector form; decoded anew at every access."""
        return self.rows.batch()


@dataclass(frozen=True)
class ActionReceived(_RowsEvent, name="action_received"):
    """The model answered one prediction.

    Attributes:
        num_frames: Frames that will be executed, the first one included.
        frames: The rows of each frame.
    """

    num_frames: int
    frames: tuple[Rows, ...] = field(repr=False)

    @property
    def actions(self) -> Any:
        """The first frame in Gymnasium's vector form; decoded anew at every access."""
        return self.frames[0].batch()


@dataclass(frozen=True)
class StepCompleted(_RowsEvent, name="step_completed"):
    """One vector step is done, for the lanes whose episodes count.

    Attributes:
        episode_steps: Steps of that episode so far, this one included.
        rewards: float64, one per row.
        terminations: bool, one per row.
        truncations: bool, one per row; also where a limit of the run cut the episode.
        action_rows: What the env got, transforms applied.
        observation_rows: What the env answered. Under SAME_STEP an ended lane's row is already the
            next episode's first observation.
        render: Takes a lane and fetches a frame of it, uint8 ``(height, width, 3)``, or None where
            the env renders nothing. One more call to the endpoint.
    """

    episode_steps: tuple[int, ...]
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    action_rows: Rows = field(repr=False)
    observation_rows: Rows = field(repr=False)
    render: Callable[[int], NDArray[np.uint8] | None] = field(repr=False)

    @property
    def actions(self) -> Any:
        """The actions in Gymnasium's vector form; decoded anew at every access."""
        return self.action_rows.batch()

    @property
    def observations(self) -> Any:
        """The observations in Gymnasium's vector form; decoded anew at every access."""
        return self.observation_rows.batch()


@dataclass(frozen=True)
class EpisodeCompleted(RuntimeEvent, name="episode_completed"):
    """An episode that counts is over, or was cut off by the end of the run.

    Attributes:
        episode: Its record; ``interrupted`` tells the two apart.
    """

    episode: EpisodeRecord = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the event with its episode's fields."""
        return {**super().to_dict(), "episode": self.episode.to_dict()}


@dataclass(frozen=True)
class SessionEnded(RuntimeEvent, name="session_ended"):
    """The run ended as planned or was cancelled. The last event.

    Attributes:
        stop_reason: As in the report.
        report: The report that ``run`` returns.
    """

    stop_reason: str
    report: RuntimeReport = field(repr=False)


@dataclass(frozen=True)
class SessionFailed(RuntimeEvent, name="session_failed"):
    """The run failed. The last event.

    Attributes:
        error: What ``run`` raises.
        report: What was done until then.
    """

    error: BaseException = field(repr=False)
    report: RuntimeReport = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the event with the error's type and message."""
        return {**super().to_dict(), "error": f"{type(self.error).__name__}: {self.error}"}


@dataclass(frozen=True)
class LogEvent(RuntimeEvent, name="log"):
    """Something that a person may want to know.

    Attributes:
        level: A :mod:`logging` level.
        message: One line.
    """

    level: int
    message: str


@dataclass(frozen=True)
class ObservationTransform(_RowsEvent, name="transform_observation"):
    """Observations on their way to the model, to be changed.

    Attributes:
        observations: In Gymnasium's vector form. Fresh; may be changed in place and returned.
    """

    observations: Any = field(repr=False)


@dataclass(frozen=True)
class ActionTransform(_RowsEvent, name="transform_action"):
    """Actions on their way to the env, to be changed.

    Attributes:
        actions: In Gymnasium's vector form. Fresh; may be changed in place and returned.
    """

    actions: Any = field(repr=False)
