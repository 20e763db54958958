"""Lanes of a list: at work at the same time, in order each, whole-vector requests between them."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import Any

import pytest

from rlmesh_gym.server.env.lane_calls import LaneCalls, LaneScheduler
from tests.env_wire import infos, pb, serving_raw
from tests.fake_envs import BlockingEnv, CountingEnv, SleepEnv, counting_vector


def test_single_and_lanes_announce_lane_operations() -> None:
    for env in (CountingEnv(), [CountingEnv(), CountingEnv()]):
        with serving_raw(env) as client:
            assert client.capabilities["subset_step"] == "true"
            assert client.contract.autoreset_mode.value == "Disabled"


def test_subset_steps_answer_in_the_order_asked() -> None:
    with serving_raw([CountingEnv(9, base=100 * lane) for lane in range(4)]) as client:
        join = client.open()
        join.reset()
        step = join.step([5, 6, 7], lanes=[3, 0, 2])
        assert client.numbers(step) == [301.0, 1.0, 201.0]
        assert list(step.rewards) == [5.0, 6.0, 7.0]
        assert list(step.env_indices) == [3, 0, 2]
        assert len(step.terminated_mask) == len(step.truncated_mask) == 3
        assert infos(step)["_final_info"] == [False] * 3
        step = join.step([1], lanes=[1])
        assert infos(step) == {"kind": "step", "t": 1}, "one lane's info is bare"
        assert client.numbers(join.step([1] * 4)) == [2.0, 102.0, 202.0, 302.0]


def test_a_single_env_takes_lane_zero() -> None:
    with serving_raw(CountingEnv()) as client:
        join = client.open()
        join.reset(lanes=[0], seeds=[4])
        assert list(join.step([1], lanes=[0]).env_indices) == [0]
        assert list(join.step([1]).env_indices) == []


@pytest.mark.parametrize("is_vector", [False, True], ids=["lanes", "vector"])
def test_more_seeds_than_lanes_are_refused(is_vector: bool) -> None:
    env = counting_vector(2) if is_vector else [CountingEnv(), CountingEnv()]
    with serving_raw(env) as client:
        join = client.open()
        error = join.refused(client.reset_request(seeds=range(3)))
        assert error.is_recoverable
        assert "expected at most 2 seeds, got 3" in error.message
        join.reset(seeds=range(2))


def test_a_fast_lane_overtakes_a_slow_one() -> None:
    slow = BlockingEnv()
    with serving_raw([slow, CountingEnv(50)], overlap=True) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        first = join.send_step([1], lanes=[0])
        assert slow.entered.wait(10)
        for _ in range(3):
            later = join.send_step([1], lanes=[1])
            assert join.take().request_id == later
        slow.release.set()
        assert join.take().request_id == first


def test_requests_of_one_lane_keep_their_order() -> None:
    slow = BlockingEnv()
    with serving_raw([slow, CountingEnv(50)], overlap=True) as client:
        join = client.open()
        join.reset()
        sent = [join.send_step([1], lanes=[0]) for _ in range(5)]
        assert slow.entered.wait(10)
        both = join.send_step([1, 1], lanes=[1, 0])
        behind = join.send_step([1], lanes=[1])
        slow.release.set()
        answers = [join.take() for _ in range(7)]
        assert [a.request_id for a in answers if a.request_id in sent] == sent
        order = [answer.request_id for answer in answers]
        assert order.index(sent[-1]) < order.index(both) < order.index(behind)
        assert slow.most_in_step == 1


@pytest.mark.parametrize("kind", ["step", "render", "configure", "close", "reset"])
def test_whole_vector_requests_are_barriers(kind: str) -> None:
    slow = BlockingEnv()
    fast = CountingEnv(50)
    with serving_raw([slow, fast], overlap=True) as client:
        join = client.open()
        join.reset()
        requests = {
            "step": client.step_request([1, 1]),
            "reset": client.reset_request(),
            "render": pb.JoinRequest(render=pb.RenderRequest()),
            "configure": pb.JoinRequest(configure=pb.ConfigureEnvRequest()),
            "close": pb.JoinRequest(close=pb.CloseEnvsRequest()),
        }
        first = join.send_step([1], lanes=[0])
        assert slow.entered.wait(10)
        barrier = join.send(requests[kind])
        after = None if kind == "close" else join.send_step([1], lanes=[1])
        with pytest.raises(queue.Empty):
            join.take(timeout=0.05)
        assert fast.steps_taken == 0
        slow.release.set()
        expected = [first, barrier] + ([after] if after else [])
        assert [join.take().request_id for _ in expected] == expected
        if kind == "close":
            join.take_end()


def test_partial_reset_and_subset_step_are_in_flight_together() -> None:
    slow = BlockingEnv()
    with serving_raw([slow, CountingEnv(50)], overlap=True) as client:
        join = client.open()
        join.reset()
        join.send_step([1], lanes=[0])
        assert slow.entered.wait(10)
        reset = join.send_reset(lanes=[1])
        assert join.take().request_id == reset
        slow.release.set()
        join.take()


def test_a_step_behind_others_tells_how_long_it_waited() -> None:
    slow = BlockingEnv()
    with serving_raw([slow, CountingEnv(50)], overlap=True) as client:
        join = client.open()
        join.reset()
        first = join.send_step([1], lanes=[0])
        assert slow.entered.wait(10)
        behind = join.send_step([1], lanes=[0])
        with pytest.raises(queue.Empty):
            join.take(timeout=0.05)
        slow.release.set()
        answers = {answer.request_id: answer for answer in (join.take(), join.take())}
        assert answers[behind].queue_ns > 10 * answers[first].queue_ns


def test_a_closing_error_ends_the_stream_also_with_lanes_about() -> None:
    with serving_raw([CountingEnv(), CountingEnv()], overlap=True) as client:
        join = client.open()
        join.reset()
        join.step([1], lanes=[0])
        join.refused(
            pb.JoinRequest(configure=pb.ConfigureEnvRequest(selected_workflow_edition="?"))
        )
        join.take_end()
        client.open().reset()


def test_a_dedicated_thread_serves_lanes_in_turn() -> None:
    threads: set[int] = set()

    class Noting(CountingEnv):
        def __init__(self) -> None:
            super().__init__(50)
            threads.add(threading.get_ident())

        def step(self, action: Any) -> Any:
            threads.add(threading.get_ident())
            return super().step(action)

        def reset(self, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return super().reset(**options)

        def close(self) -> None:
            threads.add(threading.get_ident())
            super().close()

    def build() -> list[Noting]:
        return [Noting(), Noting()]

    with serving_raw(build, dedicated_thread=True) as client:
        for _ in range(3):
            join = client.open()
            join.reset()
            sent = [join.send_step([1], lanes=[lane]) for lane in (0, 1, 1, 0)]
            assert [join.take().request_id for _ in sent] == sent
            join.step([1, 1])
            join.close()
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_many_lanes_in_flight() -> None:
    with serving_raw(
        [CountingEnv(50, base=100 * lane) for lane in range(64)], overlap=True
    ) as client:
        join = client.open()
        join.reset()
        wanted = {join.send_step([1], lanes=[lane]): lane for lane in range(64) for _ in range(3)}
        seen: dict[int, list[float]] = {lane: [] for lane in range(64)}
        for _ in wanted:
            answer = join.take()
            seen[wanted[answer.request_id]] += client.numbers(answer.step)
        assert seen == {lane: [100.0 * lane + t for t in (1, 2, 3)] for lane in range(64)}


def test_slow_lanes_are_at_work_at_the_same_time() -> None:
    calls = LaneCalls(overlap=True)
    here = threading.get_ident()

    def quick(row: int, lane: int) -> tuple[int, int, int]:
        return row, lane, threading.get_ident()

    for _ in range(3):
        values, _, _ = calls.run("step", [4, 2], quick)
        assert values == [(0, 4, here), (1, 2, here)], "quick ones need no threads"
    calls.run("step", [4, 2], lambda _, __: time.sleep(0.01))
    meeting = threading.Barrier(3)
    met, _, skew_ns = calls.run("step", [0, 1, 2], lambda _, __: meeting.wait(10))
    assert sorted(met) == [0, 1, 2]
    assert skew_ns is not None
    assert calls.run("reset", [4, 2], quick)[0][0][2] == here, "each verb has its own mean"
    calls.close()


@pytest.mark.parametrize("slow", [False, True])
def test_one_lane_failing_keeps_none_from_its_step(slow: bool) -> None:
    calls = LaneCalls(overlap=True)
    if slow:
        calls.run("step", [0], lambda _, __: time.sleep(0.01))
    seen: list[int] = []

    def call(row: int, lane: int) -> None:
        seen.append(lane)
        if lane in {5, 7}:
            raise SystemExit(lane)

    with pytest.raises(SystemExit, match="7"):
        calls.run("step", [1, 7, 5, 3], call)
    assert sorted(seen) == [1, 3, 5, 7]
    calls.close()


def test_a_whole_step_of_slow_lanes_overlaps() -> None:
    meeting = threading.Barrier(4)

    class Meeting(SleepEnv):
        def step(self, action: Any) -> Any:
            if self.t:
                meeting.wait(10)
            return super().step(action)

    with serving_raw([Meeting(50, seconds=0.005) for _ in range(4)], overlap=True) as client:
        join = client.open()
        join.reset()
        join.step([1] * 4)  # Now the server knows that they are slow.
        response = join.ask(client.step_request([1] * 4))
        assert response.WhichOneof("kind") == "step"
        assert response.user_ns >= 5_000_000
        assert response.HasField("lane_skew_ns")


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
