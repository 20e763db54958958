"""Turns, threads and workers by themselves."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym.server.model.schedule import EnvOrder, ModelThread, WorkerPool
from tests.model_client import TIMEOUT


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
    order: EnvOrder[Item] = EnvOrder()
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


def test_the_model_thread_is_one_and_first_come_first_served() -> None:
    thread = ModelThread("rlmesh_gym-test")
    seen: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for number in range(100):
        thread.run(lambda number=number: seen.put((number, threading.get_ident())))  # type: ignore[misc]
    closed: list[bool] = []
    thread.close(lambda: closed.append(True))
    assert thread.join(TIMEOUT)
    rows = [seen.get(timeout=TIMEOUT) for _ in range(100)]
    assert [number for number, _ in rows] == list(range(100))
    assert len({ident for _, ident in rows}) == 1
    assert closed == [True]


def test_tasks_that_raise_end_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise SystemExit("a model called sys.exit")

    thread, workers, done = ModelThread("rlmesh_gym-test"), WorkerPool("rlmesh_gym-test"), []
    thread.run(fail)
    thread.run(lambda: done.append("model"))
    thread.close(lambda: None)
    assert thread.join(TIMEOUT)
    later = threading.Event()
    workers.run(fail)
    workers.run(later.set)
    assert later.wait(TIMEOUT)
    workers.close()
    assert done == ["model"]
    assert "a model server task failed" in caplog.text


def test_workers_grow_with_the_work_and_go() -> None:
    workers = WorkerPool("rlmesh_gym-test", max_idle=2)
    gate, arrived = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        arrived.release()
        gate.wait(TIMEOUT)

    for _ in range(20):
        workers.run(wait)
    for _ in range(20):
        assert arrived.acquire(timeout=TIMEOUT)
    gate.set()
    workers.run(arrived.release)
    assert arrived.acquire(timeout=TIMEOUT)
    workers.close()
    assert workers._idle == []


def test_a_task_without_a_thread_runs_on_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = WorkerPool("rlmesh_gym-test")
    ran_on: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    workers.run(lambda: ran_on.append(threading.get_ident()))
    assert ran_on == [threading.get_ident()]
