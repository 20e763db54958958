"""Threads of servers: none waits for another, idle ones end, nothing is lost or overtaken."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym import threads
from rlmesh_gym.errors import ClosedError
from rlmesh_gym.threads import DedicatedThread, GrowingExecutor, LaneScheduler, Turns

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
    monkeypatch.setattr(threads, "_IDLE_SECONDS", 0.0005)
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


@dataclass(eq=False)
class Item:
    number: int
    keys: tuple[str, ...]
    ahead: int = field(default=0)


@given(
    keys=st.lists(st.lists(st.sampled_from("abc"), max_size=3, unique=True), max_size=20),
    choices=st.lists(st.integers(0, 100), max_size=60),
)
def test_order_per_key_holds_and_nothing_is_stuck(keys: Any, choices: list[int]) -> None:
    order: Turns[Item] = Turns()
    waiting = [Item(number, tuple(names)) for number, names in enumerate(keys)]
    running: list[Item] = []
    begun: dict[str, list[int]] = {}

    def begin(item: Item) -> None:
        for other in running:
            assert not set(other.keys) & set(item.keys)
        running.append(item)
        for key in item.keys:
            begun.setdefault(key, []).append(item.number)

    pool = iter(choices)
    total = 0
    while waiting or running:
        if waiting and next(pool, 1) % 2 == 0:
            item = waiting.pop(0)
            if order.enter(item):
                begin(item)
        elif running:
            item = running.pop(next(pool, 0) % len(running))
            total += 1
            for ready in order.leave(item):
                begin(ready)
        elif waiting:
            item = waiting.pop(0)
            if order.enter(item):
                begin(item)
    assert total == len(keys)
    assert all(numbers == sorted(numbers) for numbers in begun.values())
    assert not order._lines


def test_a_dedicated_thread_is_one_and_first_come_first_served() -> None:
    thread = DedicatedThread("rlmesh_gym-test")
    seen: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for number in range(100):
        thread.post(lambda number=number: seen.put((number, threading.get_ident())))  # type: ignore[misc]
    closed: list[bool] = []
    thread.close(lambda: closed.append(True))
    assert thread.join(WAIT)
    rows = [seen.get(timeout=WAIT) for _ in range(100)]
    assert [number for number, _ in rows] == list(range(100))
    assert len({ident for _, ident in rows}) == 1
    assert closed == [True]


def test_tasks_that_raise_end_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise SystemExit("a model called sys.exit")

    thread, workers, done = (
        DedicatedThread("rlmesh_gym-test"),
        GrowingExecutor("rlmesh_gym-test"),
        [],
    )
    thread.post(fail)
    thread.post(lambda: done.append("model"))
    thread.close()
    assert thread.join(WAIT)
    later = threading.Event()
    workers.run(fail)
    workers.run(later.set)
    assert later.wait(WAIT)
    workers.shutdown()
    assert done == ["model"]
    assert "a task of a server failed" in caplog.text


def test_workers_grow_with_the_work_and_go() -> None:
    workers = GrowingExecutor("rlmesh_gym-test")
    gate, arrived = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        arrived.release()
        gate.wait(WAIT)

    for _ in range(20):
        workers.run(wait)
    for _ in range(20):
        assert arrived.acquire(timeout=WAIT)
    gate.set()
    workers.run(arrived.release)
    assert arrived.acquire(timeout=WAIT)
    workers.shutdown()
    assert workers._free == 0


def test_a_task_without_a_thread_runs_on_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = GrowingExecutor("rlmesh_gym-test")
    ran_on: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    workers.run(lambda: ran_on.append(threading.get_ident()))
    assert ran_on == [threading.get_ident()]


def test_calls_on_a_dedicated_thread() -> None:
    thread = DedicatedThread("rlmesh_gym-test")
    ident = thread.run(threading.get_ident)
    assert ident != threading.get_ident()
    assert thread.run(lambda: thread.run(threading.get_ident)) == ident, "from inside, at once"
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: divmod(1, 0))
    thread.close()
    thread.close()
    with pytest.raises(ClosedError, match="has ended"):
        thread.run(threading.get_ident)
    assert thread.join(WAIT)


def test_the_scheduler_waits_where_too_much_is_pending() -> None:
    scheduler = LaneScheduler(max_pending=2)
    gate = threading.Event()
    done: list[int] = []

    def wait(number: int) -> None:
        gate.wait(10)
        done.append(number)

    for number in range(2):
        scheduler.submit([0], partial(wait, number))
    submitted = threading.Event()

    def submit_one_more() -> None:
        scheduler.submit([0], lambda: done.append(2))
        submitted.set()

    thread = threading.Thread(target=submit_one_more)
    thread.start()
    assert not submitted.wait(0.05)
    gate.set()
    thread.join(10)
    scheduler.close()
    assert done == [0, 1, 2]
