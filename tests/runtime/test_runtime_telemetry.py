"""Telemetry: percentiles, bounds, two horizons, and what endpoints say of themselves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym.runtime import RuntimeLimits, TelemetrySnapshot, run
from rlmesh_gym.runtime.report.bottleneck import TimeShares
from rlmesh_gym.runtime.telemetry import (
    ENV_RESET,
    ENV_STEP,
    METRICS,
    MODEL_PREDICT,
    CallTiming,
    Reservoir,
    Telemetry,
    TelemetryTicker,
    nearest_rank,
)
from tests.fake_envs import CountingEnv
from tests.runtime.runtime_doubles import SteadyModel, Witness, env_server, model_server

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200), st.floats(0.001, 1))
def test_percentiles_are_numpys_nearest_rank(samples: list[float], fraction: float) -> None:
    expected = np.percentile(samples, 100 * fraction, method="inverted_cdf")
    found = nearest_rank(sorted(samples), fraction)
    # The two round ``fraction * n`` in their own ways; next to a whole number either is right.
    position = fraction * len(samples)
    if abs(position - round(position)) > 1e-6:
        assert found == expected
    else:
        assert found in samples


def test_known_percentiles() -> None:
    reservoir = Reservoir(1000, np.random.default_rng(0))
    reservoir.extend(np.arange(100.0, 0.0, -1.0))
    row = reservoir.row("env.step", METRICS[0])
    assert (row.p50, row.p95, row.p99) == (50, 95, 99)
    assert (row.count, row.avg, row.total) == (100, 50.5, 5050)


def test_a_reservoir_is_bounded_and_fair() -> None:
    reservoir = Reservoir(500, np.random.default_rng(1))
    for values in np.array_split(np.arange(100_000.0), 37):
        reservoir.extend(values)
    assert len(reservoir.samples) == 500
    assert reservoir.count == 100_000
    assert reservoir.total == sum(range(100_000))
    # Early and late samples are kept alike.
    assert np.mean(reservoir.samples) == pytest.approx(50_000, rel=0.1)


def test_the_catalogue_and_the_timings_match() -> None:
    assert len(METRICS) == len(CallTiming._fields)
    telemetry = Telemetry("s")
    timing = CallTiming(*(10 * (place + 1) for place in range(len(METRICS))))
    telemetry.record(ENV_STEP, timing)
    snapshot = telemetry.session_snapshot()
    for metric, value in zip(METRICS, timing, strict=True):
        row = snapshot.row(ENV_STEP, metric.name)
        assert row is not None
        assert value is not None
        assert row.p50 == pytest.approx(value * (1e-9 if metric.unit == "s" else 1))
        assert row.unit == metric.unit
    assert snapshot.row(MODEL_PREDICT, "rpc.total") is None


def test_windows_begin_anew_and_the_session_goes_on() -> None:
    telemetry = Telemetry("s")
    for _ in range(3):
        telemetry.record(ENV_STEP, CallTiming(1000))
    first = telemetry.window_snapshot()
    telemetry.record(ENV_STEP, CallTiming(2000))
    second = telemetry.window_snapshot()
    session = telemetry.session_snapshot()
    assert [snapshot.rows[0].count for snapshot in (first, second, session)] == [3, 1, 4]
    assert telemetry.window_snapshot().rows == ()
    assert (first.horizon, session.horizon) == ("window", "session")


def test_windows_come_while_a_call_hangs() -> None:
    telemetry = Telemetry("s")
    arrived = threading.Event()
    windows: list[TelemetrySnapshot] = []

    def deliver(snapshot: TelemetrySnapshot) -> None:
        windows.append(snapshot)
        if len(windows) >= 3:
            arrived.set()
        raise ValueError("a bad sink does not stop the clock")

    ticker = TelemetryTicker(telemetry, 0.005, deliver)
    telemetry.begin(ENV_STEP)
    ticker.start()
    assert arrived.wait(10)
    assert ticker.stop(10)
    assert all(window.pending is not None for window in windows)
    seconds = [window.pending[1] for window in windows if window.pending]
    assert seconds == sorted(seconds)
    assert telemetry.session_snapshot().pending is not None
    telemetry.end()
    assert telemetry.session_snapshot().pending is None


def test_rows_of_a_remote_run(socket_dir: Path) -> None:
    with (
        env_server(socket_dir, [CountingEnv(3), CountingEnv(3)]) as env,
        model_server(socket_dir, SteadyModel()) as model,
    ):
        report = run(env, model, episodes=4)
    telemetry = report.telemetry
    for operation, count in ((ENV_STEP, 6), (MODEL_PREDICT, 6), (ENV_RESET, 2)):
        rpc = telemetry.row(operation, "rpc.total")
        endpoint = telemetry.row(operation, "endpoint.total")
        user = telemetry.row(operation, "endpoint.user")
        assert rpc is not None
        assert endpoint is not None
        assert user is not None
        assert rpc.count == endpoint.count == count
        assert rpc.total >= endpoint.total >= user.total > 0
        for metric in ("request.bytes", "response.bytes"):
            row = telemetry.row(operation, metric)
            assert row is not None
            assert row.p50 > 10
    assert TelemetrySnapshot.from_dict(telemetry.to_dict()) == telemetry


def test_no_window_means_no_ticker() -> None:
    witness = Witness()
    threads = set(threading.enumerate())
    during: set[threading.Thread] = set()
    witness.on_step = lambda event: during.update(threading.enumerate())
    run(
        CountingEnv(3),
        SteadyModel(),
        episodes=1,
        hooks=witness,
        limits=RuntimeLimits(telemetry_window=0),
    )
    assert during <= threads
    assert [snapshot.horizon for snapshot in witness.snapshots] == ["session"]


def test_shares_split_waiting_by_what_endpoints_say() -> None:
    shares = TimeShares()
    # Two endpoints side by side: the slower one was waited for; reading and writing is the wire.
    slow = CallTiming(0, endpoint_ns=600_000_000, decode_ns=50_000_000, encode_ns=50_000_000)
    fast = CallTiming(0, endpoint_ns=100_000_000)
    shares.add_env(1.0, [fast, slow])
    shares.add_policy(0.5, [CallTiming(0)])  # says nothing: all of it counts as the policy's
    found = shares.bottleneck(2.0)
    assert found.shares == pytest.approx({"env": 0.25, "wire": 0.25, "policy": 0.25, "loop": 0.25})
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.sentence.count("%") == 4
    assert found.sentence.endswith(".")


def test_an_endpoint_cannot_claim_more_than_was_waited_for() -> None:
    shares = TimeShares()
    shares.add_env(1.0, [CallTiming(0, endpoint_ns=10**12)])
    assert shares.wire == 0
    assert shares.env == 1.0


def test_a_run_that_did_nothing_was_bound_by_nothing() -> None:
    found = TimeShares().bottleneck(1.0)
    assert set(found.shares.values()) == {0.0}
    assert "nothing" in found.sentence.lower()
