"""Fifty policies on one model server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import ModelServer, PredictFrames
from tests.policy.served_models import SPACES, TellingModel

CLIENTS = 50
PREDICTS = 60


class AloneModel(TellingModel):
    """Fails a call that overlaps another one."""

    def __init__(self) -> None:
        super().__init__()
        self._alone = threading.Lock()
        self.rows = 0
        self.overlaps = 0

    def predict_chunked(self, observation: Any) -> PredictFrames:
        if not self._alone.acquire(blocking=False):
            self.overlaps += 1
            return super().predict_chunked(observation)
        try:
            self.rows += observation.num_envs
            frames = super().predict_chunked(observation)
            self.calls.clear()
            return frames
        finally:
            self._alone.release()


def test_every_answer_goes_to_its_asker_and_no_call_overlaps() -> None:
    model = AloneModel()
    ready = threading.Barrier(CLIENTS)

    def play(client: int, address: str) -> int:
        with RemotePolicy(address, **SPACES, num_envs=2) as policy:
            ready.wait(60)
            for t in range(PREDICTS):
                sight = np.array([[lane, client, t, 1] for lane in range(2)], np.float32)
                actions, _ = policy.predict(sight, episode_start=[t == 0] * 2)
                assert actions[:, :3].tolist() == sight[:, :3].tolist()
            return policy.stats.calls

    with ModelServer(model) as server, ThreadPoolExecutor(CLIENTS) as pool:
        calls = list(pool.map(lambda client: play(client, server.address), range(CLIENTS)))
    assert calls == [PREDICTS] * CLIENTS
    assert model.overlaps == 0
    assert model.rows == 2 * CLIENTS * PREDICTS
