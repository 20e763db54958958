"""The OpenTelemetry hook, against the SDK's in-memory exporters where they are installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlmesh_gym.errors import EnvError
from rlmesh_gym.runtime import RuntimeLimits, run
from rlmesh_gym.runtime.hooks.otel import OpenTelemetryHooks
from tests.fake_envs import FailingEnv, SleepEnv, counting_vector
from tests.runtime.runtime_doubles import SteadyModel


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ImportError, match=r'pip install "rlmesh-gym\[otel\]"'):
        OpenTelemetryHooks()


@pytest.fixture
def telemetry() -> tuple[OpenTelemetryHooks, Any, Any]:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    readers = pytest.importorskip("opentelemetry.sdk.metrics.export")
    spans = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    reader = readers.InMemoryMetricReader()
    hooks = OpenTelemetryHooks(provider, metrics.MeterProvider([reader]))
    return hooks, spans, reader


def points(reader: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = list(metric.data.data_points)
    return found


def test_spans_and_metrics_of_a_run(telemetry: tuple[OpenTelemetryHooks, Any, Any]) -> None:
    hooks, spans, reader = telemetry
    report = run(counting_vector(2), SteadyModel(), episodes=4, seed=1, hooks=hooks)
    *episodes, whole = spans.get_finished_spans()
    assert whole.name == "rlmesh_gym.run"
    assert whole.attributes["rlmesh.run_id"] == report.run_id
    assert whole.attributes["rlmesh.stop_reason"] == "max_episodes"
    assert {span.attributes["rlmesh.episode_id"] for span in episodes} == {
        episode.episode_id for episode in report.episodes
    }
    assert all(span.parent.span_id == whole.context.span_id for span in episodes)
    metrics = points(reader)
    assert sum(point.value for point in metrics["rlmesh_gym.steps"]) == report.total_steps
    assert sum(point.value for point in metrics["rlmesh_gym.episodes"]) == 4
    assert sum(point.sum for point in metrics["rlmesh_gym.episode.return"]) == report.total_reward


def test_windows_and_failures(telemetry: tuple[OpenTelemetryHooks, Any, Any]) -> None:
    hooks, spans, reader = telemetry
    limits = RuntimeLimits(telemetry_window=0.005)
    run(SleepEnv(5, seconds=0.01), SteadyModel(), episodes=1, hooks=hooks, limits=limits)
    assert "rlmesh_gym.rpc.p95" in points(reader)
    with pytest.raises(EnvError, match="gripper") as caught:
        run(FailingEnv(), SteadyModel(), episodes=1, hooks=hooks)
    assert isinstance(caught.value.__cause__, ValueError)  # With the env's own traceback.
    failed = spans.get_finished_spans()[-1]
    assert failed.status.status_code.name == "ERROR"
    assert "gripper" in failed.status.description
