"""The server's threads: none waits for another, idle ones end, none is lost."""

from __future__ import annotations

import threading

import pytest

from rlmesh_gym.rpc.host import executor as module
from rlmesh_gym.rpc.host.executor import GrowingExecutor

WAIT = 10.0


def test_blocked_calls_hold_up_none() -> None:
    pool = GrowingExecutor("rlmesh_gym-test")
    release = threading.Event()
    blocked = [pool.submit(release.wait, WAIT) for _ in range(80)]
    assert pool.submit(pow, 2, 10).result(WAIT) == 1024
    release.set()
    assert all(future.result(WAIT) for future in blocked)
    pool.shutdown()


def test_threads_are_used_again() -> None:
    pool = GrowingExecutor("rlmesh_gym-test")
    first = pool.submit(threading.get_ident).result(WAIT)
    idents = {first}
    while pool._free == 0:  # It counts itself free a moment after it has set the result.
        threading.Event().wait(0.001)
    idents.add(pool.submit(threading.get_ident).result(WAIT))
    assert idents == {first}
    pool.shutdown()


def test_what_a_call_raises_is_the_futures() -> None:
    pool = GrowingExecutor("rlmesh_gym-test")
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(WAIT)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(divmod, 1, 1)


def test_no_call_is_lost_while_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0005)
    pool = GrowingExecutor("rlmesh_gym-test")
    count = 0
    for _ in range(300):
        count += sum(future.result(WAIT) for future in [pool.submit(int, 1) for _ in range(5)])
    assert count == 1500
    pool.shutdown()


def test_a_call_without_a_thread_waits_for_the_next_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the system gives no more; gRPC's own loop would die of an exception."""
    pool = GrowingExecutor("rlmesh_gym-test")
    release = threading.Event()
    blocked = pool.submit(release.wait, WAIT)

    def refuse(thread: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        late = [pool.submit(pow, 2, exponent) for exponent in (3, 4)]
    assert not any(future.done() for future in late)
    release.set()
    assert [future.result(WAIT) for future in late] == [8, 16]
    assert blocked.result(WAIT)
    pool.shutdown()
