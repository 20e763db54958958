"""Models for the released package to serve; each is one shape of its authoring interface.

The rule is the same in all of them: a fixed function of the observation, so that a test can tell
what a row must be answered with. See :func:`tests.peers.expected_action`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import rlmesh.numpy
from rlmesh.adapters import Action, Actuator, Image, ModelSpec, State

from tests.peers import CHUNK, STACK, expected_action


def single_or_batch(observation: Any, frame: int = 0) -> Any:
    """Return one action for one observation, ``(n,)`` for a batch of them."""
    array = np.asarray(observation)
    if array.ndim <= 1:
        return expected_action(array, frame)
    return np.array([expected_action(row, frame) for row in array], dtype=np.int64)


class PredictModel(rlmesh.numpy.Model):
    """Answers one action; takes batches as well."""

    def predict(self, observation: Any) -> Any:
        return single_or_batch(observation)


class BatchModel(rlmesh.numpy.Model):
    """Answers batches only."""

    def predict_batch(self, observations: Any) -> Any:
        return single_or_batch(observations)


class ChunkModel(rlmesh.numpy.Model):
    """Answers a chunk of ``CHUNK`` actions, without a spec."""

    def predict_chunk(self, observation: Any) -> Any:
        array = np.asarray(observation)
        return np.array([expected_action(array, frame) for frame in range(CHUNK)], dtype=np.int64)


class NativeChunkModel(ChunkModel):
    """The same, with the chunk's length declared."""

    native_chunk = CHUNK


class ChunkAndBatchModel(ChunkModel):
    """Answers a chunk for one observation, and one action each for a batch."""

    def predict(self, observation: Any) -> Any:
        return single_or_batch(observation)


class SlowModel(rlmesh.numpy.Model):
    """Takes a second for each answer."""

    def predict(self, observation: Any) -> Any:
        time.sleep(1.0)
        return single_or_batch(observation)


class FailingModel(rlmesh.numpy.Model):
    """Fails at its third call, and only then."""

    calls = 0

    def predict(self, observation: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise ValueError("third time unlucky")
        return single_or_batch(observation)


class ClingingModel(PredictModel):
    """Fails whenever it is told that an episode is over."""

    def on_episode_end(self, episode_id: str = "") -> None:
        raise ValueError("cannot let go")


class StackedModel(rlmesh.numpy.Model):
    """Wants the last ``STACK`` images and a state; answers ``CHUNK`` actions of two numbers.

    Action ``k`` is ``[newest image's first pixel / 255, oldest's / 255] - k / 100``, for the env of
    :mod:`tests.tagged_env`.
    """

    native_chunk = CHUNK
    spec = ModelSpec(
        input={
            "image": Image("image/primary", stack=STACK),
            "state": State("proprio/joint_pos", dim=2),
        },
        output=Action(Actuator("action/joint_pos", 2)),
    )

    def predict_chunk(self, observation: Any) -> Any:
        frames = np.asarray(observation["image"]).reshape(STACK, -1)
        first = np.array([frames[-1, 0], frames[0, 0]], dtype=np.float32) / 255
        return np.stack([first - k / 100 for k in range(CHUNK)])


MODELS = {
    "predict": PredictModel,
    "batch": BatchModel,
    "chunk": ChunkModel,
    "native_chunk": NativeChunkModel,
    "chunk_and_batch": ChunkAndBatchModel,
    "slow": SlowModel,
    "failing": FailingModel,
    "clinging": ClingingModel,
    "stacked": StackedModel,
}
