from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.runtime import Bottleneck, RuntimeReport, TelemetrySnapshot
from rlmesh_gym.runtime.report.charts import histogram, nice_ticks, series
from rlmesh_gym.runtime.report.html_report import html_report
from tests.runtime.report.report_samples import HOSTILE, make_report

VOID = {"meta", "link", "img", "br", "hr", "input", "source", "wbr"}
# Elements of SVG that close themselves in the source come as start and end.
OURS = {
    *("html", "head", "body", "main", "header", "footer", "section", "meta", "title", "style"),
    *("script", "noscript", "h1", "h2", "h3", "p", "dl", "dt", "dd", "div", "span", "b", "i"),
    *("ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "path", "rect", "label", "select", "option", "button"),
}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in {tag}: {names}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "script":
            self._script = dict(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> without a start"
        assert self.stack.pop() == tag
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
        elif self.stack and self.stack[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def check_safe(page: Page) -> None:
    """Nothing loads from anywhere, and no script runs but the page's own."""
    assert page.tags <= OURS
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in {"src", "href", "srcset", "action", "formaction", "data"}, (tag, name)
        assert "javascript:" not in value
    code = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(code) <= 1
    policy = next(v for _, n, v in page.attributes if n == "content" and "default-src" in v)
    assert "default-src 'none'" in policy
    for text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in policy


def embedded_rows(page: Page) -> list[list[Any]]:
    (data,) = [text for attributes, text in page.scripts if attributes.get("id") == "episode-data"]
    rows: list[list[Any]] = json.loads(data)
    return rows


@pytest.mark.parametrize("num_episodes", [0, 1, 2, 30, 500])
def test_the_page_is_well_formed_and_self_contained(num_episodes: int) -> None:
    text = html_report(make_report(num_episodes))
    page = Page(text)
    check_safe(page)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_what_stands_on_the_page() -> None:
    report = make_report(30)
    page = Page(html_report(report))
    text = page.text
    for expected in (
        "CartPole-v1",
        "finished",
        "The policy bound this run: 60% of its time.",
        "success rate",
        "tcp://127.0.0.1:6000",
        "NEXT_STEP",
        "model.predict",
        "rpc.total",
        "2 ms",
        "4 ms",
        "6 ms",
        "2.5 MB",
    ):
        assert expected in text, expected
    labels = [value for _, name, value in page.attributes if name == "aria-label"]
    assert any("Histogram of return: 30 values" in label for label in labels)
    assert any("Histogram of steps: 30 values" in label for label in labels)
    assert any("Return of 30 episodes in order" in label for label in labels)
    assert any("Time of the run by part: environment 25.0%" in label for label in labels)
    rows = embedded_rows(page)
    assert [row[4] for row in rows] == [episode.length for episode in report.episodes]
    assert [row[2] for row in rows] == [str(episode.seed) for episode in report.episodes]


def test_no_episode_still_gives_a_useful_page() -> None:
    report = make_report(0, error="UnavailableError: tcp://10.0.0.1:5555: nothing listens there")
    text = html_report(report)
    page = Page(text)
    assert "nothing listens there" in page.text
    assert "No episode was completed" in page.text
    assert "failed" in page.text
    assert "episode-data" not in text
    assert len(text) < 20_000


def test_ten_thousand_episodes_stay_small() -> None:
    text = html_report(make_report(10_000))
    page = Page(text)
    assert len(embedded_rows(page)) == 10_000
    assert len(text.encode()) < 1_200_000
    assert text.count("<tr>") < 100
    # The charts do not grow with the run.
    assert sum(len(v) for tag, n, v in page.attributes if tag == "path" and n == "d") < 30_000


def test_an_enormous_run_is_cut_and_says_so() -> None:
    report = make_report(10)
    report = dataclasses.replace(report, episodes=report.episodes * 2_001)
    page = Page(html_report(report))
    assert len(embedded_rows(page)) == 20_000
    assert "The first 20,000 of 20,010 episodes" in page.text


def hostile_report(text: str) -> RuntimeReport:
    report = make_report(3, env_id=text, error=text)
    episode = dataclasses.replace(
        report.episodes[0],
        episode_id=text,
        endpoint=text,
        env_id=text,
        final_info={text: text},
    )
    row = dataclasses.replace(report.telemetry.rows[0], operation=text, metric=text)
    other = dataclasses.replace(row, metric="rpc.total")
    third = dataclasses.replace(row, metric="endpoint.total")
    return dataclasses.replace(
        report,
        session_id=text,
        model_endpoint=text,
        env_endpoints=(text,),
        autoreset_mode=text,
        stop_reason=text,
        episodes=(episode, *report.episodes[1:]),
        telemetry=TelemetrySnapshot("session", text, (row, other, third)),
        bottleneck=Bottleneck(text, {"env": 1.0, text: 0.5}),
    )


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "<script>alert(1)</script>",
        "<!--<script>",
        "]]></script>",
        '"onmouseover="alert(1)',
        "' onload='alert(1)",
        "{}\x00\ud800\u2028\u2029",
        "&lt;script&gt;",
    ],
)
def test_what_envs_and_models_say_stays_text(text: str) -> None:
    written = html_report(hostile_report(text))
    # The page can be written whatever came.
    assert "\x00" not in written
    assert "\x1b" not in written
    written.encode("utf-8")
    page = Page(written)
    check_safe(page)
    visible = "".join(char for char in text if char.isprintable())
    if visible == text:
        assert text in page.text


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_no_text_breaks_the_page(text: str) -> None:
    check_safe(Page(html_report(hostile_report(text))))


def test_infinite_and_missing_returns() -> None:
    report = make_report(4)
    returns = [math.nan, math.inf, -math.inf, 1.5]
    episodes = tuple(
        dataclasses.replace(episode, episode_return=value, seed=None, success=None)
        for episode, value in zip(report.episodes, returns, strict=True)
    )
    page = Page(html_report(dataclasses.replace(report, episodes=episodes)))
    assert "3 returns that are not finite" in page.text
    assert "success rate" not in page.text
    assert [row[3] for row in embedded_rows(page)] == [None, "∞", "-∞", 1.5]
    none_left = tuple(dataclasses.replace(e, episode_return=math.nan) for e in episodes)
    Page(html_report(dataclasses.replace(report, episodes=none_left)))


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
@settings(deadline=None)
def test_charts_draw_any_finite_values(values: list[float]) -> None:
    array = np.array(values)
    for drawn in (series(array, label="return"), histogram(array, label="return")):
        Page(f"<html>{drawn}</html>")
        numbers = re.findall(r"[MLHh\s\"]([-+]?(?:nan|inf))", drawn)
        assert numbers == []


@given(values=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=200))
@settings(deadline=None)
def test_integer_histograms_count_everything(values: list[int]) -> None:
    drawn = histogram(np.array(values, dtype=np.float64), label="steps", integer=True)
    counts = [
        int(count.replace(",", ""))
        for count in re.findall(r"<title>[^<]*: ([\d,]+)</title>", drawn)
    ]
    assert sum(counts) == len(values)


@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-6, 1e9), most=st.integers(1, 10))
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    # Nearer to the resolution of floats, no tick is exact.
    high = low + max(span, abs(low) * 1e-9)
    ticks = nice_ticks(low, high, most)
    assert 1 <= len(ticks) <= most + 2
    if len(ticks) > 1:
        slack = (high - low) * 1e-6
        assert low - slack <= ticks[0]
        assert ticks[-1] <= high + slack
