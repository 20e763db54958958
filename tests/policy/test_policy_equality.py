"""Actions of RemotePolicy against one naive loop per lane around the same function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.policy.planning.ensemble import EXPONENTIAL_DECAY
from rlmesh_gym.server import ModelHandler, ModelServer, PredictFrames
from tests.lengths import shortened
from tests.policy.served_models import (
    LocalLanes,
    NaiveLane,
    ScriptedLanes,
    TellingModel,
    check_origin,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ModelServer(TellingModel()) as server:
        yield server.address


@settings(deadline=None, max_examples=shortened(60))
@given(data=st.data())
@pytest.mark.parametrize("kind", [ScriptedLanes, LocalLanes], ids=["lane table", "told"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_actions_equal_those_of_a_naive_loop_per_lane(
    kind: type[ScriptedLanes], mode: AutoresetMode, address: str, data: st.DataObject
) -> None:
    num_envs = data.draw(st.integers(1, 16), label="lanes")
    horizon = data.draw(st.integers(1, 9), label="horizon")
    chunk = data.draw(st.integers(1, 12), label="native chunk")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    longest = data.draw(st.integers(1, 20), label="longest episode")
    lanes = kind(
        lambda: random.integers(1, longest + 1),
        mode,
        chunk=chunk,
        num_envs=num_envs,
        # An idle lane that stays idle is only seen by those who read the lane table.
        dwell=(lambda: random.integers(0, 3)) if kind is ScriptedLanes else (lambda: 0),
    )
    naive = [NaiveLane(horizon) for _ in range(num_envs)]
    observations = lanes.reset()
    with RemotePolicy(address, lanes, execution_horizon=horizon) as policy:
        for step in range(30):
            actions = policy(observations)
            assert actions.shape == (num_envs, 4)
            assert actions.dtype == np.float32
            for lane in np.flatnonzero(~lanes.table.ended):
                is_first = bool(lanes.t[lane] == 0)
                expected = naive[lane].act(observations[lane], is_first=is_first)
                assert actions[lane].tolist() == expected, (step, lane)
            observations, terminations, truncations = lanes.step()
            if kind is LocalLanes:
                policy.observe_step(terminations, truncations)
                if mode is AutoresetMode.DISABLED:
                    policy.reset(terminations | truncations)
        assert policy.stats.rows == sum(lane.plans for lane in naive)


@settings(deadline=None, max_examples=shortened(60))
@given(data=st.data())
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_option_keeps_plans_in_their_episode_and_in_time(
    mode: AutoresetMode, address: str, data: st.DataObject
) -> None:
    """Whatever the options, an action is frame t - s of a plan made at step s of this episode."""
    num_envs = data.draw(st.integers(1, 8), label="lanes")
    horizon = data.draw(st.integers(2, 9), label="horizon")
    options: dict[str, Any] = {
        "replan_interval": data.draw(st.integers(1, horizon), label="interval"),
        "coalesce": data.draw(st.integers(0, 4), label="coalesce"),
        "prefetch": data.draw(st.booleans(), label="prefetch"),
    }
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    lanes = ScriptedLanes(
        lambda: random.integers(1, 25),
        mode,
        chunk=data.draw(st.integers(1, 12), label="native chunk"),
        num_envs=num_envs,
        dwell=lambda: random.integers(0, 3),
    )
    observations = lanes.reset()
    with RemotePolicy(address, lanes, execution_horizon=horizon, **options) as policy:
        for step in range(30):
            actions = policy(observations)
            check_origin(lanes, actions)
            first = ~lanes.table.ended & (lanes.t == 0)
            assert (actions[first, 3] == 0).all(), "nothing is dropped at an episode's start"
            if step % 7 == 3:
                policy.reset(int(random.integers(num_envs)))
            observations, _, _ = lanes.step()


class NoisyModel(ModelHandler):
    """Ten frames that no two observations share."""

    def predict_chunked(self, observation: Any) -> PredictFrames:
        frames = [self.frame(observation.observation, number) for number in range(10)]
        return PredictFrames(frames[0], frames[1:])

    @staticmethod
    def frame(rows: Any, number: int) -> Any:
        return np.sin(rows * (1.0 + number) + np.arange(4)).astype(np.float32)


def alternate(predictions: Any, ages: Any) -> Any:
    """A rule that depends on the order and on the ages."""
    return predictions[0] if ages[0] % 2 else predictions[-1]


@pytest.mark.parametrize("rule", ["newest", "mean", "exponential", alternate])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("horizon", "interval"), [(8, 2), (5, 1), (6, 4)])
def test_ensembles_equal_a_naive_loop_per_lane(
    rule: Any, mode: AutoresetMode, horizon: int, interval: int
) -> None:
    random = np.random.default_rng(horizon)
    lanes = ScriptedLanes(lambda: random.integers(1, 25), mode, chunk=10, num_envs=4)
    chunks: list[list[tuple[int, Any]]] = [[] for _ in range(4)]
    observations = lanes.reset()
    with (
        ModelServer(NoisyModel()) as server,
        RemotePolicy(
            server.address,
            lanes,
            execution_horizon=horizon,
            replan_interval=interval,
            ensemble=rule,
        ) as policy,
    ):
        for _ in range(60):
            actions = policy(observations)
            for lane in np.flatnonzero(~lanes.table.ended):
                t = int(lanes.t[lane])
                if t == 0:
                    chunks[lane] = []
                if t % interval == 0:
                    row = observations[lane]
                    plan = [NoisyModel.frame(row, number) for number in range(horizon)]
                    chunks[lane].append((t, np.array(plan)))
                live = [(s, plan[t - s]) for s, plan in chunks[lane] if t - s < horizon]
                predictions = np.array([prediction for _, prediction in live])
                ages = np.array([t - s for s, _ in live])
                if callable(rule):
                    expected = rule(predictions, ages)
                elif rule == "newest":
                    expected = predictions[-1]
                else:
                    decay = EXPONENTIAL_DECAY if rule == "exponential" else 0.0
                    weights = np.exp(-decay * np.arange(len(live)))
                    expected = weights @ predictions.astype(np.float64) / weights.sum()
                np.testing.assert_allclose(actions[lane], expected, rtol=1e-6, atol=1e-7)
            observations, _, _ = lanes.step()
