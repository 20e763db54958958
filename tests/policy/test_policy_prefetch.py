"""Chunks asked for ahead of time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rlmesh_gym.errors import ModelError
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import ModelServer, PredictFrames
from tests.policy.served_models import SPACES, TellingModel

if TYPE_CHECKING:
    from collections.abc import Iterator


class SteppedModel(TellingModel):
    """Answers one call per permit, and says when a call has come."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.fails = False

    def predict_chunked(self, observation: Any) -> PredictFrames:
        self.arrived.release()
        self.permits.acquire()
        if self.fails:
            self.fails = False
            message = "no chunk today"
            raise ValueError(message)
        return super().predict_chunked(observation)


@pytest.fixture
def model() -> SteppedModel:
    return SteppedModel()


@pytest.fixture
def policy(model: SteppedModel) -> Iterator[RemotePolicy]:
    with ModelServer(model) as server:
        policy = RemotePolicy(
            server.address,
            **SPACES,
            execution_horizon=8,
            prefetch=True,
            timeouts={"predict": 30.0},
        )
        yield policy
        model.permits.release(1000)
        policy.close()


def sight(t: int, episode: int = 0) -> Any:
    return np.array([[0, episode, t, 8]], np.float32)


def act(policy: RemotePolicy, t: int, episode: int = 0) -> tuple[int, int]:
    """Give the plan's time and the frame that is used at ``t``."""
    start = [True] if t == 0 else None
    action = policy.predict(sight(t, episode), episode_start=start)[0][0]
    assert action[1] == episode
    return int(action[2]), int(action[3])


def test_frames_replay_while_the_next_chunk_is_on_its_way(
    policy: RemotePolicy, model: SteppedModel
) -> None:
    model.permits.release()
    assert [act(policy, t) for t in range(5)] == [(0, t) for t in range(5)]
    # Asked for with four frames' time left, half the horizon while nothing is known.
    assert policy.stats.calls == 2
    assert model.arrived.acquire(timeout=10)
    assert model.arrived.acquire(timeout=10)
    # It is not there, and nobody waits for it.
    assert [act(policy, t) for t in range(5, 8)] == [(0, t) for t in range(5, 8)]
    assert len(model.calls) == 1
    model.permits.release()
    # Made from t = 4; the frames for 4, 5, 6, 7 are over.
    assert act(policy, 8) == (4, 4)
    stats = policy.stats
    assert (stats.prefetch_calls, stats.dropped_frames) == (2, 4)
    assert stats.replayed_rows == 8


def test_a_prefetch_of_an_ended_episode_is_never_used(
    policy: RemotePolicy, model: SteppedModel
) -> None:
    model.permits.release(10)
    for t in range(6):
        act(policy, t)
    assert policy.stats.prefetch_calls == 1
    # A new episode begins with a whole chunk of its own.
    assert [act(policy, t, episode=1) for t in range(8)] == [(0, t) for t in range(8)]
    assert policy.stats.dropped_rows == 1


def test_a_chunk_that_is_over_when_it_comes_is_replaced_by_a_plan(
    policy: RemotePolicy, model: SteppedModel
) -> None:
    model.permits.release(10)

    def short(t: int) -> tuple[int, int]:
        observation = sight(t)
        observation[0, 3] = 3
        start = [True] if t == 0 else None
        action = policy.predict(observation, episode_start=start)[0][0]
        return int(action[2]), int(action[3])

    # Three frames a chunk: prefetched at 1, when two are left, and two are dropped of it at 3.
    assert [short(t) for t in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert short(3) == (1, 2)
    assert short(4) == (3, 1)


def test_a_prefetch_that_fails_is_told_when_it_is_needed(
    policy: RemotePolicy, model: SteppedModel
) -> None:
    model.permits.release()
    for t in range(4):
        act(policy, t)
    model.fails = True
    model.permits.release(10)
    assert [act(policy, t) for t in range(4, 8)] == [(0, t) for t in range(4, 8)]
    with pytest.raises(ModelError, match="no chunk today"):
        act(policy, 8)
    assert act(policy, 8) == (8, 0)


def test_a_prefetch_that_fails_for_an_ended_episode_is_not_told(
    policy: RemotePolicy, model: SteppedModel
) -> None:
    model.permits.release()
    for t in range(4):
        act(policy, t)
    model.fails = True
    model.permits.release(10)
    for t in range(4, 6):
        act(policy, t)
    assert [act(policy, t, episode=1) for t in range(3)] == [(0, 0), (0, 1), (0, 2)]


def test_reset_gives_up_what_is_on_its_way(policy: RemotePolicy, model: SteppedModel) -> None:
    model.permits.release(10)
    for t in range(6):
        act(policy, t)
    policy.reset(0)
    assert act(policy, 6) == (6, 0)
    assert policy.stats.dropped_rows == 1
