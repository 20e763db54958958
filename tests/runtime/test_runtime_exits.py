"""Every way out of a run: one session snapshot, the right last event, the model released."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from rlmesh_gym._proto.model.v1 import interaction_pb2, service_pb2
from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
from rlmesh_gym.errors import (
    CodecError,
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ModelError,
    ProtocolError,
    UnavailableError,
)
from rlmesh_gym.rpc import GrpcHost, ModelServiceCallbacks, answer_handshake
from rlmesh_gym.runtime import (
    Cancellation,
    RuntimeDriver,
    RuntimeHooks,
    RuntimeLimits,
    RuntimeReport,
    RuntimeSessionSpec,
    events,
)
from rlmesh_gym.runtime.ends.policies import SessionPolicy
from rlmesh_gym.server import EnvServer
from tests.fake_envs import BlockingEnv, CountingEnv, FailingEnv
from tests.runtime.runtime_doubles import Witness, env_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLOSE = 1.0
# Nothing here needs nearly as long; a loaded machine may.
SOON = 10.0


@dataclass
class RawModel:
    """A model server in raw messages, whose answers a test may spoil."""

    spoil: Callable[[Any, Any], None] = lambda request, response: None
    kinds: list[str] = field(default_factory=list)
    address: str = ""

    def handshake(self, request: Any) -> Any:
        return service_pb2.HandshakeResponse(base=answer_handshake(request.base, "model"))

    def shutdown(self, request: Any) -> Any:
        return service_pb2.ShutdownResponse()

    def join(self, requests: Any, peer: Any) -> Iterator[Any]:
        for request in requests:
            kind = request.WhichOneof("kind")
            self.kinds.append(kind)
            response = interaction_pb2.JoinResponse(request_id=request.request_id)
            getattr(response, kind).SetInParent()
            if kind == "predict":
                response.predict.context.CopyFrom(request.predict.context)
                rows = len(request.predict.episode_info)
                response.predict.actions.append(SpaceValue(leaves=[bytes(8 * rows)]))
            try:
                self.spoil(request, response)
            except ConnectionResetError:
                return
            yield response


@contextlib.contextmanager
def raw_model(folder: Path, spoil: Callable[[Any, Any], None] | None = None) -> Iterator[RawModel]:
    model = RawModel() if spoil is None else RawModel(spoil)
    host = GrpcHost(
        ModelServiceCallbacks(model.handshake, model.join, model.shutdown),
        f"unix://{folder}/raw-model.sock",
    )
    model.address = host.start()
    try:
        yield model
    finally:
        host.stop(0)


LIMITS = RuntimeLimits(close_timeout=CLOSE, telemetry_window=0.01)


@dataclass
class Exit:
    """One run and all that it left behind."""

    witness: Witness
    report: RuntimeReport
    error: BaseException | None


def leave(
    env: str,
    model: str,
    *,
    hooks: list[RuntimeHooks] | None = None,
    cancellation: Any = None,
    reason: Any = None,
    **options: Any,
) -> Exit:
    """Run to whatever end, and check what all ends have in common."""
    witness = Witness()
    spec = RuntimeSessionSpec(**{"max_episodes": 3, "limits": LIMITS, **options})
    driver = RuntimeDriver(spec, env, model, [*(hooks or []), witness])
    before = set(threading.enumerate())
    error: BaseException | None = None
    report: RuntimeReport
    try:
        report = driver.run(cancellation, reason)
    except BaseException as raised:
        error = raised
        report = raised.report  # type: ignore[attr-defined]
    assert len(witness.session_snapshots) == 1
    assert witness.session_snapshots[0] == report.telemetry
    assert witness.snapshots[-1] is report.telemetry
    terminal = witness.terminal
    assert terminal.report is report
    if error is None:
        assert isinstance(terminal, events.SessionEnded)
        assert report.error is None
    else:
        assert isinstance(terminal, events.SessionFailed)
        assert terminal.error is error
        assert report.stop_reason == "failed"
        assert report.error == f"{type(error).__name__}: {error}"
    assert RuntimeReport.from_dict(report.to_dict()) == report
    left = [thread for thread in threading.enumerate() if thread not in before]
    names = ("rlmesh_gym-telemetry", "rlmesh_gym-cancellation")
    assert not [thread for thread in left if thread.name.startswith(names)]
    for thread in left:  # The servers of the test have threads, too; these belong to the run.
        if thread.name.startswith("rlmesh_gym-reader"):
            thread.join(SOON)
            assert not thread.is_alive()
    return Exit(witness, report, error)


def assert_released(model: RawModel) -> None:
    assert model.kinds.count("release_adapter") == 1
    assert model.kinds[-1] == "release_adapter"


def test_episode_limit(socket_dir: Path) -> None:
    with env_server(socket_dir, [CountingEnv(2)]) as env, raw_model(socket_dir) as model:
        found = leave(env, model.address)
    assert found.error is None
    assert found.report.stop_reason == "max_episodes"
    assert found.report.succeeded
    assert len(found.report.completed_episodes) == 3
    assert_released(model)


@pytest.mark.parametrize("kind", [threading.Event, Cancellation])
def test_cancelled_before_it_starts(socket_dir: Path, kind: type[Any]) -> None:
    cancellation = kind()
    cancellation.set()
    found = leave("127.0.0.1:1", "127.0.0.1:1", cancellation=cancellation)
    # Nothing was tried, or the dead addresses would have been the end of it.
    assert found.error is None
    assert found.report.stop_reason == "cancelled"
    assert not found.report.succeeded
    assert found.report.episodes == ()


@pytest.mark.parametrize("kind", [threading.Event, Cancellation])
def test_cancelled_while_a_step_hangs(socket_dir: Path, kind: type[Any]) -> None:
    env = BlockingEnv()
    cancellation = kind()

    def cancel() -> None:
        env.entered.wait(SOON)
        cancellation.set()

    thread = threading.Thread(target=cancel)
    with env_server(socket_dir, [env]) as address, raw_model(socket_dir) as model:
        thread.start()
        found = leave(address, model.address, cancellation=cancellation, reason="lunch")
        assert env.in_step == 1, "the run waited for the step"
        env.release.set()
        thread.join()
    assert found.error is None
    assert found.report.stop_reason == "cancelled: lunch"
    [cut] = found.report.episodes
    assert cut.interrupted
    assert cut.length == 0
    assert_released(model)


def test_cancelled_while_a_prediction_hangs(socket_dir: Path) -> None:
    entered, release = threading.Event(), threading.Event()
    cancellation = Cancellation()

    def hang(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            entered.set()
            release.wait()

    def cancel() -> None:
        entered.wait(SOON)
        cancellation.cancel("enough")

    thread = threading.Thread(target=cancel)
    with env_server(socket_dir, [CountingEnv()]) as address, raw_model(socket_dir, hang) as model:
        thread.start()
        found = leave(address, model.address, cancellation=cancellation)
        # The release waits behind the hanging prediction, but not for ever.
        assert model.kinds[-1] == "predict"
        release.set()
        thread.join()
    assert found.report.stop_reason == "cancelled: enough"


def test_cancelled_between_calls_with_a_reason_asked_for_afterwards(socket_dir: Path) -> None:
    cancellation = Cancellation()

    class Stop(RuntimeHooks):
        def episode_completed(self, event: events.EpisodeCompleted) -> None:
            cancellation.cancel("this one")
            cancellation.cancel("not this one")

    with env_server(socket_dir, [CountingEnv(2)]) as env, raw_model(socket_dir) as model:
        asked = leave(
            env,
            model.address,
            hooks=[Stop()],
            cancellation=cancellation,
            reason=lambda: f"after {cancellation.reason}",
        )
    assert asked.report.stop_reason == "cancelled: after this one"
    assert [episode.interrupted for episode in asked.report.episodes] == [False]
    assert_released(model)


@pytest.mark.parametrize("at", [0, 2])
def test_env_error(socket_dir: Path, at: int) -> None:
    with env_server(socket_dir, [FailingEnv(at=at)]) as env, raw_model(socket_dir) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, EnvError)
    assert "the gripper is stuck" in str(found.error)
    assert len(found.report.episodes) == (at > 0)
    assert_released(model)
    again = pickle.loads(pickle.dumps(found.error))
    assert again.report == found.report


def test_model_error(socket_dir: Path) -> None:
    def fail(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            response.error.code = interaction_pb2.MODEL_ERROR_CODE_INTERNAL
            response.error.message = "out of ideas"

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, fail) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, ModelError)
    assert "out of ideas" in str(found.error)
    assert found.report.telemetry.row("model.predict", "rpc.total") is None  # No operation.
    assert_released(model)


def test_refused_when_it_is_set_up(socket_dir: Path) -> None:
    def fail(request: Any, response: Any) -> None:
        if request.HasField("resolve_adapter"):
            response.error.message = "wrong robot"

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, fail) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, ModelError)
    assert not found.witness.of(events.SessionStarted)
    assert_released(model)


@pytest.mark.parametrize("field_name", ["env_id", "session_id", "request_id"])
def test_mismatched_context(socket_dir: Path, field_name: str) -> None:
    def twist(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            setattr(response.predict.context, field_name, "somebody else's")

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, twist) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, ProtocolError)
    assert "somebody else's" in str(found.error)
    assert "mirror" in str(found.error)
    assert_released(model)


def test_no_action_frames(socket_dir: Path) -> None:
    def empty(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            del response.predict.actions[:]

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, empty) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, ModelError)
    assert found.error.code == "INVALID_RESPONSE"
    assert "at least one" in str(found.error)
    assert_released(model)


def test_action_frames_of_the_wrong_size(socket_dir: Path) -> None:
    def grow(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            response.predict.actions[0].leaves[0] += b"\0"

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, grow) as model:
        found = leave(env, model.address)
    assert isinstance(found.error, ModelError)
    assert found.error.code == "INVALID_RESPONSE"
    assert "expected 8 bytes" in str(found.error)
    assert_released(model)


class BadTransform(RuntimeHooks):
    def __init__(self, what: str) -> None:
        self.what = what

    def transform_observation(self, event: events.ObservationTransform) -> Any:
        if self.what == "observation":
            raise ZeroDivisionError("in the observation")
        return None

    def transform_action(self, event: events.ActionTransform) -> Any:
        if self.what == "action":
            raise ZeroDivisionError("in the action")
        return "no actions at all" if self.what == "value" else None


@pytest.mark.parametrize("what", ["observation", "action"])
def test_failed_transform(socket_dir: Path, what: str) -> None:
    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir) as model:
        found = leave(env, model.address, hooks=[BadTransform(what)])
    assert isinstance(found.error, ZeroDivisionError)
    assert str(found.error) == f"in the {what}"
    assert_released(model)


def test_transform_to_what_is_no_action(socket_dir: Path) -> None:
    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir) as model:
        found = leave(env, model.address, hooks=[BadTransform("value")])
    assert isinstance(found.error, CodecError)
    assert_released(model)


def test_step_timeout(socket_dir: Path) -> None:
    env = BlockingEnv()
    limits = RuntimeLimits(env_step_timeout=0.1, close_timeout=CLOSE, telemetry_window=0.01)
    reasons: list[str] = []

    def listen(request: Any, response: Any) -> None:
        if request.HasField("release_adapter"):
            reasons.append(request.release_adapter.reason)

    with env_server(socket_dir, [env]) as address, raw_model(socket_dir, listen) as model:
        found = leave(address, model.address, limits=limits)
        assert env.in_step == 1, "the run waited for the step"
        env.release.set()
    assert isinstance(found.error, DeadlineError)
    assert "limits.env_step_timeout" in str(found.error)
    # Who was late, with what, and for whom; the model hears of it too.
    [cut] = found.report.episodes
    place = f"(at step 0, lanes [0], episodes {cut.episode_id})"
    for part in (found.error.endpoint, "step: no answer within", place):
        assert part in str(found.error)
        assert part in reasons[0]
    # A call that failed is no operation.
    assert found.report.telemetry.row("env.step", "rpc.total") is None
    windows = [snapshot for snapshot in found.witness.snapshots if snapshot.horizon == "window"]
    # Windows went on while the call hung, and said so.
    assert any(window.pending and window.pending[0] == "env.step" for window in windows)
    assert_released(model)


def test_predict_timeout(socket_dir: Path) -> None:
    release = threading.Event()

    def hang(request: Any, response: Any) -> None:
        if request.HasField("predict"):
            release.wait()

    limits = RuntimeLimits(model_predict_timeout=0.1, close_timeout=CLOSE)
    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, hang) as model:
        found = leave(env, model.address, limits=limits)
        assert model.kinds[-1] == "predict", "the run waited for the model"
        release.set()
    assert isinstance(found.error, DeadlineError)
    assert "limits.model_predict_timeout" in str(found.error)
    [cut] = found.report.episodes
    assert str(found.error).endswith(f"(at step 0, lanes [0], episodes {cut.episode_id})")


def test_nobody_at_the_env(socket_dir: Path) -> None:
    with raw_model(socket_dir) as model:
        found = leave(f"unix://{socket_dir}/nobody.sock", model.address)
    assert isinstance(found.error, UnavailableError)
    assert model.kinds == []
    assert not found.witness.of(events.EnvConnected)


def test_nobody_at_the_model(socket_dir: Path) -> None:
    with env_server(socket_dir, [CountingEnv()]) as env:
        found = leave(env, f"unix://{socket_dir}/nobody.sock")
        assert isinstance(found.error, UnavailableError)
        assert len(found.witness.of(events.EnvConnected)) == 1
        # The env's only session is free again.
        with raw_model(socket_dir) as model:
            assert leave(env, model.address).error is None


def test_the_model_goes_away(socket_dir: Path) -> None:
    with (
        env_server(socket_dir, [CountingEnv(10**6)]) as env,
        raw_model(socket_dir) as model,
    ):

        def vanish(request: Any, response: Any) -> None:
            if request.HasField("predict") and len(model.kinds) > 5:
                raise ConnectionResetError

        model.spoil = vanish
        found = leave(env, model.address)
    assert isinstance(found.error, Error)
    assert found.report.total_steps >= 3


def test_a_wrong_spec_sends_nothing() -> None:
    found = leave("127.0.0.1:1", "127.0.0.1:1", max_steps=-1)
    assert isinstance(found.error, ConfigurationError)


def test_what_is_no_spec_or_no_cancellation_is_an_error_of_its_own() -> None:
    limits: Any = 5
    found = leave("127.0.0.1:1", "127.0.0.1:1", limits=limits)
    assert isinstance(found.error, ConfigurationError)
    driver = RuntimeDriver(RuntimeSessionSpec(max_episodes=1), "127.0.0.1:1", "127.0.0.1:1")
    wrong: Any = True
    with pytest.raises(ConfigurationError, match="cancellation must be"):
        driver.run(wrong)


def test_keyboard_interrupt_comes_through(socket_dir: Path) -> None:
    class Interrupt(RuntimeHooks):
        def step_completed(self, event: events.StepCompleted) -> None:
            raise KeyboardInterrupt

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir) as model:
        found = leave(env, model.address, hooks=[Interrupt()])
    assert isinstance(found.error, KeyboardInterrupt)
    assert [episode.interrupted for episode in found.report.episodes] == [True]
    assert_released(model)


def test_an_error_of_letting_go_never_hides_the_first_one(socket_dir: Path) -> None:
    def fail(request: Any, response: Any) -> None:
        kind = request.WhichOneof("kind")
        if kind in {"predict", "release_adapter"}:
            response.error.message = f"{kind} failed"

    with env_server(socket_dir, [CountingEnv()]) as env, raw_model(socket_dir, fail) as model:
        found = leave(env, model.address)
    assert "predict failed" in str(found.error)
    [log] = found.witness.of(events.LogEvent)
    assert "release_adapter failed" in log.message


def test_an_error_of_letting_go_does_not_spoil_a_good_run(socket_dir: Path) -> None:
    def fail(request: Any, response: Any) -> None:
        if request.HasField("release_adapter"):
            response.error.message = "never"

    with env_server(socket_dir, [CountingEnv(2)]) as env, raw_model(socket_dir, fail) as model:
        found = leave(env, model.address)
    assert found.report.stop_reason == "max_episodes"


def test_a_failed_eviction_ends_no_run(socket_dir: Path) -> None:
    evicted: list[list[str]] = []

    def fail(request: Any, response: Any) -> None:
        if request.HasField("reset_adapter"):
            evicted.append(list(request.reset_adapter.episode_ids))
            response.error.message = "cannot forget"

    with (
        env_server(socket_dir, [CountingEnv(2)]) as env,
        raw_model(socket_dir, fail) as model,
        pytest.warns(UserWarning, match="said once.*cannot forget") as told,
    ):
        found = leave(env, model.address, max_episodes=50)
    assert found.error is None
    assert len(found.report.completed_episodes) == 50
    assert len(told) == 1
    assert sum("cannot forget" in log.message for log in found.witness.of(events.LogEvent)) == 1
    # What was refused goes out again with a later end.
    assert len(evicted) == 50
    assert evicted[0] == [found.report.episodes[0].episode_id]
    assert set(evicted[0]) <= set(evicted[-1])
    assert_released(model)


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["episode_completed", "on_telemetry", "session_failed"])
def test_a_hook_that_exits_while_the_run_ends(
    socket_dir: Path, name: str, leaving: type[BaseException]
) -> None:
    def leave_at(self: RuntimeHooks, event: Any) -> None:
        if getattr(event, "horizon", "session") == "session":
            raise leaving(name)

    def fail(request: Any, response: Any) -> None:
        if name == "session_failed" and request.HasField("predict"):
            response.error.message = "the first error"

    hooks: RuntimeHooks = type("Leaving", (RuntimeHooks,), {name: leave_at})()
    with env_server(socket_dir, [CountingEnv(2)]) as env, raw_model(socket_dir, fail) as model:
        found = leave(env, model.address, hooks=[hooks])
        # Both ends are free for the next one.
        assert leave(env, model.address, max_episodes=0).error is None
    assert isinstance(found.error, ModelError if name == "session_failed" else leaving)
    assert model.kinds.count("release_adapter") == 2


def test_an_interrupt_while_the_model_is_released_leaves_nothing_open(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(self: SessionPolicy, reason: str, timeout: float) -> None:
        raise KeyboardInterrupt

    witness = Witness()
    with env_server(socket_dir, [CountingEnv(2)]) as env, raw_model(socket_dir) as model:
        spec = RuntimeSessionSpec(max_episodes=3, limits=LIMITS)
        with monkeypatch.context() as patch:
            patch.setattr(SessionPolicy, "release", impatient)
            driver = RuntimeDriver(spec, env, model.address, witness)
            with pytest.raises(KeyboardInterrupt) as raised:
                driver.run()
        assert leave(env, model.address, max_episodes=0).error is None
    report = raised.value.report  # type: ignore[attr-defined]
    assert len(report.completed_episodes) == 3
    assert len(witness.session_snapshots) == 1
    assert isinstance(witness.terminal, events.SessionFailed)


@pytest.mark.parametrize("kind", [threading.Event, Cancellation])
def test_cancelled_while_connecting_hangs(socket_dir: Path, kind: type[Any]) -> None:
    cancellation = kind()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{socket_dir}/silent.sock")
        silent.listen()

        def cancel() -> None:
            silent.accept()[0].close()
            cancellation.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        found = leave(f"unix://{socket_dir}/silent.sock", "127.0.0.1:1", cancellation=cancellation)
        thread.join()
    assert found.error is None
    assert found.report.stop_reason == "cancelled"


def test_an_env_lost_between_requests_is_a_lost_env(socket_dir: Path) -> None:
    server = EnvServer([CountingEnv(5)], f"unix://{socket_dir}/lost.sock")
    server.start()

    class Lose(RuntimeHooks):
        def step_completed(self, event: events.StepCompleted) -> None:
            [reader] = [t for t in threading.enumerate() if t.name.endswith(server.address)]
            server.stop()
            reader.join(SOON)  # Until this side has heard of it.

    with raw_model(socket_dir) as model:
        found = leave(server.address, model.address, hooks=[Lose()])
    assert isinstance(found.error, UnavailableError)
    assert "reset()" not in str(found.error)
    assert_released(model)
