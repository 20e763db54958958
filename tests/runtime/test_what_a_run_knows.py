"""What a run says of its ends: where they are, what it waits for, what the model holds."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import OrderEnforcing

import rlmesh_gym as rg
from rlmesh_gym._proto.env.v1.interaction_pb2 import JoinResponse
from rlmesh_gym.errors import DeadlineError
from rlmesh_gym.rpc import InProcessPending
from rlmesh_gym.runtime import RuntimeHooks, RuntimeLimits, context
from rlmesh_gym.runtime.report.bottleneck import TimeShares
from rlmesh_gym.runtime.telemetry import Telemetry
from tests.fake_envs import CountingEnv
from tests.runtime.ends import MODELS, PlayedModel, lanes, vector
from tests.runtime.played_env import PlayedEnv

if TYPE_CHECKING:
    from rlmesh_gym.runtime import TelemetrySnapshot

WAIT = 30.0


# Where the lanes are.


def ways(addresses: list[str], stack: ExitStack) -> dict[str, Any]:
    """Lanes of two endpoints, given in every way."""

    def remote() -> rg.RemoteVectorEnv:
        return stack.enter_context(rg.RemoteVectorEnv(addresses=addresses))

    return {
        "addresses": addresses,
        "object": remote(),
        "wrapped": VectorWrapper(remote()),
        "objects": [stack.enter_context(rg.RemoteVectorEnv(one)) for one in addresses],
        "wrapped objects": [
            VectorWrapper(stack.enter_context(rg.RemoteVectorEnv(one))) for one in addresses
        ],
    }


def sizes(report: rg.RuntimeReport) -> bool:
    """Whether the telemetry has sizes of messages to the env."""
    return any(
        row.operation == "env.step" and row.metric == "request.bytes"
        for row in report.telemetry.rows
    )


def test_lanes_elsewhere_are_known_however_they_are_given() -> None:
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(rg.EnvServer(lanes, max_sessions=9)).address for _ in range(2)
        ]
        for name, envs in ways(addresses, stack).items():
            report = rg.run(envs, PlayedModel(), episode_seeds=range(8))
            assert report.env_endpoints == tuple(addresses), name
            assert [one.endpoint for one in report.episodes] == [
                addresses[one.lane // 2] for one in report.episodes
            ], name
            assert report.bottleneck.shares["wire"] > 0, name
            assert sizes(report), name


def test_a_single_env_elsewhere_is_known_too() -> None:
    with rg.EnvServer(PlayedEnv, max_sessions=4) as server, rg.RemoteEnv(server.address) as env:
        for one in (server.address, env, OrderEnforcing(env)):
            report = rg.run(one, PlayedModel(), episodes=3)
            assert report.env_endpoints == (server.address,)
            assert {episode.endpoint for episode in report.episodes} == {server.address}
            assert report.bottleneck.shares["wire"] > 0
            assert sizes(report)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_lanes_here_are_known_too(mode: AutoresetMode) -> None:
    envs = vector(mode)
    for one in (envs, VectorWrapper(envs), [envs, vector(mode)], lanes(1)[0], lanes()):
        report = rg.run(one, PlayedModel(), episode_seeds=range(6))
        assert report.env_endpoints == ("local",) * (2 if isinstance(one, list) else 1)
        assert {episode.endpoint for episode in report.episodes} == {"local"}
        assert report.bottleneck.shares["wire"] == pytest.approx(0, abs=1e-9)
        assert not sizes(report)


def test_time_here_adds_up_and_time_elsewhere_passes_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    telemetry, shares = Telemetry("s"), TimeShares()
    clock = context.CallClock(telemetry, shares)
    answer: Any = SimpleNamespace(
        elapsed_ns=int(6e9),
        response=JoinResponse(endpoint_total_ns=int(5e9)),
        request_bytes=1,
        response_bytes=1,
    )
    here: Any = InProcessPending("step", None, None, elapsed_ns=int(2e9))
    for pendings, ends, env, wire in (
        ([here, here], 5.0, 4.0, 0.0),  # The fifth second is the loop's own.
        ([answer, answer], 6.0, 5.0, 1.0),
        ([answer, here, here], 6.0, 5.0, 1.0),
        ([answer, here, here, here], 7.0, 6.0, 1.0),
    ):
        shares.env = shares.env_wait = now = 0.0
        with clock.timed("env.step"):
            for pending in pendings:
                clock.note(pending)
            now = ends
        assert (shares.env, shares.wire, shares.env_wait) == (env, wire, env + wire)


# What it waits for.


class Release(RuntimeHooks):
    """Lets a call go on as soon as the telemetry has named it."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.told = threading.Event()

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        if snapshot.pending is not None and snapshot.pending[0] == self.operation:
            self.told.set()


