"""Numbers and tables for people: text for a terminal, the same cells as HTML for a notebook."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from rlmesh_gym.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


_LONGEST_TEXT = 300
_THOUSAND = 1000.0
_EXACT_BELOW = 1e15  # Whole floats print as integers up to here; beyond, digits would be made up.


def one_line(value: object, limit: int = _LONGEST_TEXT) -> str:
    """``value`` on one line of at most ``limit``; control characters and the like are replaced."""
    clean = printable(" ".join(str(value).split()))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def escape(value: object, limit: int = _LONGEST_TEXT) -> str:
    """``one_line(value)``, safe as HTML text and as a quoted attribute."""
    return html.escape(one_line(value, limit), quote=True)


def format_number(value: float | None, digits: int = 4) -> str:
    """A number for people: ``digits`` significant ones, thousands grouped, ``—`` for none."""
    if value is None or math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) < _EXACT_BELOW and (value == int(value) or abs(value) >= 10.0 ** (digits - 1)):
        return f"{value + 0.0:,.0f}"  # Without the sign of -0.0.
    if abs(value) >= _EXACT_BELOW:
        return f"{value:.{digits - 1}e}"
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


def format_unit(value: float, unit: str) -> str:
    """A sample of telemetry with its unit, ``"s"`` or ``"bytes"``; a bare number for another."""
    show = {"s": format_duration, "bytes": format_bytes}.get(unit, format_number)
    return show(value)


def count_of(count: int, word: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def fact_lines(facts: Sequence[tuple[str, str]]) -> str:
    """One line per fact, the texts below each other."""
    width = max(len(one_line(name)) for name, _ in facts)
    return "\n".join(f"{one_line(name).ljust(width)}  {one_line(text)}" for name, text in facts)


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
