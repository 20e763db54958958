"""The server's own life: start, stop, close, shutdown, idleness, tokens, handshake."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import (
    ConfigurationError,
    ProtocolError,
)
from rlmesh_gym.rpc import CONCURRENT_PREDICT, OBSERVATION_HISTORY, SPACES, EnvSession, ModelSession
from tests.model_client import TIMEOUT, EchoHandler, connected, serving

if TYPE_CHECKING:
    from pathlib import Path


def test_a_function_is_served(socket_dir: Path) -> None:
    with (
        serving(lambda observation: observation * 2, socket_dir) as server,
        connected(server) as client,
    ):
        client.resolve(horizon=3)
        assert client.predict({"a": 1, "b": 2}) == [[2.0, 4.0]]


def test_frames_of_a_function_are_served(socket_dir: Path) -> None:
    def plan(observation: Any) -> rg.PredictFrames:
        return rg.PredictFrames(observation, [observation + j for j in range(1, 9)])

    with serving(plan, socket_dir) as server, connected(server) as client:
        client.resolve(horizon=3)
        assert client.predict({"a": 1, "b": 2}) == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("handler", "part"),
    [
        (3, "expected a ModelHandler or a function"),
        (EchoHandler, "make an instance"),
        (type("Empty", (rg.ModelHandler,), {})(), "overrides neither"),
    ],
    ids=["number", "class", "nothing overridden"],
)
def test_what_cannot_be_served(handler: Any, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        rg.ModelServer(handler)


class Hanging(EchoHandler):
    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate, self.closed = (threading.Event() for _ in range(3))

    def predict(self, observation: rg.ModelObservation) -> Any:
        self.entered.set()
        assert self.gate.wait(TIMEOUT)
        return super().predict(observation)

    def on_close(self) -> None:
        assert self.gate.is_set(), "closed in the middle of a call"
        super().on_close()
        self.closed.set()


def test_a_handler_that_fails_to_close_is_logged(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(EchoHandler):
        def on_close(self) -> None:
            raise OSError("already unplugged")

    with serving(Broken(), socket_dir):
        pass
    assert "already unplugged" in caplog.text
    caplog.clear()
    rg.ModelServer(Broken()).stop()  # Never started.
    assert "already unplugged" in caplog.text


def test_the_handshake(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir) as server:
        with ModelSession.open(server.address) as session:
            assert session.capabilities == {
                OBSERVATION_HISTORY: "true",
                CONCURRENT_PREDICT: "true",
                SPACES: "true",
            }
            assert session.takes_history
            assert session.peer.component == "model"
        with pytest.raises(ProtocolError, match="model"):
            EnvSession.open(server.address)


def test_no_request_is_kept_after_its_answer(socket_dir: Path) -> None:
    kept: list[weakref.ref[Any]] = []

    def remember(observation: Any) -> Any:
        kept.append(weakref.ref(observation))
        return np.zeros_like(observation)

    with serving(remember, socket_dir) as server, connected(server) as client:
        client.resolve()
        for value in range(20):
            client.predict({"a": value})
        client.resolve("another")  # Its turn comes after the last answer has been sent.
        gc.collect()
        assert sum(reference() is not None for reference in kept) <= 1


def test_a_client_that_goes_in_the_middle_of_a_call_hurts_nobody(socket_dir: Path) -> None:
    handler = Hanging()
    with serving(handler, socket_dir) as server:
        with connected(server) as client:
            client.resolve()
            client.begin({"a": 1})
            client.begin({"a": 2})
            assert handler.entered.wait(TIMEOUT)
        handler.gate.set()
        with connected(server) as client:
            assert client.predict({"a": 3}) == [[3.0]]
        # The second request was dropped with its client.
        assert [float(seen.observation[0, 0]) for seen in handler.seen] == [1.0, 3.0]


_FORGETFUL = """
import sys, threading
import rlmesh_gym as rg
from rlmesh_gym.rpc import ModelSession
from tests.model_client import Client, EchoHandler
entered = threading.Event()

class Hanging(EchoHandler):
    def predict(self, observation):
        entered.set()
        threading.Event().wait()

server = rg.ModelServer(Hanging(), f"unix://{sys.argv[1]}/model.sock")
server.start()
client = Client(ModelSession.open(server.address, timeouts={"close": 600.0}))
client.resolve()
client.begin({"a": 1})
entered.wait()
print("leaving", flush=True)
"""


def test_a_process_ends_although_its_model_hangs(socket_dir: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _FORGETFUL, str(socket_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "leaving\n"
        assert process.wait(TIMEOUT) == 0  # The model hangs for ever, and no timeout is shorter.
    finally:
        process.kill()
        process.communicate()
