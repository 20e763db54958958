"""Plain tables: columns aligned for a terminal, or the same cells as HTML for a notebook.

It formats numbers and pads text; it prints nothing.
"""

from __future__ import annotations

import html
import math
import unicodedata
from typing import TYPE_CHECKING

from rlmesh_gym.runtime.report.summary import EpisodeStatistics, outcome, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.runtime.report.runtime_report import (
        EpisodeSummary,
        RuntimeReport,
        TelemetryRow,
        TelemetrySnapshot,
    )

__all__ = [
    "episodes_html",
    "episodes_text",
    "escape",
    "format_bytes",
    "format_duration",
    "format_number",
    "html_table",
    "one_line",
    "report_html",
    "report_text",
    "telemetry_cells",
    "telemetry_html",
    "telemetry_text",
    "text_table",
]

TELEMETRY_HEADER = ("operation", "metric", "count", "avg", "p50", "p95", "p99", "total")
EPISODE_HEADER = ("episode", "lane", "seed", "return", "length", "end", "success", "seconds")

_LONGEST_TEXT = 300
_THOUSAND = 1000.0
_EXACT_BELOW = 1e15  # Whole floats print as integers up to here; beyond, digits would be made up.


def one_line(value: object, limit: int = _LONGEST_TEXT) -> str:
    r"""``value`` as printable text on one line, at most ``limit`` characters.

    Control characters (terminal escapes among them) and lone surrogates become ``\ufffd``, white
    space becomes single blanks.
    """
    blanks = " ".join(str(value).split())
    clean = "".join("\ufffd" if unicodedata.category(char) in _HIDDEN else char for char in blanks)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


_HIDDEN = {"Cc", "Cs", "Cf"}  # Cf holds the marks that turn the writing direction.


def escape(value: object, limit: int = _LONGEST_TEXT) -> str:
    """``one_line(value)``, safe as HTML text and as a quoted attribute."""
    return html.escape(one_line(value, limit), quote=True)


