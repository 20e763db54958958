"""Side-by-side timing: contenders take turns, so that they share the machine's moods."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample per round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def ratio(self, other: Timing) -> float:
        """Median of the rounds' ratios: what slows down a whole round does not count."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.samples, other.samples, strict=True)
        )

    @property
    def per_second(self) -> float:
        return 1.0 / self.median


def side_by_side(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 9, seconds: float = 0.15
) -> dict[str, Timing]:
    """Time each callable, interleaved; a round of one contender lasts about ``seconds``."""
    calls = {}
    for name, call in contenders.items():
        call()
        begin = time.perf_counter()
        call()
        once = time.perf_counter() - begin
        if once < seconds:  # One call alone may be an outlier.
            begin = time.perf_counter()
            for _ in range(5):
                call()
            once = (time.perf_counter() - begin) / 5
        calls[name] = max(1, min(5000, int(seconds / once)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                call()
            samples[name].append((time.perf_counter() - begin) / calls[name])
    return {name: Timing(tuple(each)) for name, each in samples.items()}


def table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print rows, the first of which is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join(cells))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def write_json(path: Path | None, results: object) -> None:
    """Write the results with the machine's facts beside them."""
    if path is None:
        return
    facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }
    path.write_text(json.dumps({"facts": facts, "results": results}, indent=2) + "\n", "utf-8")
    print(f"\nwritten: {path}")
