"""The handler's own defaults, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.model import CallableHandler, predict_frames


def _observation(rows: int = 2, horizon: int = 1) -> rg.ModelObservation:
    ids = tuple(f"e{row}" for row in range(rows))
    return rg.ModelObservation("env", np.ones((rows, 3)), ids, execution_horizon=horizon)


class Doubler(rg.ModelHandler):
    def predict(self, observation: rg.ModelObservation) -> Any:
        return observation.observation * 2


class Planner(rg.ModelHandler):
    def predict_chunked(self, observation: rg.ModelObservation) -> rg.PredictFrames:
        return rg.PredictFrames(observation.observation, [observation.observation + 1])


def test_each_of_the_two_predicts_gives_the_other() -> None:
    frames = Doubler().predict_chunked(_observation())
    assert frames.num_frames == 1
    assert np.array_equal(frames.actions, np.full((2, 3), 2.0))
    assert np.array_equal(Planner().predict(_observation()), np.ones((2, 3)))
    assert _observation(3).num_envs == 3


def test_a_handler_without_any_predict_says_so() -> None:
    with pytest.raises(NotImplementedError, match="overrides neither"):
        rg.ModelHandler().predict(_observation())


def test_the_horizon_decides_which_is_called() -> None:
    class Both(Doubler):
        def predict_chunked(self, observation: rg.ModelObservation) -> rg.PredictFrames:
            return rg.PredictFrames(observation.observation, [observation.observation] * 4)

    assert predict_frames(Both(), _observation(horizon=1)).num_frames == 1
    assert predict_frames(Both(), _observation(horizon=2)).num_frames == 5  # Not cut here.


def test_frames_must_be_frames() -> None:
    class Wrong(Doubler):
        def predict_chunked(self, observation: rg.ModelObservation) -> Any:
            return [observation.observation]

    with pytest.raises(TypeError, match="returned list, expected PredictFrames"):
        predict_frames(Wrong(), _observation(horizon=2))


def test_one_group_never_sinks_the_others() -> None:
    class Picky(Doubler):
        def predict(self, observation: rg.ModelObservation) -> Any:
            if observation.num_envs == 2:
                raise ValueError("two rows")
            return super().predict(observation)

    one, failed, three = Picky().predict_grouped([_observation(n) for n in (1, 2, 3)])
    assert isinstance(one, rg.PredictFrames)
    assert isinstance(failed, ValueError)
    assert isinstance(three, rg.PredictFrames)
    assert three.actions.shape == (3, 3)


def test_functions_may_return_frames() -> None:
    def plan(observation: Any) -> Any:
        return rg.PredictFrames(observation, [observation + 1])

    handler = CallableHandler(plan)
    assert predict_frames(handler, _observation(horizon=2)).num_frames == 2
    assert np.array_equal(handler.predict(_observation()), np.ones((2, 3)))
    assert "plan" in repr(handler)


def test_everything_else_is_optional() -> None:
    handler = Doubler()
    assert handler.held_state() is None
    assert handler.take_adapter_ns() is None
    assert handler.route_setup() is None
    handler.reset_adapter("env", ())
    handler.on_close()
    setup = rg.ModelRouteSetup()
    assert setup.resolve_adapter("env", None, rg.ResolveOptions()) is None  # type: ignore[arg-type]
    setup.reset_adapter("env", ())
    setup.release_adapter("env")
