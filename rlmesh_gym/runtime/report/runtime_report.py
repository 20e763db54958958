"""What a run leaves behind: totals, one summary per episode, telemetry, and what bound it.

Plain frozen dataclasses that turn into JSON and back. They know neither sessions nor messages.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlmesh_gym.runtime.report.records import jsonable
from rlmesh_gym.runtime.report.summary import EpisodeStatistics
from rlmesh_gym.runtime.report.tables import (
    report_html,
    report_text,
    telemetry_html,
    telemetry_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Bottleneck",
    "EpisodeSummary",
    "RuntimeReport",
    "TelemetryRow",
    "TelemetrySnapshot",
]

Horizon = Literal["window", "session"]


def _known_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    # Unknown keys come from a newer version; dropping them keeps old readers working.
    names = {item.name for item in dataclasses.fields(cls)}
    return {key: value for key, value in data.items() if key in names}


@dataclass(frozen=True)
class EpisodeSummary:
    """One episode, as it ended.

    Attributes:
        episode_id: The UUIDv7 minted by the driver.
        lane: Lane of the run, counted over all endpoints.
        endpoint: Address of the env endpoint, ``"local"`` for an env in this process.
        env_id: Id of the environment, from its contract.
        seed: Seed of the episode's reset; None when the env's own autoreset began it.
        index: Place in the run's plan: episode number ``index // num_envs`` of lane ``lane``.
        length: Steps.
        episode_return: Undiscounted sum of rewards.
        terminated: The env said so in the last step.
        truncated: The env said so, or a limit of the run cut the episode.
        interrupted: The run ended first (cancellation, failure, step limit); the numbers are what
            was reached.
        success: ``is_success`` or ``success`` of the final info, None if it has neither.
        started_at: Seconds since the Unix epoch.
        duration: Seconds from the first observation to the last.
        env_time: Seconds that the run waited for the env during this episode.
        policy_time: Seconds that the run waited for the policy during this episode.
        final_info: The last step's info, plain data.
    """

    episode_id: str
    lane: int
    endpoint: str
    env_id: str
    seed: int | None
    length: int
    episode_return: float
    terminated: bool
    truncated: bool
    interrupted: bool = False
    success: bool | None = None
    started_at: float = 0.0
    duration: float = 0.0
    env_time: float = 0.0
    policy_time: float = 0.0
    index: int = 0
    final_info: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps(..., allow_nan=False)`` takes."""
        result: dict[str, Any] = jsonable(
            {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        )
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeSummary:
        """Rebuild from :meth:`to_dict`; keys that are not known are ignored."""
        known = _known_fields(cls, data)
        for name in ("episode_return", "started_at", "duration", "env_time", "policy_time"):
            if name in known:
                known[name] = float(known[name])
        return cls(**known)


@dataclass(frozen=True)
class TelemetryRow:
    """One metric of one operation over one horizon.

    Attributes:
        operation: ``"model.predict"``, ``"env.step"`` or ``"env.reset"``.
        metric: Such as ``"rpc.total"``, from the catalogue ``telemetry.METRICS``.
        unit: ``"s"`` or ``"bytes"``.
        count: Samples seen over the horizon.
        avg: Mean over all samples seen.
        p50: Nearest-rank percentile of the retained samples; likewise ``p95`` and ``p99``.
        total: Sum over all samples seen.
    """

    operation: str
    metric: str
    unit: str
    count: int
    avg: float
    p50: float
    p95: float
    p99: float
    total: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TelemetryRow:
        """Rebuild from :meth:`to_dict`."""
        return cls(**_known_fields(cls, data))


@dataclass(frozen=True)
class TelemetrySnapshot:
    """All rows of one horizon at one moment.

    Attributes:
        horizon: ``"window"`` (since the snapshot before) or ``"session"`` (since the start).
        session_id: Name of the session.
        rows: In the order of the catalogue; metrics without samples have no row.
        taken_at: Seconds since the Unix epoch.
        duration: Seconds that the horizon covers.
        pending: Operation that hangs at this moment, such as ``"env.step"``, and for how many
            seconds; None when none does.
        run_id: The run, as its events name it.
        env_id: Its environment, empty before that is connected.
    """

    horizon: Horizon
    session_id: str
    rows: tuple[TelemetryRow, ...] = ()
    taken_at: float = 0.0
    duration: float = 0.0
    pending: tuple[str, float] | None = None
    run_id: str = ""
    env_id: str = ""

    def __str__(self) -> str:
        return telemetry_text(self)

    def _repr_html_(self) -> str:
        return telemetry_html(self)

    def row(self, operation: str, metric: str) -> TelemetryRow | None:
        """Return the row of this operation and metric, None without samples."""
        for row in self.rows:
            if row.operation == operation and row.metric == metric:
                return row
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "horizon": self.horizon,
            "session_id": self.session_id,
            "rows": [row.to_dict() for row in self.rows],
            "taken_at": self.taken_at,
            "duration": self.duration,
            "pending": None if self.pending is None else list(self.pending),
            "run_id": self.run_id,
            "env_id": self.env_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TelemetrySnapshot:
        """Rebuild from :meth:`to_dict`."""
        known = _known_fields(cls, data)
        known["rows"] = tuple(TelemetryRow.from_dict(row) for row in known.get("rows", ()))
        pending = known.get("pending")
        known["pending"] = None if pending is None else (str(pending[0]), float(pending[1]))
        return cls(**known)


@dataclass(frozen=True)
class Bottleneck:
    """What bound the run.

    Attributes:
        sentence: One plain sentence for people.
        shares: Part of the loop's time, without what came before and after it, by ``"env"``,
            ``"wire"``, ``"policy"`` and ``"loop"``; they sum to 1, or are all 0 for a run that did
            nothing.
    """

    sentence: str
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"sentence": self.sentence, "shares": dict(self.shares)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Bottleneck:
        """Rebuild from :meth:`to_dict`."""
        return cls(
            sentence=str(data["sentence"]),
            shares={str(key): float(value) for key, value in data["shares"].items()},
        )


@dataclass(frozen=True)
class RuntimeReport:
    """What :meth:`RuntimeDriver.run` returns, and what a failed run's error carries as ``report``.

    Attributes:
        session_id: Id of the run; part of the seed derivation.
        env_id: Id of the environment.
        num_envs: Lanes over all endpoints.
        autoreset_mode: Name of the mode, such as ``"NEXT_STEP"``.
        env_endpoints: Addresses of the env endpoints, ``("local",)`` for an env in this process.
        model_endpoint: Address of the model, ``"local"`` for one in this process.
        base_seed: Seed that the per-lane seeds derive from, None when unseeded.
        execution_horizon: Frames of a predicted chunk that are executed.
        episodes: Completed episodes ordered by ``(index, lane)``, then the interrupted ones.
        total_steps: Lane steps of all these episodes; steps that a lane made while it waited for
            the others, or to roll over to its next episode, are not among them.
        total_reward: Sum of all rewards of ``total_steps``.
        started_at: Seconds since the Unix epoch.
        duration: Seconds.
        stop_reason: ``"max_episodes"``, ``"max_steps"``, ``"cancelled: …"`` or ``"failed"``.
        error: Type and message of the failure, None otherwise.
        telemetry: Snapshot of the session horizon.
        bottleneck: What bound the run.
        run_id: A UUIDv7, new in every run.
    """

    session_id: str
    env_id: str
    num_envs: int
    autoreset_mode: str
    env_endpoints: tuple[str, ...]
    model_endpoint: str
    base_seed: int | None
    execution_horizon: int
    episodes: tuple[EpisodeSummary, ...]
    total_steps: int
    total_reward: float
    started_at: float
    duration: float
    stop_reason: str
    error: str | None
    telemetry: TelemetrySnapshot
    bottleneck: Bottleneck
    run_id: str = ""

    def __str__(self) -> str:
        return report_text(self)

    def _repr_html_(self) -> str:
        return report_html(self)

    @property
    def completed_episodes(self) -> tuple[EpisodeSummary, ...]:
        """Episodes that ended by themselves or by an episode limit, none that the run cut off."""
        return tuple(episode for episode in self.episodes if not episode.interrupted)

    @property
    def statistics(self) -> EpisodeStatistics:
        """Returns, lengths and successes of the completed episodes."""
        return EpisodeStatistics.of(self.episodes)

    @property
    def mean_return(self) -> float:
        """Mean return of the completed episodes; NaN without any."""
        return self.statistics.returns.mean

    @property
    def succeeded(self) -> bool:
        """Whether the run ended without an error and was not cancelled."""
        return self.error is None and not self.stop_reason.startswith("cancelled")

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps(..., allow_nan=False)`` takes."""
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        data["episodes"] = [episode.to_dict() for episode in self.episodes]
        data["telemetry"] = self.telemetry.to_dict()
        data["bottleneck"] = self.bottleneck.to_dict()
        result: dict[str, Any] = jsonable(data)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RuntimeReport:
        """Rebuild from :meth:`to_dict`; keys that are not known are ignored."""
        known = _known_fields(cls, data)
        known["env_endpoints"] = tuple(known["env_endpoints"])
        known["episodes"] = tuple(EpisodeSummary.from_dict(item) for item in known["episodes"])
        known["telemetry"] = TelemetrySnapshot.from_dict(known["telemetry"])
        known["bottleneck"] = Bottleneck.from_dict(known["bottleneck"])
        for name in ("total_reward", "started_at", "duration"):
            known[name] = float(known[name])
        return cls(**known)
