"""Charts as HTML with inline SVG: histogram, series, split bar.

Shapes are SVG that stretches with the page; axis labels are HTML text beside it, so that they keep
their size on a phone. Every chart has a text label for readers that do not see it. Nothing here
knows what the numbers mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.runtime.report.formatting import escape, format_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# Units of the stretched coordinate system; strokes and dots are in screen pixels.
_WIDTH = 1000.0
_HEIGHT = 300.0
# More points than this are drawn as the band from least to greatest per column.
_MOST_DOTS = 400
_COLUMNS = 200
_MOST_BINS = 30
# Beyond this, differences and sums of values would overflow.
_LARGEST = 1e150
# A label right of this place would stand out of the card.
_EDGE = 0.96


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most + 1`` round numbers that cover ``low`` to ``high`` from within."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # An empty range means that low and high differ in their last digits only.
    return [index * step for index in range(first, last + 1)] or [low]


def moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last ``window`` values at each place, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    begins = np.maximum(0, ends - max(1, window))
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def histogram(values: NDArray[np.float64], *, label: str, integer: bool = False) -> str:
    """Draw how often which of some finite values (at least one) came.

    Of whole numbers (``integer``) bins begin and end between two of them.
    """
    low, high = float(values.min()), float(values.max())
    if max(-low, high) > _LARGEST:
        return _too_wide(low, high)
    edges = _bin_edges(values, low, high, integer=integer)
    counts = np.histogram(values, bins=edges)[0]
    peak = int(counts.max())
    x_ticks = nice_ticks(float(edges[0]), float(edges[-1]))
    bars = []
    width = _WIDTH / counts.size
    for place, count in enumerate(counts.tolist()):
        if count:
            height = count / peak * _HEIGHT
            begin, end = float(edges[place]), float(edges[place + 1])
            text = f"{_span_text(begin, end, integer=integer)}: {count:,}"
            bars.append(
                f'<rect class="bar" x="{place * width + 1:.1f}" y="{_HEIGHT - height:.1f}" '
                f'width="{max(width - 2, 1):.1f}" height="{height:.1f}">'
                f"<title>{escape(text)}</title></rect>"
            )
    summary = (
        f"Histogram of {label}: {values.size:,} values from {format_number(low)} to "
        f"{format_number(high)}, mean {format_number(float(values.mean()))}."
    )
    return _frame(
        "".join(bars),
        summary=summary,
        x_ticks=_places(_whole(x_ticks) if integer else x_ticks, edges[0], edges[-1]),
        y_ticks=_places(_whole(nice_ticks(0, peak)), 0, peak),
        x_label=label,
        y_label="episodes",
    )


def series(values: NDArray[np.float64], *, label: str) -> str:
    """Draw finite values (at least one) in their order, with their moving mean."""
    low, high = float(values.min()), float(values.max())
    if max(-low, high) > _LARGEST:
        return _too_wide(low, high)
    window = max(5, values.size // 20)
    margin = 0.05 * (high - low) or max(1.0, abs(high) * 0.1)
    bottom, top = low - margin, high + margin
    count = values.size
    x = (np.arange(count) + 0.5) / count * _WIDTH
    y = (top - values) / (top - bottom) * _HEIGHT
    mean_y = (top - moving_mean(values, window)) / (top - bottom) * _HEIGHT
    cloud = _dots(x, y) if count <= _MOST_DOTS else _band(x, y)
    columns = np.unique(np.linspace(0, count - 1, min(count, 2 * _COLUMNS)).astype(np.int64))
    title = f"mean of the last {window:,} episodes"
    line = "L".join(_points(x[columns], mean_y[columns]))
    shapes = f'{cloud}<path class="line" d="M{line}"><title>{title}</title></path>'
    summary = (
        f"{label.capitalize()} of {count:,} episodes in order, from {format_number(low)} to "
        f"{format_number(high)}, with the {title}."
    )
    cloud_name = "episode" if count <= _MOST_DOTS else "range of episodes"
    legend = (
        f'<p class="legend"><span><span class="key dot"></span>{cloud_name}</span>'
        f'<span><span class="key stroke"></span>{title}</span></p>'
    )
    return legend + _frame(
        shapes,
        summary=summary,
        x_ticks=_places(_whole(nice_ticks(1, count)), 0.5, count + 0.5),
        y_ticks=_places(nice_ticks(bottom, top), bottom, top),
        x_label="episode",
        y_label=label,
    )


def split_bar(parts: Sequence[tuple[str, float, str]], *, label: str) -> str:
    """Draw one bar divided into parts (name, share, colour class), with a legend."""
    shown = [part for part in parts if part[1] > 0]
    text = ", ".join(f"{name} {share:.1%}" for name, share, _ in shown)
    segments = "".join(
        f'<span class="{kind}" style="width:{100 * share:.2f}%" '
        f'title="{escape(name)} {share:.1%}"></span>'
        for name, share, kind in shown
    )
    legend = "".join(
        f'<li><span class="key {kind}"></span>{escape(name)} <b>{share:.1%}</b></li>'
        for name, share, kind in shown
    )
    return (
        f'<div class="split" role="img" aria-label="{escape(f"{label}: {text}")}">{segments}</div>'
        f'<ul class="legend">{legend}</ul>'
    )


def _bin_edges(
    values: NDArray[np.float64], low: float, high: float, *, integer: bool
) -> NDArray[np.float64]:
    if low == high:
        # Three bins with the value in the middle one, wide enough to differ as floats.
        width = max(1.0, abs(low) * 1e-12) if integer else max(abs(low) * 0.01, 1e-9)
        return low + width * np.array([-1.5, -0.5, 0.5, 1.5])
    # Between Sturges's count, too few for skewed returns, and the square root, too many for 10,000.
    wanted = min(_MOST_BINS, max(8, math.ceil(math.sqrt(values.size))))
    if integer:
        step = max(1, math.ceil((high - low + 1) / wanted))
        bins = math.ceil((high - low + 1) / step)
        return low - 0.5 + step * np.arange(bins + 1, dtype=np.float64)
    return np.linspace(low, high, wanted + 1)


def _span_text(begin: float, end: float, *, integer: bool) -> str:
    if integer:
        first, last = math.ceil(begin), math.floor(end)
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"
    return f"{format_number(begin)} to {format_number(end)}"


def _dots(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    # A stroke of no length with round ends stays a circle however the picture is stretched.
    return f'<path class="dots" d="{"".join(f"M{point}h0" for point in _points(x, y))}"/>'


def _band(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    starts = np.unique(np.linspace(0, y.size, _COLUMNS + 1).astype(np.int64))[:-1]
    least, greatest = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    there, back = _points(x[starts], least), _points(x[starts], greatest)[::-1]
    return f'<path class="band" d="M{"L".join(there + back)}Z"/>'


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[str]:
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def _whole(ticks: Sequence[float]) -> list[float]:
    return [tick for tick in ticks if tick == int(tick)]


def _places(ticks: Sequence[float], low: float, high: float) -> list[tuple[float, str]]:
    return [((tick - low) / (high - low), format_number(tick)) for tick in ticks]


def _frame(
    shapes: str,
    *,
    summary: str,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    x_label: str,
    y_label: str,
) -> str:
    """Put axes around shapes; ticks are (place from 0 to 1, text)."""
    lines = "".join(
        f'<path class="grid" d="M0 {(1 - place) * _HEIGHT:.1f}H{_WIDTH:.0f}"/>'
        for place, _ in y_ticks
    )
    widest = max((text for _, text in y_ticks), key=len, default="")
    y_axis = "".join(
        f'<span style="bottom:{100 * place:.2f}%">{escape(text)}</span>' for place, text in y_ticks
    )
    x_axis = "".join(
        f'<span{" class=end" if place > _EDGE else ""} style="left:{100 * place:.2f}%">'
        f"{escape(text)}</span>"
        for place, text in x_ticks
    )
    return (
        f'<div class="chart"><div class="y-name">{escape(y_label)}</div>'
        f'<div class="y-axis" aria-hidden="true"><i>{escape(widest)}</i>{y_axis}</div>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(summary)}">{lines}{shapes}</svg>'
        f'<div class="x-axis" aria-hidden="true">{x_axis}</div>'
        f'<div class="x-name">{escape(x_label)}</div></div>'
    )


def _too_wide(low: float, high: float) -> str:
    return (
        f'<p class="note">The values reach from {format_number(low)} to {format_number(high)}, '
        "too far to draw.</p>"
    )
