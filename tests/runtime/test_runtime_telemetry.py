"""Telemetry: percentiles, bounds, two horizons, and what endpoints say of themselves."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym.runtime import HeldByModel, RuntimeLimits, TelemetrySnapshot, run
from rlmesh_gym.runtime.report.bottleneck import TimeShares, work_of
from rlmesh_gym.runtime.report.metrics import (
    ENV_RESET,
    ENV_STEP,
    METRICS,
    MODEL_PREDICT,
    CallTiming,
)
from rlmesh_gym.runtime.telemetry import (
    Reservoir,
    Telemetry,
    TelemetryTicker,
    timing_of,
)
from tests.fake_envs import CountingEnv
from tests.runtime.runtime_doubles import SteadyModel, Witness, env_server, model_server

if TYPE_CHECKING:
    from pathlib import Path


def answered(
    message: Any, elapsed_ns: int, request_bytes: int | None = None, size: int | None = None
) -> Any:
    """What a call is once it was answered, as far as telemetry looks."""
    return SimpleNamespace(
        response=message, elapsed_ns=elapsed_ns, request_bytes=request_bytes, response_bytes=size
    )


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
    told: Any
    for operation, told in (
        (ENV_STEP, env_pb2.JoinResponse(lane_skew_ns=70)),
        (MODEL_PREDICT, model_pb2.JoinResponse(adapter_ns=80)),
    ):
        told.endpoint_total_ns, told.queue_ns, told.decode_ns = 20, 30, 40
        told.user_ns, told.encode_ns = 50, 60
        telemetry.record(operation, answered(told, 10, 90, 100))
    snapshot = telemetry.session_snapshot()
    for place, metric in enumerate(METRICS):
        value = 10 * (place + 1)
        row = snapshot.row(ENV_STEP, metric.name) or snapshot.row(MODEL_PREDICT, metric.name)
        assert row is not None
        assert row.p50 == pytest.approx(value * (1e-9 if metric.unit == "s" else 1))
        assert row.unit == metric.unit
    assert snapshot.row(ENV_RESET, "rpc.total") is None


def test_windows_begin_anew_and_the_session_goes_on() -> None:
    telemetry = Telemetry("s")
    for _ in range(3):
        telemetry.record(ENV_STEP, answered(env_pb2.JoinResponse(), 1000))
    first = telemetry.window_snapshot()
    telemetry.record(ENV_STEP, answered(env_pb2.JoinResponse(), 2000))
    second = telemetry.window_snapshot()
    session = telemetry.session_snapshot()
    assert [snapshot.rows[0].count for snapshot in (first, second, session)] == [3, 1, 4]
    assert telemetry.window_snapshot().rows == ()
    assert (first.horizon, session.horizon) == ("window", "session")


def test_a_window_without_a_call_is_passed_over() -> None:
    telemetry = Telemetry("s")
    delivered: list[TelemetrySnapshot] = []
    ticker = TelemetryTicker(telemetry, 0.0, delivered.append)
    assert ticker._window == 0.001
    ticker._tick()
    telemetry.record(ENV_STEP, answered(env_pb2.JoinResponse(), 1000))
    ticker._tick()
    ticker._tick()
    telemetry.begin(ENV_STEP, time.perf_counter() - 1)  # A call that hangs is worth telling.
    ticker._tick()
    assert [(len(one.rows), one.pending is not None) for one in delivered] == [
        (1, False),
        (0, True),
    ]


def test_zeros_that_were_sent_are_zeros() -> None:
    silent = answered(model_pb2.JoinResponse(), 5, 1, 2)
    assert timing_of(MODEL_PREDICT, silent) == CallTiming(5, request_bytes=1, response_bytes=2)
    told = answered(
        model_pb2.JoinResponse(endpoint_total_ns=0, queue_ns=0, user_ns=0, adapter_ns=0), 5
    )
    assert timing_of(MODEL_PREDICT, told) == CallTiming(5, 0, 0, None, 0, None, None, 0)
    env = answered(env_pb2.JoinResponse(endpoint_total_ns=9, lane_skew_ns=0), 5)
    assert timing_of(ENV_STEP, env) == CallTiming(5, 9, lane_skew_ns=0)
    telemetry = Telemetry("s")
    telemetry.record(MODEL_PREDICT, told)
    row = telemetry.session_snapshot().row(MODEL_PREDICT, "endpoint.queue")
    assert row is not None
    assert (row.count, row.avg) == (1, 0.0)


def test_what_a_model_holds() -> None:
    telemetry = Telemetry("s")
    telemetry.note_held(None, None, 4)
    assert telemetry.session_snapshot().held is None
    telemetry.note_held(40, 4096, 4)
    telemetry.note_held(4, None, 4)
    window, session = telemetry.window_snapshot(), telemetry.session_snapshot()
    assert window.held == HeldByModel(4, None, 4)
    assert window.held.warning is None
    assert session.held == HeldByModel(40, 4096, 4)
    assert "the model holds 40 episodes, 4 are live" in str(session.held.warning)
    assert TelemetrySnapshot.from_dict(session.to_dict()) == session
    # An episode that has just ended may still be held along with the next one.
    assert HeldByModel(8, None, 4).warning is None


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
    telemetry.begin(ENV_STEP, time.perf_counter())
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
    slow = env_pb2.JoinResponse(
        endpoint_total_ns=600_000_000, decode_ns=50_000_000, encode_ns=50_000_000
    )
    fast = env_pb2.JoinResponse(endpoint_total_ns=100_000_000)
    shares.add_env(1.0, work_of(1.0, [fast, slow]))
    # This one says nothing: all of it counts as the policy's.
    shares.add_policy(0.5, work_of(0.5, [model_pb2.JoinResponse()]))
    found = shares.bottleneck(2.0)
    assert found.shares == pytest.approx({"env": 0.25, "wire": 0.25, "policy": 0.25, "loop": 0.25})
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.sentence.count("%") == 4
    assert found.sentence.endswith(".")


def test_a_longer_horizon_is_no_advice_where_it_changes_nothing() -> None:
    for name, other in (("policy", "faster model"), ("env", "endpoints")):
        shares = TimeShares()
        getattr(shares, f"add_{name}")(1.0, 1.0)
        assert other in shares.bottleneck(1.0, longer_horizon_helps=False).sentence
        assert "horizon" not in shares.bottleneck(1.0, longer_horizon_helps=False).sentence
    shares = TimeShares()
    shares.add_policy(1.0, 1.0)
    expected = "a longer execution horizon or a faster model would help."
    assert shares.bottleneck(1.0).sentence.endswith(expected)


def test_an_endpoint_cannot_claim_more_than_was_waited_for() -> None:
    shares = TimeShares()
    shares.add_env(1.0, work_of(1.0, [env_pb2.JoinResponse(endpoint_total_ns=10**12)]))
    assert shares.wire == 0
    assert shares.env == 1.0


def test_a_run_that_did_nothing_was_bound_by_nothing() -> None:
    found = TimeShares().bottleneck(1.0)
    assert set(found.shares.values()) == {0.0}
    assert "nothing" in found.sentence.lower()
