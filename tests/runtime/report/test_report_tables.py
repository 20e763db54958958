from __future__ import annotations

import dataclasses
import math
import re
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym.episodes import Distribution, EpisodeStatistics, wilson_interval
from rlmesh_gym.runtime.report.charts import moving_mean
from rlmesh_gym.runtime.report.episode_table import episodes_html, episodes_text
from rlmesh_gym.runtime.report.formatting import (
    format_bytes,
    format_duration,
    format_number,
    one_line,
    text_table,
)
from rlmesh_gym.runtime.report.metrics import TelemetryRow, TelemetrySnapshot, prometheus_text
from tests.runtime.report.report_samples import HOSTILE, make_report, make_snapshot


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (math.inf, "∞"),
        (500.0, "500"),
        (1234567.0, "1,234,567"),
        (1234.5678, "1,235"),
        (0.123456, "0.1235"),
        (-20.0149, "-20.01"),
        (1e300, "1.000e+300"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (4.2e-5, "42 µs"), (0.0123, "12.3 ms"), (90.0, "90 s"), (150.0, "2 min 30 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert format_duration(7_260.0) == "2 h 01 min"


def test_bytes() -> None:
    sizes = [(12, "12 B"), (2_500, "2.5 kB"), (1.8e6, "1.8 MB"), (3e9, "3 GB")]
    for size, text in sizes:
        assert format_bytes(size) == text


def test_one_line_takes_the_sting_out() -> None:
    assert one_line("a\n\tb") == "a b"
    assert "\x1b" not in one_line(HOSTILE)
    assert "\u202e" not in one_line(HOSTILE)
    assert one_line("x" * 500, 10) == "xxxxxxxxx…"
    one_line("\ud800").encode("utf-8")


def test_columns_line_up() -> None:
    table = text_table(("name", "n"), [("a", "1"), ("longer", "1,000")])
    assert table.split("\n") == [
        "name        n",
        "──────  ─────",
        "a           1",
        "longer  1,000",
    ]


def test_telemetry_as_text_and_html() -> None:
    snapshot = make_snapshot()
    text = str(snapshot)
    assert text.startswith("telemetry of the session (12.5 s)\n")
    line = next(line for line in text.split("\n") if line.startswith("model.predict  rpc.total"))
    assert line.split()[2:] == ["100", "2", "ms", "2", "ms", "4", "ms", "6", "ms", "200", "ms"]
    html = snapshot._repr_html_()
    assert html.count("<tr>") == len(snapshot.rows) + 1
    empty = TelemetrySnapshot("window", "run", duration=5.0, pending=("env.step", 3.0))
    assert str(empty).endswith("env.step is waiting for 3 s: no samples")
    assert "no samples" in empty._repr_html_()


def test_episode_tables_show_the_last() -> None:
    report = make_report(30)
    text = episodes_text(report.episodes, limit=5)
    lines = text.split("\n")
    assert lines[0] == "the last 5 of 30 episodes"
    assert len(lines) == 8
    assert lines[-1].startswith(f"…{report.episodes[-1].episode_id[-12:]}")
    assert len(episodes_text(report.episodes, limit=None).split("\n")) == 32
    assert episodes_text(()) == "no episodes"
    assert episodes_html(report.episodes, limit=5).count("<tr>") == 6


def test_the_summary_of_a_run() -> None:
    report = make_report(30)
    text = str(report)
    mean = statistics.fmean(episode.episode_return for episode in report.episodes)
    assert f"mean return    {format_number(mean)} ±" in text
    assert "bound by       The policy bound this run" in text
    assert re.search(r"success rate +\d+\.\d% \(\d+ of 30, 95% interval", text)
    assert "episodes       0" in str(make_report(0))
    html = dataclasses.replace(report, env_id=HOSTILE, error=HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "<img" not in html


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_distribution_against_the_standard_library(values: list[float]) -> None:
    found = Distribution.of([*values, math.nan, math.inf])
    assert found.left_out == 2
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert found.median == pytest.approx(statistics.median(values), abs=1e-6)
    assert (found.minimum, found.maximum) == (min(values), max(values))


@given(values=st.lists(st.floats(-1e6, 1e6), max_size=50).map(np.array), window=st.integers(1, 60))
def test_moving_mean_against_a_loop(values: np.ndarray, window: int) -> None:
    values = values.astype(np.float64)
    expected = [
        values[max(0, place - window + 1) : place + 1].mean() for place in range(values.size)
    ]
    np.testing.assert_allclose(moving_mean(values, window), expected, atol=1e-6)


def test_statistics_leave_interrupted_episodes_out() -> None:
    report = make_report(10)
    cut = dataclasses.replace(report.episodes[0], interrupted=True, episode_return=1e9)
    found = EpisodeStatistics.of((cut, *report.episodes[1:]))
    assert (found.completed, found.interrupted, found.judged) == (9, 1, 9)
    assert found.returns.maximum < 1e6


def test_wilson_interval() -> None:
    # Values of R's prop.test(x, n, correct = FALSE).
    low, high = wilson_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(5, 5)
    assert low > 0.5
    assert high == 1.0


SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\} (\S+)$'
)


def test_prometheus_text_follows_the_format() -> None:
    hostile = 'a"b\\c\nd'
    row = TelemetryRow("env.step", hostile, "s", 3, math.inf, math.nan, -math.inf, 0.5, 1.5)
    odd = dataclasses.replace(row, unit="lanes", p50=2)
    snapshot = TelemetrySnapshot(
        "session",
        hostile,
        (*make_snapshot().rows, row, odd),
        duration=2.0,
        pending=("env.step", 4.0),
    )
    text = prometheus_text(snapshot)
    assert text.endswith("\n")
    types: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
            continue
        if line.startswith("# HELP "):
            continue
        match = SAMPLE.match(line)
        assert match, line
        name, labels, number = match.groups()
        assert re.sub("_(sum|count)$", "", name) in types
        assert (name, labels) not in seen
        seen.add((name, labels))
        float(number.replace("Inf", "inf"))
    assert types["rlmesh_gym_time_seconds"] == "summary"
    assert 'metric="a\\"b\\\\c\\nd",quantile="0.5"} NaN' in text
    assert 'quantile="0.95"} -Inf' in text
    assert (
        'rlmesh_gym_message_bytes_sum{session="a\\"b\\\\c\\nd",horizon="session",'
        'operation="env.step",metric="request.bytes"} 42000.0' in text
    )
    assert 'rlmesh_gym_pending_seconds{session="a\\"b\\\\c\\nd",horizon="session",' in text


def test_prometheus_without_samples() -> None:
    text = prometheus_text(TelemetrySnapshot("window", "run"))
    assert 'rlmesh_gym_horizon_seconds{session="run",horizon="window"} 0.0' in text


def test_a_report_answers_for_its_mean() -> None:
    report = make_report(7)
    completed = [episode.episode_return for episode in report.completed_episodes]
    assert report.mean_return == pytest.approx(statistics.fmean(completed))
    assert report.statistics.completed == len(completed)
    assert math.isnan(make_report(0).mean_return)
