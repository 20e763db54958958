"""A telemetry snapshot in Prometheus's text exposition format (version 0.0.4).

Serve the text under ``/metrics`` with the type ``text/plain; version=0.0.4``, or write it where a
node exporter's textfile collector looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlmesh_gym.runtime.report.metrics import TelemetryRow, TelemetrySnapshot

__all__ = ["prometheus_text"]

# One family per unit: a summary's samples must share it. The operation and metric are labels.
_FAMILIES = {
    "s": ("rlmesh_gym_time_seconds", "Time by operation and metric, in seconds."),
    "bytes": ("rlmesh_gym_message_bytes", "Message size by operation and metric, in bytes."),
}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_NON_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_OTHER = ("rlmesh_gym_sample", "Other samples by operation and metric, without a unit.")


def prometheus_text(snapshot: TelemetrySnapshot) -> str:
    """Write ``snapshot`` as Prometheus text.

    Every telemetry row becomes a summary with the quantiles 0.5, 0.95 and 0.99, its sum and its
    count, labelled with session, horizon, operation and metric.

    Returns:
        Text that ends with a newline, as the format asks.
    """
    labels = {"session": snapshot.session_id, "horizon": snapshot.horizon}
    families: dict[tuple[str, str], list[TelemetryRow]] = {}
    for row in snapshot.rows:
        families.setdefault(_FAMILIES.get(row.unit, _OTHER), []).append(row)
    lines: list[str] = []
    for (name, text), rows in families.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} summary"]
        for row in rows:
            own = {**labels, "operation": row.operation, "metric": row.metric}
            for quantile, value in (("0.5", row.p50), ("0.95", row.p95), ("0.99", row.p99)):
                lines.append(_sample(name, {**own, "quantile": quantile}, value))
            lines += [
                _sample(f"{name}_sum", own, row.total),
                _sample(f"{name}_count", own, row.count),
            ]
    lines += [
        "# HELP rlmesh_gym_horizon_seconds Time that the snapshot covers, in seconds.",
        "# TYPE rlmesh_gym_horizon_seconds gauge",
        _sample("rlmesh_gym_horizon_seconds", labels, snapshot.duration),
        "# HELP rlmesh_gym_pending_seconds For how long the operation in flight has been waiting.",
        "# TYPE rlmesh_gym_pending_seconds gauge",
    ]
    if snapshot.pending is not None:
        operation, seconds = snapshot.pending
        own = {**labels, "operation": operation}
        lines.append(_sample("rlmesh_gym_pending_seconds", own, seconds))
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    number = repr(value)
    return f"{name}{{{inner}}} {_NON_FINITE.get(number, number)}"
