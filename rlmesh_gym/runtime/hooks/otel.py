"""A hook that tells OpenTelemetry about a run: spans of run and episodes, metrics of both.

Needs the extra ``rlmesh-gym[otel]``. The API alone does nothing; the application configures the SDK
and where it exports to.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlmesh_gym._version import __version__
from rlmesh_gym.runtime.hooks.table import RuntimeHooks

if TYPE_CHECKING:
    from rlmesh_gym.runtime.hooks import events
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot


_SCOPE = "rlmesh_gym.runtime"
_NS = 1_000_000_000


class OpenTelemetryHooks(RuntimeHooks):
    """One span per run with one child per episode; counters and histograms beside them.

    Spans: ``rlmesh_gym.run`` and ``rlmesh_gym.episode``. Metrics: ``rlmesh_gym.steps``,
    ``rlmesh_gym.episodes``, ``rlmesh_gym.episode.return``, ``rlmesh_gym.episode.length`` and, from
    every telemetry window, ``rlmesh_gym.rpc.p50``, ``.p95`` and ``.p99`` in seconds.

    Args:
        tracer_provider: None for the global one.
        meter_provider: None for the global one.

    Raises:
        ImportError: OpenTelemetry is not installed; the message says what to install.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        try:
            trace = import_module("opentelemetry.trace")
            metrics = import_module("opentelemetry.metrics")
        except ImportError as error:
            raise ImportError(
                'OpenTelemetryHooks needs OpenTelemetry: pip install "rlmesh-gym[otel]"'
            ) from error
        self._trace = trace
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._steps = meter.create_counter("rlmesh_gym.steps", "{step}", "Lane steps")
        self._episodes = meter.create_counter("rlmesh_gym.episodes", "{episode}", "Episodes ended")
        self._returns = meter.create_histogram("rlmesh_gym.episode.return", "1", "Return")
        self._lengths = meter.create_histogram("rlmesh_gym.episode.length", "{step}", "Length")
        self._latencies = {
            name: meter.create_histogram(f"rlmesh_gym.rpc.{name}", "s", f"{name} of a window")
            for name in ("p50", "p95", "p99")
        }
        self._run: Any = None
        self._attributes: dict[str, Any] = {}

    def session_started(self, event: events.SessionStarted) -> None:
        """Begin the run's span."""
        self._attributes = {"rlmesh.session_id": event.session_id, "rlmesh.env_id": event.env_id}
        self._run = self._tracer.start_span(
            "rlmesh_gym.run",
            attributes={
                **self._attributes,
                "rlmesh.run_id": event.run_id,
                "rlmesh.num_envs": event.num_envs,
                "rlmesh.autoreset_mode": event.autoreset_mode,
                "rlmesh.model": event.model_endpoint,
                "rlmesh.execution_horizon": event.execution_horizon,
            },
        )

    def step_completed(self, event: events.StepCompleted) -> None:
        """Count the lanes' steps."""
        self._steps.add(len(event.lanes), self._attributes)

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        """Write the episode's span, with the times it really had."""
        episode = event.episode
        context = None if self._run is None else self._trace.set_span_in_context(self._run)
        begun = int(episode.started_at * _NS)
        names = ("episode_id", "lane", "endpoint", "seed", "length", "success", "end")
        told = {f"rlmesh.{name}": getattr(episode, name) for name in names}
        told["rlmesh.return"] = episode.episode_return
        known = {name: value for name, value in told.items() if value is not None}
        span = self._tracer.start_span(
            "rlmesh_gym.episode",
            context=context,
            start_time=begun,
            attributes={**self._attributes, **known},
        )
        span.end(begun + int(episode.duration * _NS))
        labels = {**self._attributes, "rlmesh.end": episode.end}
        self._episodes.add(1, labels)
        self._returns.record(episode.episode_return, labels)
        self._lengths.record(episode.length, labels)

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        """Record the latencies of a window."""
        if snapshot.horizon != "window":
            return
        for row in snapshot.rows:
            if row.metric == "rpc.total":
                labels = {**self._attributes, "rlmesh.operation": row.operation}
                for name, histogram in self._latencies.items():
                    histogram.record(getattr(row, name), labels)

    def session_ended(self, event: events.SessionEnded) -> None:
        """End the run's span."""
        if self._run is not None:
            self._run.set_attribute("rlmesh.stop_reason", event.stop_reason)
            self._end_run()

    def session_failed(self, event: events.SessionFailed) -> None:
        """End the run's span with the error."""
        if self._run is not None:
            self._run.record_exception(event.error)
            self._run.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(event.error)))
            self._end_run()

    def _end_run(self) -> None:
        self._run.end()
        self._run = None
