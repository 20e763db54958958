"""What is measured of every call, and the rows and snapshots that telemetry makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from rlmesh_gym.plain_data import PlainData
from rlmesh_gym.runtime.report.formatting import (
    escape,
    format_duration,
    format_unit,
    html_table,
    one_line,
    text_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


MODEL_PREDICT = "model.predict"
ENV_STEP = "env.step"
ENV_RESET = "env.reset"
OPERATIONS = (MODEL_PREDICT, ENV_STEP, ENV_RESET)

_HEADER = ("operation", "metric", "count", "avg", "p50", "p95", "p99", "total")
# A model hears of an episode's end with its next call, and may hold both for that long.
_SLACK = 3
# One family per unit: a summary's samples must share it. The operation and metric are labels.
_FAMILIES = {
    "s": ("rlmesh_gym_time_seconds", "Time by operation and metric, in seconds."),
    "bytes": ("rlmesh_gym_message_bytes", "Message size by operation and metric, in bytes."),
}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_NON_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_OTHER = ("rlmesh_gym_sample", "Other samples by operation and metric, without a unit.")


class Metric(NamedTuple):
    """One thing that is measured of every call."""

    name: str
    unit: Literal["s", "bytes"]


METRICS = (
    Metric("rpc.total", "s"),  # from sending the request to holding the answer
    Metric("endpoint.total", "s"),  # what the endpoint says it spent on the request
    Metric("endpoint.queue", "s"),  # waiting at the endpoint before work began
    Metric("endpoint.decode", "s"),  # the endpoint reading the request
    Metric("endpoint.user", "s"),  # the environment's or the model's own code
    Metric("endpoint.encode", "s"),  # the endpoint writing the answer
    Metric("endpoint.lane_skew", "s"),  # the first lane waiting for the last one
    Metric("endpoint.adapter", "s"),  # the model's observation and action adapters
    Metric("request.bytes", "bytes"),  # encoded size of the request
    Metric("response.bytes", "bytes"),  # encoded size of the answer
)
"""Every metric, in the order of :class:`CallTiming` and of a snapshot's rows."""


class CallTiming(NamedTuple):
    """One finished call, in nanoseconds and bytes; None for what was not measured.

    The fields follow :data:`METRICS`.
    """

    rpc_ns: int
    endpoint_ns: int | None = None
    queue_ns: int | None = None
    decode_ns: int | None = None
    user_ns: int | None = None
    encode_ns: int | None = None
    lane_skew_ns: int | None = None
    adapter_ns: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None


@dataclass(frozen=True)
class TelemetryRow(PlainData):
    """One metric of one operation over one horizon.

    Attributes:
        operation: ``"model.predict"``, ``"env.step"`` or ``"env.reset"``.
        metric: Such as ``"rpc.total"``, from :data:`METRICS`.
        unit: ``"s"`` or ``"bytes"``.
        count: Samples seen over the horizon.
        avg: Mean over all samples seen.
        p50: Nearest-rank percentile of the retained samples; likewise ``p95`` and ``p99``.
        p95: See ``p50``.
        p99: See ``p50``.
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


@dataclass(frozen=True)
class HeldByModel(PlainData):
    """What a model says that it keeps for episodes.

    Attributes:
        episodes: Episodes that it holds state of.
        state_bytes: Size of that state; None if it does not say.
        live: Episodes that the run was playing at that moment.
    """

    episodes: int
    state_bytes: int | None
    live: int

    @property
    def excess(self) -> int:
        """Episodes that it holds beyond those that are live."""
        return self.episodes - self.live

    @property
    def warning(self) -> str | None:
        """One sentence when the model holds many more episodes than are live, None otherwise."""
        if self.excess <= self.live + _SLACK:
            return None
        return (
            f"the model holds {self.episodes:,} episodes, {self.live:,} are live; it should drop "
            "an episode's state in reset_adapter"
        )


@dataclass(frozen=True)
class TelemetrySnapshot(PlainData):
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
        held: What the model says it keeps: the newest of a window, and of a session the one with
            the most episodes beyond the live ones. None if it does not say.
    """

    _READERS = {  # noqa: RUF012 - ClassVar in the base class
        "rows": lambda rows: tuple(map(TelemetryRow.from_dict, rows)),
        "pending": lambda pending: pending and (str(pending[0]), float(pending[1])),
        "held": lambda held: held and HeldByModel.from_dict(held),
    }

    horizon: Literal["window", "session"]
    session_id: str
    rows: tuple[TelemetryRow, ...] = ()
    taken_at: float = 0.0
    duration: float = 0.0
    pending: tuple[str, float] | None = None
    run_id: str = ""
    env_id: str = ""
    held: HeldByModel | None = None

    def row(self, operation: str, metric: str) -> TelemetryRow | None:
        """Return the row of this operation and metric, None without samples."""
        wanted = operation, metric
        return next((row for row in self.rows if (row.operation, row.metric) == wanted), None)

    @property
    def _title(self) -> str:
        title = f"telemetry of the {self.horizon} ({format_duration(self.duration)})"
        if self.pending is not None:
            operation, seconds = self.pending
            title += f"; {one_line(operation)} is waiting for {format_duration(seconds)}"
        return title if self.rows else f"{title}: no samples"

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        cells = []
        for row in self.rows:
            numbers = (row.avg, row.p50, row.p95, row.p99, row.total)
            texts = (format_unit(number, row.unit) for number in numbers)
            cells.append((row.operation, row.metric, f"{row.count:,}", *texts))
        return cells

    def __str__(self) -> str:
        if not self.rows:
            return self._title
        return f"{self._title}\n{text_table(_HEADER, self._cells, left=(0, 1))}"

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{escape(self._title)}</p>"
        return html_table(_HEADER, self._cells, left=(0, 1), caption=self._title)


def prometheus_text(snapshot: TelemetrySnapshot) -> str:
    """Write ``snapshot`` in Prometheus's text exposition format (version 0.0.4).

    Every telemetry row becomes a summary with the quantiles 0.5, 0.95 and 0.99, its sum and its
    count, labelled with session, horizon, operation and metric. Serve it under ``/metrics`` with
    the type ``text/plain; version=0.0.4``, or write it where a node exporter's textfile collector
    looks.

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
