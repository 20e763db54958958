"""The report of a run as one page that needs nothing else: no network, no library, no fonts.

Everything that an environment or a model said passes through ``escape``. Should something slip
through nevertheless, the page's content policy admits its own script only, by hash.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym._version import __version__
from rlmesh_gym.runtime.report.charts import histogram, series, split_bar
from rlmesh_gym.runtime.report.episode_table import episode_section
from rlmesh_gym.runtime.report.formatting import count_of, escape, format_duration, format_number

if TYPE_CHECKING:
    from rlmesh_gym.episodes import EpisodeStatistics
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot
    from rlmesh_gym.runtime.report.runtime_report import RuntimeReport


_SIGNIFICANT = 6

_SHARES = {"env": "environment", "wire": "wire", "policy": "policy", "loop": "the loop itself"}
_PHASES = (
    ("endpoint.queue", "queue", "queue"),
    ("endpoint.decode", "decode", "decode"),
    ("endpoint.user", "user code", "env"),
    ("endpoint.adapter", "adapters", "adapter"),
    ("endpoint.encode", "encode", "encode"),
)


def html_report(report: RuntimeReport) -> str:
    """The page of a finished, failed or interrupted run, to be encoded as UTF-8."""
    assets = files("rlmesh_gym.runtime.report") / "assets"
    style = (assets / "report.css").read_text("utf-8")
    script = (assets / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [
        _heading(report),
        _tiles(report),
        _time_split(report),
        _charts(report.statistics),
        _latency(report.telemetry),
        episode_section(report.episodes),
        _facts(report),
    ]
    # The script expects the table's elements, which a run without episodes has not.
    tail = f"<script>{script}</script>" if report.episodes else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="rlmesh-gym {__version__}">'
        f"<title>{escape(report.env_id)}: evaluation report</title><style>{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(filter(None, sections))}\n"
        f"<footer>Written by rlmesh-gym {__version__}. Beside this page: report.json and "
        "episodes.csv hold the same data in full.</footer>\n"
        f"</main>{tail}</body></html>\n"
    )


def _heading(report: RuntimeReport) -> str:
    lanes = count_of(report.num_envs, "lane")
    reason, cause = f", ended by {escape(report.stop_reason)}", ""
    kind, text = ("good", "finished") if report.succeeded else ("warn", "stopped early")
    if report.error is not None:
        # A failure says more than the word "failed".
        reason, cause = "", f'<p class="error">{escape(report.error, 2000)}</p>'
        kind, text = "bad", "failed"
    return (
        f'<header><div class="title"><h1>{escape(report.env_id or "(no env id)", 120)}</h1>'
        f'<span class="badge {kind}">{text}</span></div>'
        f'<p class="lead">{lanes}, model {escape(report.model_endpoint)}. '
        f"Began {_moment(report.started_at)}, took {format_duration(report.duration)}"
        f"{reason}.</p>{cause}</header>"
    )


def _tiles(report: RuntimeReport) -> str:
    inner = "".join(
        f'<div class="tile"><dt>{name}</dt><dd class="value">{value}</dd>'
        f'<dd class="more">{more}</dd></div>'
        for name, value, more in report.headline()
    )
    return f'<dl class="tiles">{inner}</dl>'


def _time_split(report: RuntimeReport) -> str:
    shares = report.bottleneck.shares
    parts = [(text, max(0.0, shares.get(name, 0.0)), name) for name, text in _SHARES.items()]
    drawn = any(share > 0 for _, share, _ in parts)
    bar = split_bar(parts, label="Time of the run by part") if drawn else ""
    notes = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in report.notes)
    per_call = "".join(
        _call_split(report.telemetry, operation)
        for operation in dict.fromkeys(row.operation for row in report.telemetry.rows)
    )
    sentence = f'<p class="sentence">{escape(report.bottleneck.sentence)}</p>'
    return _card("Where the time went", f"{sentence}{notes}{bar}{per_call}")


def _call_split(snapshot: TelemetrySnapshot, operation: str) -> str:
    """One operation's time on the wire and in each phase that its endpoint told of."""
    rpc = snapshot.row(operation, "rpc.total")
    endpoint = snapshot.row(operation, "endpoint.total")
    if rpc is None or endpoint is None or rpc.total <= 0:
        return ""
    total = max(rpc.total, endpoint.total)
    parts = [("wire", max(0.0, total - endpoint.total) / total, "wire")]
    told = 0.0
    for metric, name, kind in _PHASES:
        row = snapshot.row(operation, metric)
        if row is not None:
            told += row.total
            is_model = metric == "endpoint.user" and operation.startswith("model.")
            parts.append((name, row.total / total, "policy" if is_model else kind))
    parts.append(("rest of the endpoint", max(0.0, endpoint.total - told) / total, "rest"))
    # Phases may overlap where an endpoint works on several requests; then they are scaled down.
    whole = sum(share for _, share, _ in parts)
    parts = [(name, share / whole, kind) for name, share, kind in parts]
    calls = count_of(rpc.count, "call")
    title = f"{escape(operation)}: {format_duration(rpc.avg)} on average, {calls}"
    return f"<h3>{title}</h3>{split_bar(parts, label=f'Time of {operation} by phase')}"


def _charts(statistics: EpisodeStatistics) -> str:
    returns, lengths = statistics.returns, statistics.lengths
    note = ""
    if statistics.completed == 0:
        note = (
            '<p class="note">No episode was completed, so there is nothing to draw. The facts '
            "below tell what was asked for.</p>"
        )
    elif returns.left_out:
        note = f'<p class="note">Left out: {returns.left_out:,} returns that are not finite.</p>'
    if returns.values.size == 0:
        return _card("Returns", note)
    whole = bool(np.all(returns.values == np.round(returns.values)))
    over_time = f"{series(returns.values, label='return')}{note}"
    return (
        f'{_card("Returns over the episodes", over_time, "card wide")}<div class="pair">'
        f"{_card('Returns', histogram(returns.values, label='return', integer=whole))}"
        f"{_card('Lengths', histogram(lengths.values, label='steps', integer=True))}</div>"
    )


def _latency(snapshot: TelemetrySnapshot) -> str:
    table = '<p class="note">No call was measured.</p>'
    if snapshot.rows:
        table = (
            '<div class="scroll latency" tabindex="0" role="region" aria-label="Latency table">'
            f"{snapshot._repr_html_()}</div>"
        )
    return _card("Latency per operation", table)


def _card(title: str, body: str, kind: str = "card") -> str:
    return f'<section class="{kind}"><h2>{title}</h2>{body}</section>'


def _facts(report: RuntimeReport) -> str:
    facts = [
        ("session", report.session_id),
        ("seed", "none" if report.base_seed is None else report.base_seed),
        ("autoreset mode", report.autoreset_mode),
        ("execution horizon", report.execution_horizon),
        ("env endpoints", ", ".join(report.env_endpoints)),
        ("model endpoint", report.model_endpoint),
        ("total reward", format_number(report.total_reward, _SIGNIFICANT)),
        ("ended by", report.stop_reason),
    ]
    inner = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value, 2000)}</dd></div>" for name, value in facts
    )
    return _card("The run", f'<dl class="facts">{inner}</dl>')


def _moment(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