class WaitingEnv(CountingEnv):
    def __init__(self, told: threading.Event, operation: str) -> None:
        super().__init__(2)
        self.told = told
        self.operation = operation
        self.was_told = True

    def reset(self, **options: Any) -> Any:
        if self.operation == "env.reset":
            self.was_told &= self.told.wait(WAIT)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.operation == "env.step":
            self.was_told &= self.told.wait(WAIT)
        return super().step(action)


@pytest.mark.parametrize("where", ["local", "vector", "served", "object"])
@pytest.mark.parametrize("operation", ["env.reset", "env.step", "model.predict"])
def test_a_call_that_hangs_is_named(operation: str, where: str) -> None:
    hooks = Release(operation)
    env = WaitingEnv(hooks.told, operation)
    was_told = True

    def function(observations: Any) -> Any:
        nonlocal was_told
        if operation == "model.predict":
            was_told &= hooks.told.wait(WAIT)
        return np.zeros(len(observations), np.int64)

    with ExitStack() as stack:
        envs: Any = env
        policy: Any = function
        if where == "vector":
            envs = SyncVectorEnv([lambda: env])
        if where in {"served", "object"}:
            envs = stack.enter_context(rg.EnvServer(env)).address
            policy = stack.enter_context(rg.ModelServer(function)).address
        if where == "object":
            envs = stack.enter_context(rg.RemoteVectorEnv(envs))
        limits = RuntimeLimits(telemetry_window=0.01)
        report = rg.run(envs, policy, episodes=1, hooks=hooks, limits=limits)
    assert env.was_told
    assert was_told
    assert report.telemetry.pending is None


# How long it waits.


def test_limits_say_for_whom_they_cannot_hold() -> None:
    assert "into this process" in str(RuntimeLimits.__doc__)
    assert "cannot be\n    interrupted" in str(RuntimeLimits.__doc__)


def test_a_policy_keeps_its_own_timeouts_in_a_run() -> None:
    release = threading.Event()
    blocked = threading.Event()

    def function(observations: Any) -> Any:
        if blocked.is_set():
            release.wait(WAIT)
        return np.zeros(len(observations), np.int64)

    envs = SyncVectorEnv([CountingEnv] * 2)
    generous = RuntimeLimits(model_predict_timeout=WAIT)
    with (
        rg.ModelServer(function) as server,
        rg.RemotePolicy(server.address, envs, timeouts={"predict": 0.3}) as hasty,
        rg.RemotePolicy(server.address, envs) as patient,
    ):
        before = [one.lane_policy.adapter.session.timeouts for one in (hasty, patient)]
        strict = RuntimeLimits(model_predict_timeout=1e-9, model_resolve_timeout=1e-9)
        assert len(rg.run(envs, patient, episodes=2, limits=strict).episodes) == 2
        blocked.set()
        try:
            with pytest.raises(DeadlineError, match=r"raise timeouts\.predict") as late:
                rg.run(envs, hasty, episodes=2, limits=generous)
        finally:
            release.set()
        assert "limits." not in str(late.value)
        assert [one.lane_policy.adapter.session.timeouts for one in (hasty, patient)] == before


# What the model holds.


class Hoarder(PlayedModel):
    """Keeps what it has of every episode."""

    def held_state(self) -> rg.HeldState:
        return rg.HeldState(len(self.seen), 100 * len(self.seen))


@pytest.mark.parametrize("end", ["local", "remote"])
@pytest.mark.parametrize("kind", [PlayedModel, Hoarder])
def test_what_a_model_holds_is_noted_wherever_it_is(kind: type[PlayedModel], end: str) -> None:
    found = {}
    for name, given in MODELS.items():
        with ExitStack() as stack:
            envs: Any = vector(AutoresetMode.NEXT_STEP)
            if end == "remote":
                envs = stack.enter_context(rg.EnvServer(envs)).address
            policy = given(stack, kind(), 2, 1)
            report = rg.run(envs, policy, episode_seeds=range(12))
        assert len(report.episodes) == 12
        found[name] = report.telemetry.held, report.notes
    assert all(one == found["handler"] for one in found.values())
    held, notes = found["handler"]
    if kind is PlayedModel:
        assert held is None
        assert notes == ()
        return
    assert held is not None
    assert (held.episodes, held.state_bytes) == (12, 1200)
    assert notes == (held.warning,)
    assert "the model holds 12 episodes" in notes[0]
