"""The server's own life: start, stop, close, shutdown, idleness, tokens, handshake."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import (
    AuthenticationError,
    ConfigurationError,
    ProtocolError,
    RemoteError,
    StateError,
    UnavailableError,
    UnsupportedCallError,
)
from rlmesh_gym.rpc import CONCURRENT_PREDICT, OBSERVATION_HISTORY, EnvSession, ModelSession
from tests.model_client import TIMEOUT, Client, EchoHandler, connected, serving

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


def test_start_and_stop_over_tcp() -> None:
    handler = EchoHandler()
    server = rg.ModelServer(handler, "127.0.0.1:0")
    assert "not started" in repr(server)
    with pytest.raises(StateError, match="before start"):
        _ = server.address
    address = server.start()
    assert server.start() == server.address == address
    assert address.startswith("tcp://127.0.0.1:")
    assert address in repr(server)
    with connected(server) as client:
        client.resolve()
        assert client.predict({"a": 1}) == [[1.0]]
    assert not server.wait(0)
    server.stop()
    server.stop()
    assert server.wait(0)
    assert handler.closes == 1
    assert "stopped" in repr(server)
    with pytest.raises(StateError, match="make a new one"):
        server.start()
    with pytest.raises(UnavailableError):
        ModelSession.open(address, timeouts=1.0)


def test_stopping_what_never_started_closes_the_handler() -> None:
    handler = EchoHandler()
    server = rg.ModelServer(handler)
    server.stop()
    server.stop()
    assert handler.closes == 1


def test_two_servers_do_not_share_an_address() -> None:
    second = EchoHandler()
    with rg.ModelServer(EchoHandler()) as server:
        other = rg.ModelServer(second, server.address)
        with pytest.raises(ConfigurationError, match="in use"):
            other.start()
        other.stop()
    assert second.closes == 1


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


@pytest.mark.parametrize(
    "options",
    [
        {"idle_timeout": 0.0},
        {"idle_timeout": "3"},
        {"max_adapters": 0},
        {"max_adapters": "3"},
        {"drain_timeout": -1},
        {"close_timeout": None},
    ],
)
def test_options_that_cannot_work(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        rg.ModelServer(EchoHandler(), **options)


def test_a_server_cannot_be_pickled() -> None:
    with pytest.raises(UnsupportedCallError, match="pickle the handler"):
        pickle.dumps(rg.ModelServer(EchoHandler()))


def test_serve_blocks_until_stopped(socket_dir: Path) -> None:
    handler = EchoHandler()
    server = rg.ModelServer(handler, f"unix://{socket_dir}/model.sock")
    thread = threading.Thread(target=server.serve)
    server.start()
    thread.start()
    with connected(server) as client:
        client.resolve()
    server.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert handler.closes == 1


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


def test_stop_does_not_wait_for_ever_and_close_never_overlaps_a_call(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Hanging()
    server = rg.ModelServer(handler, f"unix://{socket_dir}/model.sock", close_timeout=0.05)
    server.start()
    with connected(server) as client:
        client.resolve()
        pending = client.begin({"a": 1})
        assert handler.entered.wait(TIMEOUT)
        server.stop()
        with pytest.raises(RemoteError):
            pending.result(TIMEOUT)
    assert handler.closes == 0
    assert "still at work" in caplog.text
    handler.gate.set()
    assert handler.closed.wait(TIMEOUT)
    assert handler.closes == 1


def test_draining_answers_what_is_at_work(socket_dir: Path) -> None:
    handler = Hanging()
    with serving(handler, socket_dir) as server, connected(server) as client:
        client.resolve()
        pending = client.begin({"a": 3})
        assert handler.entered.wait(TIMEOUT)
        stopper = threading.Thread(target=server.stop, kwargs={"drain": TIMEOUT})
        stopper.start()
        handler.gate.set()
        assert client.actions(pending) == [[3.0]]
        stopper.join(TIMEOUT)
        assert not stopper.is_alive()
        with pytest.raises(RemoteError):
            client.predict({"a": 4})


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
            }
            assert session.takes_history
            assert session.takes_concurrent_predicts
            assert session.peer.component == "model"
        with pytest.raises(ProtocolError, match="model"):
            EnvSession.open(server.address)


def test_a_token_is_asked_for(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir, token="secret") as server:
        assert "secret" not in repr(server)
        with pytest.raises(AuthenticationError):
            ModelSession.open(server.address, token="wrong")
        with ModelSession.open(server.address, token="secret") as session:
            Client(session).resolve()


def test_remote_shutdown(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(EchoHandler(), socket_dir) as server, connected(server) as client:
        assert client.session.request_shutdown("please") == (
            False,
            "remote shutdown is disabled for this model endpoint",
        )
    monkeypatch.setenv("RLMESH_ALLOW_REMOTE_SHUTDOWN", "TRUE")
    handler = EchoHandler()
    with serving(handler, socket_dir) as server, connected(server) as client:
        client.resolve()
        assert client.session.request_shutdown("done") == (True, "shutdown accepted: done")
        assert server.wait(TIMEOUT)
        assert handler.closes == 1


def test_an_idle_server_stops(socket_dir: Path) -> None:
    with serving(EchoHandler(), socket_dir, idle_timeout=0.1) as server:
        assert server.wait(TIMEOUT)


def test_a_server_at_work_is_not_idle(socket_dir: Path) -> None:
    handler = Hanging()
    with (
        serving(handler, socket_dir, idle_timeout=0.7) as server,
        connected(server) as client,
    ):
        client.resolve()
        pending = client.begin({"a": 3})
        assert handler.entered.wait(TIMEOUT)
        assert not server.wait(1.5)
        handler.gate.set()
        assert client.actions(pending) == [[3.0]]
        assert server.wait(TIMEOUT)


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
