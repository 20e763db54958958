"""Many ends are let go of side by side: one close timeout passes, not one for each.

Every close waits for all the others to have begun, so none of them could end after another.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

import rlmesh_gym as rg
from rlmesh_gym.env.open.embedded import EmbeddedServer
from rlmesh_gym.errors import ModelError
from rlmesh_gym.rpc import EnvSession, ModelSession
from tests.runtime.ends import MODULE_ID, PlayedModel, lanes

ENDPOINTS = 4


class Together:
    """A meeting of so many closes; the first that waits in vain breaks it for all."""

    def __init__(self, parties: int, monkeypatch: pytest.MonkeyPatch, *kinds: type[Any]) -> None:
        self.barrier = threading.Barrier(parties)
        self.met = 0
        self.guard = threading.Lock()
        for kind in kinds:
            monkeypatch.setattr(kind, "close", self._meeting(kind.close))

    def _meeting(self, close: Any) -> Any:
        def meeting(end: Any, *args: Any, **options: Any) -> None:
            try:
                self.barrier.wait(20)
            except threading.BrokenBarrierError:
                pass
            else:
                with self.guard:
                    self.met += 1
            close(end, *args, **options)

        return meeting


@pytest.fixture
def addresses() -> Any:
    with ExitStack() as stack:
        yield [stack.enter_context(rg.EnvServer(lanes(1))).address for _ in range(ENDPOINTS)]


def test_a_remote_vector(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    envs = rg.RemoteVectorEnv(addresses=addresses)
    envs.reset()
    together = Together(ENDPOINTS, monkeypatch, EnvSession)
    envs.close()
    assert together.met == ENDPOINTS


def test_a_run(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with rg.ModelServer(PlayedModel()) as server:
        together = Together(ENDPOINTS + 1, monkeypatch, EnvSession, ModelSession)
        report = rg.run(addresses, server.address, episodes=ENDPOINTS)
    assert len(report.episodes) == ENDPOINTS
    assert together.met == ENDPOINTS + 1


def test_a_run_that_fails(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(observations: Any) -> Any:
        raise ValueError("no idea")

    with rg.ModelServer(failing) as server:
        together = Together(ENDPOINTS + 1, monkeypatch, EnvSession, ModelSession)
        with pytest.raises(ModelError, match="no idea"):
            rg.run(addresses, server.address, episodes=ENDPOINTS)
    assert together.met == ENDPOINTS + 1


def test_children(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = rg.RemoteVectorEnv(env_id=MODULE_ID, num_envs=2, workers=2)
    together = Together(2, monkeypatch, EmbeddedServer)
    envs.close()
    assert together.met == 2
