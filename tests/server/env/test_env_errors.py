"""What an env server answers when something is wrong, and whether the stream lives on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.env import ConformanceWarning, RemoteEnv, RemoteVectorEnv
from rlmesh_gym.errors import EnvError
from rlmesh_gym.server import EnvServer
from tests.env_wire import Code, RawClient, pb, serving_raw
from tests.fake_envs import (
    BlockingEnv,
    CountingEnv,
    FailingEnv,
    NaNEnv,
    SleepEnv,
    StubbornEnv,
    counting_vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID = Code.ENV_ERROR_CODE_INVALID_ACTION
UNSUPPORTED = Code.ENV_ERROR_CODE_UNSUPPORTED
INTERNAL = Code.ENV_ERROR_CODE_INTERNAL


def raw_step(data: list[bytes], lanes: tuple[int, ...] = ()) -> pb.JoinRequest:
    value = value_pb2.SpaceValue(leaves=data)
    return pb.JoinRequest(step=pb.StepRequest(action=value, env_indices=lanes))


def word(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<i8").tobytes()


def single() -> CountingEnv:
    return CountingEnv(5)


def lanes() -> list[CountingEnv]:
    return [CountingEnv(5), CountingEnv(5)]


class Case(NamedTuple):
    name: str
    make: Callable[[], Any]
    request: Callable[[RawClient], pb.JoinRequest]
    code: int
    match: str


def render(*indices: int) -> pb.JoinRequest:
    return pb.JoinRequest(render=pb.RenderRequest(env_indices=indices))


def step(*actions: int, on: tuple[int, ...]) -> Callable[[RawClient], pb.JoinRequest]:
    return lambda client: client.step_request(actions, lanes=on)


def reset(**fields: Any) -> Callable[[RawClient], pb.JoinRequest]:
    return lambda client: client.reset_request(**fields)


RECOVERABLE = [
    Case("no action", single, lambda _: raw_step([]), INVALID, "expected 1 leaves, got 0"),
    Case("leaves", single, lambda _: raw_step([word(1)] * 2), INVALID, "expected 1 leaves, got 2"),
    Case("short leaf", single, lambda _: raw_step([b"\0" * 7]), INVALID, "expected 8 bytes"),
    Case("full width", lanes, lambda _: raw_step([word(1, 1)], (1,)), INVALID, "expected 8 bytes"),
    Case("domain", single, lambda _: raw_step([word(10)]), INVALID, r"^\$: value 10 not in range"),
    Case("step twice", lanes, step(1, 1, on=(1, 1)), INVALID, "duplicate lanes"),
    Case("step outside", lanes, step(1, on=(2,)), INVALID, "lane 2 of 2 does not exist"),
    Case("reset twice", lanes, reset(lanes=[0, 0]), INVALID, "duplicate lanes"),
    Case("reset outside", lanes, reset(lanes=[0, 7]), INVALID, "lane 7 of 2 does not exist"),
    Case("seeds", lanes, reset(lanes=[0], seeds=[1, 2]), INVALID, "expected 1 seeds or none"),
    Case("ids", lanes, reset(lanes=[0, 1], ids=["a"]), INVALID, "expected 2 episode_ids or none"),
    Case("render outside", lanes, lambda _: render(2), INVALID, "lane 2 of 2 does not exist"),
    Case("render two", lanes, lambda _: render(0, 1), UNSUPPORTED, "one lane can be rendered"),
    Case("empty", single, lambda _: pb.JoinRequest(), UNSUPPORTED, "unknown kind"),
    Case("vector's lane", counting_vector, step(1, on=(1,)), UNSUPPORTED, "cannot step some"),
]


@pytest.mark.parametrize("case", RECOVERABLE, ids=[case.name for case in RECOVERABLE])
def test_bad_requests_leave_the_session_as_it_was(case: Case) -> None:
    env = case.make()
    touched = env if isinstance(env, list) else [env]
    with serving_raw(env) as client:
        join = client.open()
        join.reset(ids=["a", "b", "c"])
        error = join.refused(case.request(client))
        assert error.code == case.code
        assert error.is_recoverable
        assert re.search(case.match, error.message), error.message
        assert not error.interrupted_episodes
        assert all(getattr(lane, "resets_taken", 1) == 1 for lane in touched)
        assert all(getattr(lane, "steps_taken", 0) == 0 for lane in touched)
        join.step([1] * client.contract.num_envs)


def test_a_vector_that_ignores_masks_has_no_partial_reset() -> None:
    with serving_raw(counting_vector(2), partial_reset=False) as client:
        assert "rlmesh_gym.partial_reset" not in client.capabilities
        join = client.open()
        error = join.refused(client.reset_request(lanes=[0, 0, 9]))
        assert error.code == UNSUPPORTED
        assert "cannot reset some of its lanes" in error.message
        join.reset()


class Stubborn(NamedTuple):
    parts: dict[str, Any]
    match: str


FAULTS = {
    "no reward": Stubborn({"reward": None}, "lane 0: the reward must be one number, got None"),
    "two rewards": Stubborn({"reward": np.ones(2)}, "lane 0: the reward must be one number"),
    "int flag": Stubborn({"terminated": 1}, "lane 0: terminated must be a bool, got 1"),
    "None flag": Stubborn({"truncated": None}, "lane 0: truncated must be a bool, got None"),
    "wrong size": Stubborn({"observation": np.zeros(2)}, r"lane 0 does not fit .* got \(2,\)"),
    "no numbers": Stubborn({"observation": "seven"}, "lane 0 does not fit"),
}
MISFITS: dict[str, tuple[Any, str, str]] = {
    "object": ({"x": object()}, "$.infos.x", "a object is not supported"),
    "key": ({1: 2}, "$.infos", "expected str keys, got the int 1"),
    "large": ({"x": 2**70}, "$.infos.x", "int64"),
    "deep": ({"a": {"fine": 1, "x": 1j}}, "$.infos.a.x", "complex"),
    "listed": ({"a": [{"fine": 1}, {"x": 2**70}]}, "$.infos.a[1].x", "int64"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_what_an_env_may_not_return(fault: Stubborn) -> None:
    with serving_raw(StubbornEnv(5, **fault.parts)) as client:
        join = client.open()
        join.reset(ids=["a"])
        error = join.refused(client.step_request([1]))
        assert error.code == INTERNAL
        assert not error.is_recoverable
        assert error.message.startswith("step failed: ")
        assert re.search(fault.match, error.message), error.message
        assert "Traceback" in error.debug_info
        assert join.take_end() is grpc.StatusCode.OK
        # The env is still there, for a new session.
        client.open().reset()


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=list(MISFITS))
@pytest.mark.parametrize("lanes", [1, 2])
def test_an_info_without_a_form_costs_that_key(misfit: tuple[Any, str, str], lanes: int) -> None:
    info, path, detail = misfit
    envs = [StubbornEnv(5, info={**info, "kept": 7}) for _ in range(lanes)]
    with EnvServer(envs) as server, RemoteVectorEnv(server.address) as remote:
        remote.reset()
        with pytest.warns(ConformanceWarning) as told:
            infos = remote.step([1] * lanes)[4]
        texts = [str(one.message) for one in told]
        where = path if lanes == 1 else path.replace("$.infos", "$.infos.final_info[0]")
        assert any(f"info at {where}: left out: " in text and detail in text for text in texts)
        assert infos["kept"].tolist() == [7] * lanes
        assert "x" not in infos
        if "a" in infos and not isinstance(info["a"], list):
            assert infos["a"]["fine"].tolist() == [1] * lanes
        remote.step([1] * lanes)  # Told once; the session goes on.


def test_strict_servers_refuse_such_an_info() -> None:
    with serving_raw(StubbornEnv(5, info={"x": 2**70}), validation="strict") as client:
        join = client.open()
        join.reset(ids=["a"])
        assert re.search(r"\$.infos.x.*int64", join.refused(client.step_request([1])).message)


class Blind(CountingEnv):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.render_mode = "rgb_array"

    def render(self) -> Any:
        raise RuntimeError("no display")


def test_a_render_that_fails_costs_that_call() -> None:
    with EnvServer(Blind()) as server, RemoteEnv(server.address) as env:
        env.reset()
        with pytest.raises(EnvError, match="no display") as raised:
            env.render()
        assert raised.value.is_recoverable
        assert env.step(1)[1] == 1.0


class Worker(CountingEnv):
    """Raises in a step with action 1, which ends its worker."""

    def step(self, action: Any) -> Any:
        if action:
            raise RuntimeError("hiccup")
        return super().step(action)


@pytest.mark.filterwarnings("ignore")  # Gymnasium says what happens to its workers.
def test_a_vector_whose_worker_died_is_made_anew() -> None:
    made = []

    def make() -> Any:
        made.append(AsyncVectorEnv([Worker, Worker]))
        return made[-1]

    with EnvServer(make) as server, RemoteVectorEnv(server.address) as envs:
        for count in (1, 2, 3):
            envs.reset(seed=1)
            envs.step(np.array([0, 0]))
            with pytest.raises(EnvError, match="hiccup"):
                envs.step(np.array([0, 1]))
            assert len(made) == count


@pytest.mark.parametrize(
    "exception",
    [
        ValueError("stuck"),
        SystemExit(3),
        KeyboardInterrupt("stuck"),
        MemoryError(),
        GeneratorExit(),
    ],
    ids=lambda exception: type(exception).__name__,
)
@pytest.mark.parametrize(
    "make", [lambda env: env, lambda env: [env, CountingEnv(5)]], ids=["1", "2"]
)
def test_any_exception_of_a_step(
    exception: BaseException, make: Callable[[CountingEnv], Any]
) -> None:
    with serving_raw(make(FailingEnv(5, at=2, exception=exception))) as client:
        num_envs = client.contract.num_envs
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1] * num_envs)
        error = join.refused(client.step_request([1] * num_envs))
        assert error.code == INTERNAL
        assert not error.is_recoverable
        assert error.message == f"step failed: {type(exception).__name__}: {exception}"
        assert "fake_envs.py" in error.debug_info
        assert [e.episode_id for e in error.interrupted_episodes] == ["a", "b"][:num_envs]
        assert join.take_end() is grpc.StatusCode.OK


def test_an_exception_of_a_reset() -> None:
    with serving_raw(FailingEnv(5, at=0)) as client:
        join = client.open()
        error = join.refused(client.reset_request())
        assert error.code == INTERNAL
        assert error.message == "reset failed: ValueError: the gripper is stuck"
        assert join.take_end() is grpc.StatusCode.OK


def test_a_vector_envs_exception() -> None:
    vector = counting_vector(3)
    with serving_raw(vector) as client:
        join = client.open()
        error = join.refused(client.reset_request(seeds=[1, 2]))
        assert error.code == INTERNAL
        assert "num_envs=3 but got length=2" in error.message
        assert join.take_end() is grpc.StatusCode.OK
        join = client.open()
        error = join.refused(client.reset_request(seeds=[-4]))
        assert "the seed of lane 0 must be between 0 and" in error.message


def test_stepping_an_ended_lane_of_a_vector_without_autoreset() -> None:
    vector = counting_vector(2, AutoresetMode.DISABLED)
    with serving_raw(vector) as client:
        join = client.open()
        join.reset()
        join.step([1, 1])
        join.step([1, 1])
        error = join.refused(client.step_request([1, 1]))
        assert error.code == INTERNAL
        assert "lanes [0] are over" in error.message
        assert join.take_end() is grpc.StatusCode.OK
        join = client.open()
        join.reset()
        join.step([1, 1])


def test_a_failing_lane_leaves_the_stream_and_the_others() -> None:
    with serving_raw([FailingEnv(5, at=1), CountingEnv(5)]) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        error = join.refused(client.step_request([1], lanes=[0]))
        assert error.code == INTERNAL
        assert not error.is_recoverable
        assert [e.episode_id for e in error.interrupted_episodes] == ["a"]
        assert list(join.step([1], lanes=[1]).env_indices) == [1]
        join.reset(lanes=[0], ids=["a2"])
        final = {e.episode_id: e.step_count for e in join.close()}
        assert final == {"b": 1, "a2": 0}


def test_nan_in_an_observation_under_every_policy() -> None:
    for policy in ("warn", "strict", "off"):
        with serving_raw([CountingEnv(5), NaNEnv(5, at=1)], validation=policy) as client:
            join = client.open()
            join.reset()
            error = join.refused(client.step_request([1, 1]))
            assert error.code == INTERNAL
            assert "the observation of lane 1" in error.message
            assert "nan" in error.message


def test_an_unknown_edition_ends_the_session() -> None:
    def configure(edition: str) -> pb.JoinRequest:
        return pb.JoinRequest(configure=pb.ConfigureEnvRequest(selected_workflow_edition=edition))

    with serving_raw(CountingEnv()) as client:
        join = client.open()
        for edition in ("", "2026.06", "2026.06"):
            assert join.ask(configure(edition)).WhichOneof("kind") == "configure"
        error = join.refused(configure("2031.01"))
        assert error.code == INVALID
        assert not error.is_recoverable
        assert "2026.06" in error.message
        assert join.take_end() is grpc.StatusCode.OK


def test_a_slow_step_is_answered_with_a_timeout_when_it_is_done() -> None:
    env = SleepEnv(3, seconds=0.05, at=2)
    with serving_raw(env) as client:
        join = client.open()
        join.reset(ids=["a"], timeout_ms=60_000)
        join.step([1], timeout_ms=60_000)
        error = join.refused(client.step_request([1], timeout_ms=5))
        assert error.code == Code.ENV_ERROR_CODE_TIMEOUT
        assert error.is_recoverable
        assert env.t == 2
        # The step was made, so it counts.
        (record,) = join.step([1]).completed_episodes
        assert (record.episode_id, record.step_count) == ("a", 3)


def test_an_episode_that_ends_in_a_dropped_step_is_told_with_the_next() -> None:
    with serving_raw(SleepEnv(1, seconds=0.05, at=1)) as client:
        join = client.open()
        join.reset(ids=["a"])
        error = join.refused(client.step_request([1], timeout_ms=5))
        assert error.code == Code.ENV_ERROR_CODE_TIMEOUT
        assert not error.interrupted_episodes
        join.reset(ids=["b"])
        records = join.step([1]).completed_episodes
        assert [(r.episode_id, r.terminated) for r in records] == [("a", True), ("b", True)]


def test_garbage_ends_only_its_own_stream() -> None:
    with serving_raw(CountingEnv()) as client:
        raw: Any = client.channel.stream_stream(
            "/rlmesh.env.v1.EnvService/Join", request_serializer=None, response_deserializer=None
        )
        with pytest.raises(grpc.RpcError):
            list(raw(iter([b"\xff\xff\xff"]), timeout=10))
        client.open().reset()


def test_request_ids_come_back_as_they_are() -> None:
    with serving_raw(CountingEnv()) as client:
        join = client.open()
        for request_id in ("x", "x", "äöü", "y" * 300):
            request = client.reset_request()
            request.request_id = request_id
            assert join.ask(request).request_id == request_id


def test_half_close_lets_the_work_finish() -> None:
    env = BlockingEnv()
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        sent = join.send_step([1])
        join.half_close()
        assert env.entered.wait(10)
        env.release.set()
        assert join.take().request_id == sent
        assert join.take_end() is grpc.StatusCode.OK
        client.open().reset()


def test_timings_are_told() -> None:
    lanes = [SleepEnv(5, seconds=0.02), SleepEnv(5, seconds=0.0)]
    with serving_raw(lanes, overlap=True) as client:
        join = client.open()
        join.reset()
        response = join.ask(client.step_request([1, 1]))
        assert response.user_ns >= 20_000_000
        assert response.endpoint_total_ns >= response.user_ns + response.decode_ns
        assert response.encode_ns > 0
        assert 0 < response.lane_skew_ns <= response.user_ns
        assert not response.HasField("queue_ns")
        response = join.ask(client.step_request([1], lanes=[1]))
        assert response.HasField("queue_ns")
        assert not response.HasField("lane_skew_ns")
