"""Episodes as a table: text, HTML for a notebook, and the sortable one of the report page.

Every text from outside passes through ``one_line``, ``escape`` or ``_script_json``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlmesh_gym.runtime.report.formatting import (
    escape,
    format_number,
    html_table,
    one_line,
    text_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.episodes import EpisodeRecord


_PAGE_ROWS = 25
# About 90 bytes a row, so that the largest page stays below two megabytes.
_MOST_ROWS = 20_000
_SIGNIFICANT = 6

# Heading, and kind: how the page's script sorts and shows it.
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
_CLASSES = {**dict.fromkeys(_NUMERIC, " class=num"), "id": " class=id"}
_TEXT_COLUMNS = (8, 1, 2, 3, 4, 5, 6, 7)  # In text the id comes first, as a row's name.


def _values(place: int, episode: EpisodeRecord) -> list[Any]:
    verdict = None if episode.success is None else "succeeded" if episode.success else "failed"
    return [
        place,
        episode.lane,
        # Seeds fill 63 bits; a script's numbers hold 53.
        None if episode.seed is None else str(episode.seed),
        _short(episode.episode_return),
        episode.length,
        episode.end,
        verdict,
        _short(round(episode.duration, 3)),
        # The end of a UUIDv7 is random and finds the episode in the files; its beginning is time.
        f"…{one_line(episode.episode_id)[-12:]}",
    ]


def _short(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return float(f"{value:.{_SIGNIFICANT}g}") if math.isfinite(value) else format_number(value)


def _text(value: Any) -> str:
    if isinstance(value, (int, float)):
        return format_number(value, _SIGNIFICANT)
    return "—" if value is None else str(value)


def _table(
    episodes: Sequence[EpisodeRecord], limit: int | None
) -> tuple[str, tuple[str, ...], list[list[str]]]:
    begin = 0 if limit is None else max(0, len(episodes) - limit)
    note = f"the last {limit:,} of {len(episodes):,} episodes" if begin else ""
    rows = [_values(0, episode) for episode in episodes[begin:]]
    header = tuple(_COLUMNS[column][0] for column in _TEXT_COLUMNS)
    return note, header, [[_text(row[column]) for column in _TEXT_COLUMNS] for row in rows]


def episodes_text(episodes: Sequence[EpisodeRecord], limit: int | None = 20) -> str:
    """Episodes as a table for the terminal, the last ``limit`` of them; None for all."""
    if not episodes:
        return "no episodes"
    note, header, rows = _table(episodes, limit)
    table = text_table(header, rows, left=(0, 5))
    return f"{note}\n{table}" if note else table


def episodes_html(episodes: Sequence[EpisodeRecord], limit: int | None = 20) -> str:
    """Episodes as an HTML table, the last ``limit`` of them; None for all."""
    if not episodes:
        return "<p>no episodes</p>"
    note, header, rows = _table(episodes, limit)
    return html_table(header, rows, left=(0, 5), caption=note)


def episode_section(episodes: Sequence[EpisodeRecord]) -> str:
    """The section of the report page: its first rows as HTML, all as data for the script."""
    if not episodes:
        return ""
    listed = [_values(place, episode) for place, episode in enumerate(episodes[:_MOST_ROWS], 1)]
    first = f"The first {_MOST_ROWS:,} of {len(episodes):,} episodes; episodes.csv has them all."
    note = f'<p class="note">{first}</p>' if len(episodes) > _MOST_ROWS else ""
    heads = "".join(
        f'<th scope="col" data-kind="{kind}"{" class=num" if kind in _NUMERIC else ""}>{name}</th>'
        for name, kind in _COLUMNS
    )
    kinds = [kind for _, kind in _COLUMNS]
    found = dict.fromkeys(row[kinds.index(kind)] for kind in ("end", "verdict") for row in listed)
    options = "".join(f'<option value="{word}">{word}</option>' for word in found if word)
    return (
        '<section class="card"><h2>Episodes</h2><div class="bar-row" hidden>'
        '<label>Show <select id="episode-filter"><option value="all">all episodes</option>'
        f"{options}</select></label>"
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


def _row_html(row: Sequence[Any]) -> str:
    cells = "".join(
        f"<td{_CLASSES.get(kind, '')}>{escape(_text(value))}</td>"
        for value, (_, kind) in zip(row, _COLUMNS, strict=True)
    )
    return f"<tr>{cells}</tr>"


def _script_json(data: Any) -> str:
    # Inside <script> an HTML parser looks for "</script" and "<!--" only.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
