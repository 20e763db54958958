"""Observations of replayed steps reach a model that looks back: all of them, once, in order."""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import DeadlineError, ModelError
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import (
    HistoryNeeds,
    ModelRouteSetup,
    ModelServer,
    PredictFrames,
    RouteNeeds,
)
from tests.policy.served_models import (
    ScriptedLanes,
    TellingModel,
    check_origin,
)
from tests.policy.test_policy_faults import GatedModel


class LooksBack(ModelRouteSetup):
    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
        assert options.delivers_history
        return RouteNeeds(history=HistoryNeeds(("image",)))


class StackingModel(TellingModel):
    """Writes down what it sees of each episode, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[tuple[int, list[float]]]] = defaultdict(list)
        self.fails = 0

    def route_setup(self) -> ModelRouteSetup:
        return LooksBack()

    def predict_chunked(self, observation: Any) -> PredictFrames:
        frames = [*observation.history, observation]
        for frame in frames:
            for row, episode_id in enumerate(frame.episode_ids):
                self.seen[episode_id].append((frame.step, frame.observation[row].tolist()))
        if self.fails:
            self.fails -= 1
            message = "not today"
            raise ValueError(message)
        return super().predict_chunked(observation)

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        super().reset_adapter(env_id, episode_ids)
        for episode_id in episode_ids:
            if self.fails == 0 and self.seen.get(episode_id):
                self.check(episode_id)

    def check(self, episode_id: str) -> None:
        steps = [step for step, _ in self.seen[episode_id]]
        assert steps == list(range(steps[0], steps[0] + len(steps))), episode_id


@pytest.mark.parametrize("prefetch", [False, True], ids=["plain", "prefetch"])
@pytest.mark.parametrize("coalesce", [0, 2])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_step_is_seen_once_and_in_order(
    mode: AutoresetMode, coalesce: int, prefetch: bool
) -> None:
    model = StackingModel()
    random = np.random.default_rng(4)
    lanes = ScriptedLanes(
        lambda: random.integers(1, 30),
        mode,
        chunk=5,
        num_envs=4,
        dwell=lambda: random.integers(0, 3),
    )
    shown: dict[str, list[list[float]]] = defaultdict(list)
    observations = lanes.reset()
    with (
        ModelServer(model) as server,
        RemotePolicy(
            server.address, lanes, execution_horizon=6, coalesce=coalesce, prefetch=prefetch
        ) as policy,
    ):
        assert policy.lane_policy.adapter.history is not None
        for _ in range(120):
            for lane in np.flatnonzero(~lanes.table.ended):
                shown[lanes.episode_ids[lane]].append(observations[lane].tolist())
            check_origin(lanes, policy(observations))
            observations, _, _ = lanes.step()
        assert policy.stats.history_rows > 100
    assert len(model.seen) > 10
    for episode_id, rows in model.seen.items():
        model.check(episode_id)
        # The last steps of an episode are never asked about, so they stay here.
        assert [row for _, row in rows] == shown[episode_id][: len(rows)]


def test_a_failed_request_leaves_no_gap_and_no_repeat() -> None:
    model = StackingModel()
    lanes = ScriptedLanes(lambda: 1000, AutoresetMode.SAME_STEP, chunk=4, num_envs=2)
    observations = lanes.reset()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, lanes, execution_horizon=4) as policy,
    ):
        for _ in range(8):
            policy(observations)
            observations, _, _ = lanes.step()
        model.fails = 1
        with pytest.raises(ModelError, match="not today"):
            policy(observations)
        before = dict(model.seen)
        model.seen.clear()
        policy(observations)
        for rows in model.seen.values():
            # The owed rows come again, and from a clean start.
            assert [step for step, _ in rows] == [5, 6, 7, 8]
        assert all(len(rows) == 9 for rows in before.values())
        for _ in range(8):
            observations, _, _ = lanes.step()
            policy(observations)
        for episode_id, rows in model.seen.items():
            model.check(episode_id)
            assert [row[2] for _, row in rows] == list(range(5, 17))


class GatedStackingModel(GatedModel):
    def route_setup(self) -> ModelRouteSetup:
        return LooksBack()


def test_after_a_deadline_the_server_takes_the_rows_owed_again() -> None:
    """The late request is worked off in full, so a blind repeat would be refused."""
    model = GatedStackingModel()
    model.gate.set()
    lanes = ScriptedLanes(lambda: 1000, AutoresetMode.SAME_STEP, chunk=3, num_envs=1)
    observations = lanes.reset()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, lanes, execution_horizon=3) as policy,
    ):
        for _ in range(3):
            policy(observations)
            observations, _, _ = lanes.step()
        model.gate.clear()
        timeouts = policy.lane_policy.adapter.session.timeouts
        object.__setattr__(timeouts, "predict", 0.1)
        try:
            with pytest.raises(DeadlineError):
                policy(observations)
        finally:
            model.gate.set()
        object.__setattr__(timeouts, "predict", 30.0)
        for _ in range(7):
            check_origin(lanes, policy(observations))
            observations, _, _ = lanes.step()


def test_a_server_started_again_gets_a_fresh_history(socket_dir: Any) -> None:
    address = f"unix://{socket_dir}/model.sock"
    lanes = ScriptedLanes(lambda: 1000, AutoresetMode.SAME_STEP, chunk=3, num_envs=2)
    observations = lanes.reset()
    server = ModelServer(StackingModel(), address)
    server.start()
    with RemotePolicy(address, lanes, execution_horizon=3) as policy:
        for _ in range(4):
            policy(observations)
            observations, _, _ = lanes.step()
        server.stop(0)
        model = StackingModel()
        with ModelServer(model, address):
            while not model.calls:
                check_origin(lanes, policy(observations))
                observations, _, _ = lanes.step()
            for rows in model.seen.values():
                assert [row[2] for _, row in rows] == [4, 5, 6]


@pytest.mark.parametrize("fails", [0, 1], ids=["answered", "failed"])
def test_a_plan_given_up_on_its_way_leaves_no_gap(fails: int) -> None:
    """Nobody reads whether the model took the rows in, so it starts over with what it is owed."""
    model = StackingModel()
    lanes = ScriptedLanes(lambda: 1000, AutoresetMode.SAME_STEP, chunk=4, num_envs=1)
    observations = lanes.reset()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, lanes, execution_horizon=4, prefetch=True) as policy,
    ):
        for step in range(3):
            model.fails = fails if step == 2 else 0
            policy(observations)
            observations, _, _ = lanes.step()
        assert policy.stats.prefetch_calls == 1
        policy.reset(0)
        check_origin(lanes, policy(observations))
        last = model.calls[-1]
        assert [frame.step for frame in last.history] == [1, 2]
        assert last.step == 3
        assert model.ended == list(last.episode_ids)


class ForgettingModel(StackingModel):
    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        super().reset_adapter(env_id, episode_ids)
        for episode_id in episode_ids:
            self.seen.pop(episode_id, None)


@pytest.mark.parametrize(
    "place", ["_episodes.look", "lane_policy.planner._replay.pop", "lane_policy.adapter.plan"]
)
def test_after_an_interrupt_anywhere_every_lane_starts_over(place: str) -> None:
    """Ctrl-C may come after a frame was taken, or after an episode's beginning was noticed."""
    model = ForgettingModel()
    random = np.random.default_rng(6)
    lanes = ScriptedLanes(
        lambda: random.integers(1, 9), AutoresetMode.NEXT_STEP, chunk=4, num_envs=3
    )
    observations = lanes.reset()
    owner_name, method_name = place.rsplit(".", 1)
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, lanes, execution_horizon=4, prefetch=True) as policy,
    ):
        owner = operator.attrgetter(owner_name)(policy)
        method = getattr(owner, method_name)

        def interrupted(*arguments: Any) -> None:
            method(*arguments)
            raise KeyboardInterrupt

        for step in range(60):
            if step % 5 == 2:
                setattr(owner, method_name, interrupted)
                with contextlib.suppress(KeyboardInterrupt):  # Not every step asks for a plan.
                    check_origin(lanes, policy(observations))
                    observations, _, _ = lanes.step()
                setattr(owner, method_name, method)
            check_origin(lanes, policy(observations))
            observations, _, _ = lanes.step()
        policy(observations)
        assert set(model.seen) <= set(lanes.episode_ids)
