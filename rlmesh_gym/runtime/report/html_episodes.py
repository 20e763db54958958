"""The episode table of the report page: first page as HTML, all rows as data for its script.

It knows episode summaries; every text from outside passes through ``escape`` or ``_script_json``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlmesh_gym.runtime.report.summary import outcome
from rlmesh_gym.runtime.report.tables import escape, format_number, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.runtime.report.runtime_report import EpisodeSummary

__all__ = ["episode_section"]

_PAGE_ROWS = 25
# About 90 bytes a row, so that the largest page stays below two megabytes.
_MOST_ROWS = 20_000
_SIGNIFICANT = 6

# Heading, kind (how the script sorts and shows it), left or right.
_COLUMNS = (
    ("#", "number"),
    ("lane", "number"),
    ("seed", "seed"),
    ("return", "number"),
    ("length", "number"),
    ("end", "end"),
    ("success", "verdict"),
    ("seconds", "number"),
    ("episode id", "id"),
)
_NUMERIC = {"number", "seed"}


def episode_section(episodes: Sequence[EpisodeSummary]) -> str:
    """The section of the page, empty without episodes."""
    if not episodes:
        return ""
    listed = [_row(place, episode) for place, episode in enumerate(episodes[:_MOST_ROWS], 1)]
    note = ""
    if len(episodes) > _MOST_ROWS:
        note = (
            f'<p class="note">The first {_MOST_ROWS:,} of {len(episodes):,} episodes; '
            "episodes.csv has them all.</p>"
        )
    heads = "".join(
        f'<th scope="col" data-kind="{kind}"{" class=num" if kind in _NUMERIC else ""}>{name}</th>'
        for name, kind in _COLUMNS
    )
    options = "".join(
        f'<option value="{value}">{text}</option>' for value, text in _filters(listed)
    )
    return (
        '<section class="card"><h2>Episodes</h2><div class="bar-row" hidden>'
        f'<label>Show <select id="episode-filter">{options}</select></label>'
        '<span class="push" id="episode-where" aria-live="polite"></span>'
        '<span class="pager"><button type="button" id="episode-previous">Previous</button> '
        '<button type="button" id="episode-next">Next</button></span></div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Episode table">'
        f'<table id="episode-table"><thead><tr>{heads}</tr></thead>'
        f'<tbody id="episode-rows">{"".join(map(_row_html, listed[:_PAGE_ROWS]))}</tbody>'
        f"</table></div>{note}"
        "<noscript><p class=note>Further episodes need JavaScript; episodes.csv has them all."
        "</p></noscript>"
        f'<script type="application/json" id="episode-data">{_script_json(listed)}</script>'
        "</section>"
    )


def _row(place: int, episode: EpisodeSummary) -> list[Any]:
    verdict = None if episode.success is None else "succeeded" if episode.success else "failed"
    return [
        place,
        episode.lane,
        # Seeds fill 63 bits; a script's numbers hold 53.
        None if episode.seed is None else str(episode.seed),
        _short(episode.episode_return),
        episode.length,
        outcome(episode),
        verdict,
        _short(round(episode.duration, 3)),
        # The end of a UUIDv7 is random and finds the episode in the files; its beginning is time.
        f"…{one_line(episode.episode_id)[-12:]}",
    ]


def _short(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return float(f"{value:.{_SIGNIFICANT}g}") if math.isfinite(value) else format_number(value)


def _row_html(row: Sequence[Any]) -> str:
    cells = []
    for value, (_, kind) in zip(row, _COLUMNS, strict=True):
        text = "—" if value is None else str(value)
        if isinstance(value, (int, float)):
            text = format_number(value, _SIGNIFICANT)
        place = " class=num" if kind in _NUMERIC else " class=id" if kind == "id" else ""
        cells.append(f"<td{place}>{escape(text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _filters(rows: Sequence[Sequence[Any]]) -> list[tuple[str, str]]:
    """The choices of the filter: every outcome and verdict that occurs."""
    kinds = [kind for _, kind in _COLUMNS]
    found = dict.fromkeys(row[kinds.index(kind)] for kind in ("end", "verdict") for row in rows)
    words = [word for word in found if word is not None]
    return [("all", "all episodes"), *((word, word) for word in words)]


def _script_json(data: Any) -> str:
    # Inside <script> an HTML parser looks for "</script" and "<!--" only.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
