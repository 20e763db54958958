"""Who gets a session, when an env is built and closed, and how a server ends."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any, Literal

import grpc
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rlmesh_gym.codec import decode_meta_map
from rlmesh_gym.errors import ConfigurationError, StateError, UnsupportedSpaceError
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.server import EnvServer
from tests.env_wire import RawClient, pb, raw_client, serving_raw
from tests.fake_envs import AllSpacesEnv, BlockingEnv, CountingEnv, counting_vector

if TYPE_CHECKING:
    from collections.abc import Callable


def refused(client: RawClient) -> Any:
    join = client.open()
    assert join.inbox.get(timeout=10) is None
    return join


def test_a_second_session_is_refused_and_the_first_goes_on() -> None:
    with serving_raw(CountingEnv()) as client:
        join = client.open()
        join.reset()
        second = refused(client)
        assert second.status is grpc.StatusCode.FAILED_PRECONDITION
        assert "environment already has an active Join session" in second.details
        join.step([1])
        assert client.handshake().base.compatible, "a handshake is always answered"


def test_the_slot_is_free_when_the_client_reads_the_end() -> None:
    with serving_raw(CountingEnv()) as client:
        for _ in range(30):
            join = client.open()
            join.reset()
            join.close()
        for _ in range(30):
            join = client.open()
            join.reset()
            join.half_close()
            join.take_end()
        for _ in range(30):
            join = client.open()
            join.reset()
            join.cancel()


def test_a_vanished_client_leaves_its_step_running() -> None:
    env = BlockingEnv()
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        join.send_step([1])
        assert env.entered.wait(10)
        join.cancel()
        second = refused(client)
        assert second.status is grpc.StatusCode.FAILED_PRECONDITION
        env.release.set()
        third = client.open()
        third.send_reset()
        assert third.take().WhichOneof("kind") == "reset"
        assert env.steps_taken == 1


def test_a_vanished_client_leaves_its_lanes_running() -> None:
    env = BlockingEnv()
    with serving_raw([env, CountingEnv()]) as client:
        join = client.open()
        join.reset()
        join.send_step([1], lanes=[0])
        assert env.entered.wait(10)
        join.cancel()
        assert refused(client).status is grpc.StatusCode.FAILED_PRECONDITION
        env.release.set()
        client.open().reset()


def test_an_env_is_closed_once_when_the_server_stops() -> None:
    env = CountingEnv()
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        join.close()
        assert env.close_calls == 0
    assert env.close_calls == 1


class GonePeer:
    """A client of whose end the server hears before its stream of answers does."""

    name = "unix:"
    capabilities: frozenset[str] = frozenset()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self.leave = callback

    def is_active(self) -> bool:
        return True


@pytest.mark.parametrize("max_sessions", [1, 2])
@pytest.mark.parametrize("thread", ["any", "own"])
def test_a_stream_may_outlive_its_server(
    thread: Literal["any", "own"], max_sessions: int, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[CountingEnv] = []

    def build() -> CountingEnv:
        built.append(CountingEnv())
        return built[-1]

    server = EnvServer(build, thread=thread, max_sessions=max_sessions, close_timeout=0)
    server.start()
    peer: Any = GonePeer()
    answers: Any = server._join(iter([pb.JoinRequest(reset=pb.ResetRequest())]), peer)
    assert next(answers).HasField("reset")
    peer.leave()
    server.stop()
    assert [env.close_calls for env in built] == [int(max_sessions == 1)]
    answers.close()
    assert [env.close_calls for env in built] == [1]
    assert not [record for record in caplog.records if record.exc_info]


def test_every_kind_is_closed() -> None:
    vector = counting_vector(2)
    with serving_raw(vector):
        pass
    assert vector.closed
    # Gymnasium 1.1 closes them twice, both times within one close().
    assert all(env.unwrapped.close_calls for env in vector.envs)  # type: ignore[attr-defined]
    lanes = [CountingEnv(), CountingEnv()]
    with serving_raw(lanes):
        pass
    assert [env.close_calls for env in lanes] == [1, 1]


def test_a_callable_is_called_by_start() -> None:
    built: list[CountingEnv] = []

    def build() -> CountingEnv:
        built.append(CountingEnv())
        return built[-1]

    server = EnvServer(build)
    assert not built
    with server, raw_client(server.address) as client:
        for _ in range(3):
            join = client.open()
            join.reset()
            join.close()
    assert len(built) == 1
    assert built[0].close_calls == 1
    assert built[0].resets_taken == 3


def test_every_session_has_its_own_env_where_there_may_be_several() -> None:
    built: list[CountingEnv] = []

    def build() -> CountingEnv:
        built.append(CountingEnv(9))
        return built[-1]

    with serving_raw(build, max_sessions=2) as client:
        one = client.open()
        one.reset()  # Answered, so that its env is the first.
        two = client.open()
        two.reset()
        assert refused(client).status is grpc.StatusCode.FAILED_PRECONDITION
        one.step([1])
        assert [env.steps_taken for env in built] == [1, 0]
        one.close()
        one.take_end()
        three = client.open()
        three.reset()
        assert [env.close_calls for env in built] == [1, 0, 0]
        assert len(built) == 3
    assert [env.close_calls for env in built] == [1, 1, 1]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_vanished_clients_own_env_is_closed_after_its_step(lanes: int) -> None:
    built: list[BlockingEnv] = []
    closed = threading.Event()

    class Closing(BlockingEnv):
        def close(self) -> None:
            assert not self.in_step
            closed.set()

    def build() -> Any:
        built.extend(Closing() for _ in range(lanes))
        return built[-lanes:]

    with serving_raw(build, max_sessions=2, overlap=True) as client:
        join = client.open()
        join.reset()
        join.send_step([1], lanes=[0])
        assert built[0].entered.wait(10)
        join.cancel()
        # Another client is served meanwhile, and leaves.
        other = client.open()
        other.reset()
        assert not closed.is_set()
        built[0].release.set()
        assert closed.wait(10)


def test_an_env_that_differs_from_the_first_is_not_served() -> None:
    lengths = iter([CountingEnv(), AllSpacesEnv()])
    with serving_raw(lambda: next(lengths), max_sessions=2) as client:
        client.open().reset()
        second = refused(client)
        assert second.status is grpc.StatusCode.INTERNAL
        assert "differs from the first one" in second.details


def test_a_callable_that_fails() -> None:
    def build() -> Any:
        raise OSError("no display")

    server = EnvServer(build)
    with pytest.raises(OSError, match="no display"):
        server.start()
    with pytest.raises(StateError):
        server.start()

    calls = []

    def build_once() -> CountingEnv:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("no display")
        return CountingEnv()

    with serving_raw(build_once, max_sessions=2) as client:
        client.open().reset()
        second = refused(client)
        assert second.status is grpc.StatusCode.INTERNAL
        assert "no display" in second.details


@pytest.mark.parametrize(
    ("env", "options", "match"),
    [
        (3, {}, "expected a gymnasium.Env, a list of them"),
        ([], {}, "must not be empty"),
        ([CountingEnv(), AllSpacesEnv()], {}, "lane 1: observation_space is"),
        (CountingEnv(), {"max_sessions": 2}, "pass a callable"),
        (CountingEnv(), {"validation": "loud"}, "unknown validation policy 'loud'"),
        (CountingEnv(), {"address": "http://x:1"}, "http"),
    ],
)
def test_what_cannot_be_served(env: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        EnvServer(env, **options)


def test_spaces_without_wire_form_are_refused_at_once() -> None:
    env = CountingEnv()
    env.observation_space = spaces.Sequence(spaces.Discrete(2))
    with pytest.raises(UnsupportedSpaceError):
        EnvServer(env)


def test_metadata_without_wire_form_is_left_out_with_a_warning() -> None:
    env = CountingEnv()
    env.metadata = {"render_modes": [], "maker": object(), "fps": 3}
    with pytest.warns(UserWarning, match=r"metadata\['maker'\] is not sent"):
        server = EnvServer(env)
    with server, raw_client(server.address) as client:
        assert client.contract.metadata["fps"] == 3
        assert "maker" not in client.contract.metadata


def test_the_contract() -> None:
    with serving_raw(counting_vector(1), env_id="Mine-v3") as client:
        # A vector of one lane is announced as what it is, not as a scalar env.
        assert client.contract.env_id == "Mine-v3"
        assert client.contract.num_envs == 1
        assert client.contract.autoreset_mode.value == "NextStep"
        assert "subset_step" not in client.capabilities
        assert client.hello.base.preferred_workflow_edition == "2026.06"
        assert client.hello.base.peer_info.language == "python"
        refusal = client.handshake("rlmesh-wire-v9")
        assert not refusal.base.compatible
        assert not refusal.HasField("env_contract")
        assert refusal.base.supported_workflow_editions == ["2026.06"]
    with serving_raw(CountingEnv()) as client:
        assert client.contract.env_id == "UnknownEnv-v1"
        assert client.contract.metadata["maker"] == "tests"


def test_an_async_vector_env_is_served_with_its_worker_processes() -> None:
    vector = AsyncVectorEnv([CountingEnv, CountingEnv], context="spawn")
    with serving_raw(vector) as client:
        join = client.open()
        join.reset()
        join.step([1, 2])
        assert client.numbers(join.reset(lanes=[1])) == [10.0]
        assert client.numbers(join.step([1, 2])) == [2.0, 11.0]
        join.close()
    assert vector.closed


def test_wrapped_vector_envs_are_served_as_they_are() -> None:
    vector = RecordEpisodeStatistics(counting_vector(2))
    with serving_raw(vector) as client:
        assert client.capabilities["rlmesh_gym.partial_reset"] == "true"
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1, 1])
        (record,) = join.step([1, 1]).completed_episodes
        assert decode_meta_map(record.final_info)["episode"]["l"] == 2


def test_our_own_session_reopens_after_an_error() -> None:
    with EnvServer(CountingEnv()) as server, EnvSession.open(server.address) as session:
        session.reset().result(10)
        request = pb.JoinRequest()
        request.configure.selected_workflow_edition = "?"
        session._connection.stream.send(request, "configure")  # type: ignore[union-attr]
        session._connection.stream.wait_ended(10)  # type: ignore[union-attr]
        assert not session.is_streaming
        session.reset().result(10)


def test_no_threads_are_left_behind() -> None:
    gc.collect()
    for _ in range(3):
        with serving_raw([CountingEnv(), CountingEnv()]) as client:
            join = client.open()
            join.reset()
            join.step([1], lanes=[1])
    ours = [t for t in threading.enumerate() if t.name.startswith("rlmesh_gym")]
    for thread in ours:
        thread.join(10)
    assert not [thread.name for thread in ours if thread.is_alive()]