def format_number(value: float | None, digits: int = 4) -> str:
    """A number for people: ``digits`` significant ones, thousands grouped, ``—`` for none."""
    if value is None or math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < _EXACT_BELOW:
        return f"{int(value):,}"
    if abs(value) >= 10.0 ** (digits - 1):
        return f"{value:,.0f}" if abs(value) < _EXACT_BELOW else f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def format_duration(seconds: float) -> str:
    """A time with the unit that suits its size, from microseconds to hours."""
    if math.isnan(seconds):
        return "—"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def format_bytes(count: float) -> str:
    """A size in B, kB, MB or GB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < _THOUSAND:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= _THOUSAND
    return f"{count:.3g} GB"


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)
) -> str:
    """Columns padded to equal width, two blanks apart; ``left`` names the left-aligned ones."""
    cells = [[one_line(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    caption: str = "",
) -> str:
    """The same cells as an HTML table; every cell is escaped here."""

    def row_html(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{'' if column in left else ' class=num'}>{escape(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        )
        return f"<tr>{inner}</tr>"

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(row_html(row, "td") for row in rows)
    return f"<table>{title}<thead>{row_html(header, 'th')}</thead><tbody>{body}</tbody></table>"


_SHOW: dict[str, Callable[[float], str]] = {"s": format_duration, "bytes": format_bytes}


def telemetry_cells(rows: Sequence[TelemetryRow]) -> list[tuple[str, ...]]:
    """The cells of ``TELEMETRY_HEADER`` for each row, with units."""
    cells = []
    for row in rows:
        show = _SHOW.get(row.unit, format_number)
        numbers = (row.avg, row.p50, row.p95, row.p99, row.total)
        cells.append((row.operation, row.metric, f"{row.count:,}", *map(show, numbers)))
    return cells


def _telemetry_title(snapshot: TelemetrySnapshot) -> str:
    title = f"telemetry of the {snapshot.horizon} ({format_duration(snapshot.duration)})"
    if snapshot.pending is not None:
        operation, seconds = snapshot.pending
        title += f"; {one_line(operation)} is waiting for {format_duration(seconds)}"
    return title


def telemetry_text(snapshot: TelemetrySnapshot) -> str:
    """A snapshot as a table for the terminal."""
    title = _telemetry_title(snapshot)
    if not snapshot.rows:
        return f"{title}: no samples"
    table = text_table(TELEMETRY_HEADER, telemetry_cells(snapshot.rows), left=(0, 1))
    return f"{title}\n{table}"


def telemetry_html(snapshot: TelemetrySnapshot) -> str:
    """A snapshot as an HTML table, for ``_repr_html_``."""
    title = _telemetry_title(snapshot)
    if not snapshot.rows:
        return f"<p>{escape(title)}: no samples</p>"
    return html_table(TELEMETRY_HEADER, telemetry_cells(snapshot.rows), left=(0, 1), caption=title)


def _episode_cells(episodes: Sequence[EpisodeSummary]) -> list[tuple[str, ...]]:
    verdict = {None: "—", True: "yes", False: "no"}
    return [
        (
            # The end of a UUIDv7 is random, its beginning only the time.
            f"…{one_line(episode.episode_id)[-12:]}",
            str(episode.lane),
            "—" if episode.seed is None else str(episode.seed),
            format_number(episode.episode_return),
            f"{episode.length:,}",
            outcome(episode),
            verdict[episode.success],
            f"{episode.duration:.2f}",
        )
        for episode in episodes
    ]


def _chosen(
    episodes: Sequence[EpisodeSummary], limit: int | None
) -> tuple[Sequence[EpisodeSummary], str]:
    if limit is None or len(episodes) <= limit:
        return episodes, ""
    return episodes[len(episodes) - limit :], f"the last {limit:,} of {len(episodes):,} episodes"


def episodes_text(episodes: Sequence[EpisodeSummary], limit: int | None = 20) -> str:
    """Episodes as a table for the terminal, the last ``limit`` of them; None for all."""
    if not episodes:
        return "no episodes"
    chosen, note = _chosen(episodes, limit)
    table = text_table(EPISODE_HEADER, _episode_cells(chosen), left=(0, 5))
    return f"{note}\n{table}" if note else table


def episodes_html(episodes: Sequence[EpisodeSummary], limit: int | None = 20) -> str:
    """Episodes as an HTML table, the last ``limit`` of them; None for all."""
    if not episodes:
        return "<p>no episodes</p>"
    chosen, note = _chosen(episodes, limit)
    return html_table(EPISODE_HEADER, _episode_cells(chosen), left=(0, 5), caption=note)


def _summary_pairs(report: RuntimeReport) -> list[tuple[str, str]]:
    statistics = EpisodeStatistics.of(report.episodes)
    returns = statistics.returns
    rate = report.total_steps / report.duration if report.duration > 0 else 0.0
    lanes = "1 lane" if report.num_envs == 1 else f"{report.num_envs} lanes"
    pairs = [
        ("environment", f"{one_line(report.env_id)}, {lanes}"),
        ("env endpoints", ", ".join(map(one_line, report.env_endpoints))),
        ("model", one_line(report.model_endpoint)),
        ("episodes", f"{statistics.completed:,}"),
    ]
    if statistics.interrupted:
        pairs.append(("interrupted", f"{statistics.interrupted:,}"))
    if statistics.completed:
        spread = (
            ""
            if math.isnan(returns.ci95)
            else f" ± {format_number(returns.ci95, 3)} (95% interval)"
        )
        span = f"{format_number(returns.minimum)} … {format_number(returns.maximum)}"
        pairs += [
            ("mean return", f"{format_number(returns.mean)}{spread}"),
            ("returns", f"{span}, median {format_number(returns.median)}"),
            ("mean length", format_number(statistics.lengths.mean)),
        ]
    if statistics.success_rate is not None:
        low, high = wilson_interval(statistics.successes, statistics.judged)
        pairs.append(
            (
                "success rate",
                f"{statistics.success_rate:.1%} ({statistics.successes} of {statistics.judged},"
                f" 95% interval {low:.0%} to {high:.0%})",
            )
        )
    pairs += [
        ("steps", f"{report.total_steps:,} in {format_duration(report.duration)} ({rate:,.0f}/s)"),
        ("ended", one_line(report.error or report.stop_reason)),
        ("bound by", one_line(report.bottleneck.sentence)),
    ]
    return pairs


def report_text(report: RuntimeReport) -> str:
    """The summary of a run for the terminal, one line per fact."""
    pairs = _summary_pairs(report)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def report_html(report: RuntimeReport) -> str:
    """The summary of a run for a notebook: facts, then telemetry, then the last episodes."""
    facts = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in _summary_pairs(report)
    )
    return (
        f"<table><tbody>{facts}</tbody></table>"
        f"{telemetry_html(report.telemetry)}{episodes_html(report.episodes)}"
    )
