"""Calls in the wrong order fail in AsyncVectorEnv's own words and classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv

import rlmesh_gym as rg
from tests.fake_envs import CountingEnv

ACTIONS = [0, 0]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Any, Any]]:
    """Gymnasium's own vector and a remote one, with nothing pending."""
    with rg.EnvServer([CountingEnv(99), CountingEnv(99)]) as server:
        own = AsyncVectorEnv([CountingEnv] * 2)
        remote = rg.RemoteVectorEnv(server.address, autoreset_mode="NextStep")
        yield own, remote
        remote.close()
        own.close()


def begin(envs: Any, pending: str | None) -> None:
    if pending == "step":
        envs.step_async(ACTIONS)
    if pending == "reset":
        envs.reset_async(seed=3)


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda envs: envs.step(ACTIONS),
    "step_async": lambda envs: envs.step_async(ACTIONS),
    "step_wait": lambda envs: envs.step_wait(),
    "reset": lambda envs: envs.reset(),
    "reset_async": lambda envs: envs.reset_async(),
    "reset_wait": lambda envs: envs.reset_wait(),
    "call": lambda envs: envs.call("render_mode"),
    "call of a method": lambda envs: envs.call("render"),
}
WRONG = [
    (pending, call)
    for pending in (None, "step", "reset")
    for call in CALLS
    if (call.endswith("_wait") and not call.startswith(str(pending)))
    or (pending is not None and not call.endswith("_wait"))
]


@pytest.mark.parametrize(("pending", "call"), WRONG)
def test_the_same_words_and_the_same_class(
    pair: tuple[Any, Any], pending: str | None, call: str
) -> None:
    errors: list[Any] = []
    for envs in pair:
        envs.reset(seed=3)
        begin(envs, pending)
        with pytest.raises((AlreadyPendingCallError, NoAsyncCallError)) as caught:
            CALLS[call](envs)
        errors.append(caught.value)
        if pending is not None:  # What was pending still is, and can be waited for.
            getattr(envs, f"{pending}_wait")()
    own, remote = errors
    assert isinstance(remote, type(own))
    assert str(remote).startswith(str(own).rstrip("."))
    assert remote.name == own.name


@pytest.mark.parametrize("pending", ["step", "reset"])
def test_a_close_while_a_call_is_pending_warns_alike(pending: str) -> None:
    texts = []
    with ExitStack() as stack:
        server = stack.enter_context(rg.EnvServer([CountingEnv(99), CountingEnv(99)]))
        for envs in (
            AsyncVectorEnv([CountingEnv] * 2),
            rg.RemoteVectorEnv(server.address),
        ):
            envs.reset(seed=3)
            begin(envs, pending)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                # Too late or not is a matter of the machine; the warning is not.
                envs.close_extras(timeout=10)
                envs.closed = True
            texts.append([str(one.message) for one in caught if "pending" in str(one.message)])
    own, remote = texts
    assert len(own) == 1
    assert remote == own
