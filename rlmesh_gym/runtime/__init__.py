"""The run loop: one model in one environment, with its hooks, its telemetry and its report."""

from __future__ import annotations

from rlmesh_gym.env.open.sources import AnyEnvSession as RuntimeEnv
from rlmesh_gym.episodes import EpisodeRecord, EpisodeSummary
from rlmesh_gym.policy.any_session import AnyModelSession as RuntimeModel
from rlmesh_gym.runtime.cancellation import Cancellation
from rlmesh_gym.runtime.driver import RuntimeDriver, run
from rlmesh_gym.runtime.hooks import events
from rlmesh_gym.runtime.hooks.events import (
    ActionReceived,
    ActionTransform,
    EnvConnected,
    EpisodeCompleted,
    EpisodeStarted,
    LogEvent,
    ModelConnected,
    ObservationEmitted,
    ObservationTransform,
    RuntimeEvent,
    SessionEnded,
    SessionFailed,
    SessionStarted,
    StepCompleted,
)
from rlmesh_gym.runtime.hooks.jsonl import EpisodeRecorder, JsonLinesRecorder
from rlmesh_gym.runtime.hooks.otel import OpenTelemetryHooks
from rlmesh_gym.runtime.hooks.progress import ProgressBar
from rlmesh_gym.runtime.hooks.table import CompositeHooks, RuntimeHooks
from rlmesh_gym.runtime.hooks.video import VideoRecorder
from rlmesh_gym.runtime.report.bottleneck import Bottleneck
from rlmesh_gym.runtime.report.metrics import (
    HeldByModel,
    TelemetryRow,
    TelemetrySnapshot,
    prometheus_text,
)
from rlmesh_gym.runtime.report.records import EpisodeJournal, read_episodes
from rlmesh_gym.runtime.report.report_files import merge_episodes, read_report, write_report
from rlmesh_gym.runtime.report.runtime_report import RuntimeReport
from rlmesh_gym.runtime.spec import RuntimeLimits, RuntimeSessionSpec, derive_seed

__all__ = [
    "ActionReceived",
    "ActionTransform",
    "Bottleneck",
    "Cancellation",
    "CompositeHooks",
    "EnvConnected",
    "EpisodeCompleted",
    "EpisodeJournal",
    "EpisodeRecord",
    "EpisodeRecorder",
    "EpisodeStarted",
    "EpisodeSummary",
    "HeldByModel",
    "JsonLinesRecorder",
    "LogEvent",
    "ModelConnected",
    "ObservationEmitted",
    "ObservationTransform",
    "OpenTelemetryHooks",
    "ProgressBar",
    "RuntimeDriver",
    "RuntimeEnv",
    "RuntimeEvent",
    "RuntimeHooks",
    "RuntimeLimits",
    "RuntimeModel",
    "RuntimeReport",
    "RuntimeSessionSpec",
    "SessionEnded",
    "SessionFailed",
    "SessionStarted",
    "StepCompleted",
    "TelemetryRow",
    "TelemetrySnapshot",
    "VideoRecorder",
    "derive_seed",
    "events",
    "merge_episodes",
    "prometheus_text",
    "read_episodes",
    "read_report",
    "run",
    "write_report",
]
