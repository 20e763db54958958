from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.cli.options import (
    add_connection_options,
    connection_arguments,
    keyword_arguments,
    positive_int,
)
from rlmesh_gym.cli.serve import build_env
from rlmesh_gym.cli.serve_model import build_handler, load_object
from rlmesh_gym.cli.signals import interrupt_cancels, terminate_as_interrupt, wait_or_interrupt
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime import Cancellation
from rlmesh_gym.server import ModelHandler, ModelObservation

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], {}),
        (["size=5", "name=big", "flag=true"], {"size": 5, "name": "big", "flag": True}),
        (['{"goal": [1, 2]}', "goal=x"], {"goal": "x"}),
        (["text=a=b", "none=null"], {"text": "a=b", "none": None}),
    ],
)
def test_keyword_arguments(texts: list[str], expected: dict[str, Any]) -> None:
    assert keyword_arguments(texts) == expected


@pytest.mark.parametrize("text", ["size", "=5", "two words=1", "{broken", "{1: 2}"])
def test_wrong_keyword_arguments(text: str) -> None:
    with pytest.raises(ConfigurationError):
        keyword_arguments([text])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
def test_wrong_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        positive_int(text)


def test_connection_options() -> None:
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    plain = connection_arguments(parser.parse_args([]))
    assert plain == {"token": None, "tls": None, "timeouts": None}
    full = connection_arguments(parser.parse_args(["--tls", "roots.pem", "--timeout", "2.5"]))
    assert full["tls"] == {"root_certificates": "roots.pem"}
    assert set(full["timeouts"].values()) == {2.5}
    assert connection_arguments(parser.parse_args(["--tls"]))["tls"] is True
    with pytest.raises(SystemExit):
        parser.parse_args(["--timeout", "0"])


def act(observations: Any) -> Any:
    return np.zeros(len(observations), dtype=np.int64)


def make() -> Any:
    return act


class Handler(ModelHandler):
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def predict(self, observation: ModelObservation) -> Any:
        return np.full(observation.num_envs, self.offset)


READY = Handler(3)


def raises() -> Any:
    message = "no weights"
    raise OSError(message)


def test_what_can_be_served() -> None:
    here = "tests.cli.test_cli_options"
    # importlib mode gives this file another name, so compare what they are, not which.
    assert build_handler(load_object(f"{here}:act"), {}).__name__ == "act"
    assert build_handler(load_object(f"{here}:make"), {}).__name__ == "act"
    assert build_handler(READY, {}) is READY
    assert build_handler(Handler, {"offset": 4}).offset == 4
    assert build_handler(Handler, {}).offset == 0


class Module:
    """As a torch module: whatever it is called with."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0]


def logged(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@functools.wraps(act)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return act(*args, **kwargs)


@pytest.mark.parametrize("policy", [act, logged(act), wrapped, Module(), Module().__call__, len])
def test_a_policy_is_no_factory(policy: Any) -> None:
    assert build_handler(policy, {}) is policy


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        (make, {}),
        (functools.partial(make), {}),
        (lambda checkpoint="last": act, {}),
        (lambda **options: act, {}),
        (lambda *args, **options: act, {"checkpoint": "last"}),
    ],
)
def test_a_factory_is_called(factory: Any, arguments: dict[str, Any]) -> None:
    assert build_handler(factory, arguments) is act


@pytest.mark.parametrize(
    ("found", "arguments", "text"),
    [
        (READY, {"offset": 1}, "ready handler"),
        (Handler, {"size": 1}, r"Handler\(…\) failed: TypeError"),
        (raises, {}, r"raises\(…\) failed: OSError: no weights"),
    ],
)
def test_what_cannot(found: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        build_handler(found, arguments)


def test_objects_of_files_and_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_of_test.py").write_text("class A:\n    b = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert load_object("policy_of_test:A.b") == 5
    assert load_object(f"{tmp_path}/policy_of_test.py:A.b") == 5


def test_environments_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envs_of_test.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('OfTest-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    env = build_env("envs_of_test:OfTest-v0")
    assert isinstance(env, gym.Env)
    env.close()
    del gym.registry["OfTest-v0"]


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("nothing", "expected module:object"),
        (":x", "expected module:object"),
        ("json:", "expected module:object"),
        ("json:nothing", "has no 'nothing'"),
        ("no_such_module:x", "ModuleNotFoundError"),
        ("no_such_file.py:x", "FileNotFoundError"),
    ],
)
def test_objects_that_are_not_there(reference: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        load_object(reference)


def test_kinds_of_environments() -> None:
    single = build_env("CartPole-v1")
    lanes = build_env("CartPole-v1", num_envs=2)
    vector = build_env("CartPole-v1", num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        assert isinstance(single, gym.Env)
        assert isinstance(lanes, list)
        assert isinstance(vector, gym.vector.VectorEnv)
        assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    finally:
        closing: list[Any] = [single, vector, *lanes]  # type: ignore[misc]
        for env in closing:
            env.close()
    with pytest.raises(ConfigurationError, match="making 'CartPole-v1' failed: TypeError"):
        build_env("CartPole-v1", env_kwargs={"colour": "red"})
    with pytest.raises(ConfigurationError, match=r"NoSuch.*my_package:MyEnv-v0"):
        build_env("NoSuch-v0")


def test_sigterm_is_an_interrupt_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminate_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_cancels_and_the_second_interrupts(number: signal.Signals) -> None:
    cancellation = Cancellation()
    before = signal.getsignal(number)
    with interrupt_cancels(cancellation.cancel):
        signal.raise_signal(number)
        assert cancellation.wait(10)
        assert cancellation.reason == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("place", ["set_wakeup_fd", "signal"])
def test_an_interrupt_while_signals_are_being_set_leaves_nothing_behind(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        # As the handler of the surrounding code does, when a signal comes just here.
        patched.setattr(signal, place, lambda *_, **__: signal.default_int_handler(2, None))
        with pytest.raises(KeyboardInterrupt), interrupt_cancels(Cancellation().cancel):
            pytest.fail("the block is not entered")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert "rlmesh_gym-signals" not in {thread.name for thread in threading.enumerate()}


def test_a_wait_ends_by_itself_or_by_a_signal() -> None:
    stop = threading.Event()
    assert not wait_or_interrupt(lambda: None)

    before = signal.getsignal(signal.SIGTERM)

    def interrupt_and_stay() -> None:
        while signal.getsignal(signal.SIGTERM) is before:
            stop.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(10)

    assert wait_or_interrupt(interrupt_and_stay)
    stop.set()


def test_signals_in_another_thread_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def body() -> None:
        with interrupt_cancels(Cancellation().cancel), terminate_as_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        cancellation = Cancellation()
        with interrupt_cancels(cancellation.cancel):
            signal.raise_signal(signal.SIGINT)
        assert not cancellation.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
