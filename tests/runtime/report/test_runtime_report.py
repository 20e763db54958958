"""Reports keep everything through JSON, and say it in a terminal and in a notebook."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from rlmesh_gym.runtime import (
    Bottleneck,
    EpisodeSummary,
    HeldByModel,
    RuntimeReport,
    TelemetryRow,
    TelemetrySnapshot,
    run,
)
from tests.fake_envs import counting_vector
from tests.runtime.runtime_doubles import SteadyModel


def a_report(**changes: Any) -> RuntimeReport:
    snapshot = TelemetrySnapshot(
        "session",
        "run",
        (TelemetryRow("env.step", "rpc.total", "s", 3, 0.1, 0.1, 0.2, 0.2, 0.3),),
        taken_at=5.0,
        duration=2.5,
        pending=("env.step", 1.5),
    )
    episode = EpisodeSummary(
        episode_id="id",
        lane=1,
        endpoint="unix:///a b",
        env_id="Env-v0",
        seed=2**62,
        length=3,
        episode_return=math.inf,
        terminated=True,
        truncated=False,
        success=True,
        final_info={"note": "<b>", "path": [1, 2]},
        index=4,
    )
    fields: dict[str, Any] = {
        "session_id": "run",
        "env_id": "Env-v0",
        "num_envs": 2,
        "autoreset_mode": "NEXT_STEP",
        "env_endpoints": ("unix:///a b",),
        "model_endpoint": "local",
        "base_seed": -3,
        "execution_horizon": 8,
        "episodes": (episode,),
        "total_steps": 3,
        "total_reward": math.inf,
        "started_at": 1.5,
        "duration": 2.5,
        "stop_reason": "max_episodes",
        "error": None,
        "telemetry": snapshot,
        "bottleneck": Bottleneck("The wire bound this run.", {"wire": 1.0}),
        "run_id": "r",
    }
    return RuntimeReport(**{**fields, **changes})


def test_json_and_back() -> None:
    report = a_report()
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert RuntimeReport.from_dict(json.loads(text)) == report


def test_a_later_version_may_say_more() -> None:
    data = a_report().to_dict()
    data["weather"] = "fine"
    data["episodes"][0]["mood"] = 3
    data["telemetry"]["rows"][0]["p999"] = 1.0
    assert RuntimeReport.from_dict(data) == a_report()


def test_numbers_that_json_cannot_hold_come_back() -> None:
    report = a_report(total_reward=math.nan)
    again = RuntimeReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False)))
    assert math.isnan(again.total_reward)


def test_whether_it_succeeded() -> None:
    assert a_report().succeeded
    assert not a_report(error="E: x", stop_reason="failed").succeeded
    assert not a_report(stop_reason="cancelled: lunch").succeeded
    cut = EpisodeSummary("b", 0, "local", "e", None, 1, 0.0, False, False, interrupted=True)
    report = a_report(episodes=(*a_report().episodes, cut))
    assert report.completed_episodes == a_report().episodes


def test_notes_tell_what_numbers_do_not() -> None:
    assert a_report(requested_horizon=8).notes == ()
    short = a_report(execution_horizon=1, requested_horizon=8, predict_calls=3, predict_rows=3)
    assert short.notes == ("the model gave 1 frame per prediction, execution_horizon was 8",)
    assert str(short).count("gave 1 frame") == 1
    assert "gave 1 frame" in short._repr_html_()
    assert RuntimeReport.from_dict(short.to_dict()) == short
    held = dataclasses.replace(short.telemetry, held=HeldByModel(40, None, 4))
    leaking = a_report(telemetry=held)
    assert "the model holds 40 episodes, 4 are live" in str(leaking)
    assert RuntimeReport.from_dict(leaking.to_dict()) == leaking


def test_a_report_of_an_earlier_version() -> None:
    data = a_report().to_dict()
    for name in ("requested_horizon", "predict_calls", "predict_rows"):
        del data[name]
    del data["telemetry"]["held"]
    assert RuntimeReport.from_dict(data) == a_report()


def test_a_real_report_is_plain_and_prints_itself() -> None:
    seed: Any = np.int64(3)
    report = run(counting_vector(2), SteadyModel(), episodes=4, seed=seed)
    assert type(report.base_seed) is int
    assert RuntimeReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert "max_episodes" in str(report)
    assert "env.step" in str(report.telemetry)
    assert "<table" in report._repr_html_()
    assert "<table" in report.telemetry._repr_html_()
