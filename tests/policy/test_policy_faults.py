"""Models that die, are slow, raise or answer nonsense: a typed error each, and then on with it."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym._proto.model.v1 import interaction_pb2, service_pb2
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import (
    ClosedError,
    CodecError,
    ConfigurationError,
    DeadlineError,
    ModelError,
    ProtocolError,
    RemoteError,
    UnavailableError,
    UnsupportedCallError,
)
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.policy.adapter import RowGrouping
from rlmesh_gym.rpc import GrpcHost, ModelServiceCallbacks, ModelSession, answer_handshake
from rlmesh_gym.server import (
    EnvServer,
    ModelHandler,
    ModelRouteSetup,
    ModelServer,
    PredictFrames,
    RouteNeeds,
)
from tests.policy.served_models import ACTION_SPACE, OBSERVATION_SPACE, SPACES, TellingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DISCRETE: dict[str, Any] = {
    "single_observation_space": spaces.Box(-1, 1, (1,), np.float32),
    "single_action_space": spaces.Discrete(3),
}
BOX: dict[str, Any] = {
    "single_observation_space": spaces.Box(-1, 1, (1,), np.float32),
    "single_action_space": spaces.Dict({"arm": spaces.Box(-1, 1, (2,), np.float32)}),
}
SIGHT = np.zeros((2, 1), np.float32)


def rows(num_envs: int, t: int, chunk: int = 1) -> Any:
    return np.array([[lane, 0, t, chunk] for lane in range(num_envs)], np.float32)


def check_names(error: RemoteError, policy: RemotePolicy, episodes: bool = True) -> None:
    """The error names endpoint, env and (some of) the episodes."""
    text = str(error)
    assert policy.endpoint in text
    assert policy.env_id in text
    if episodes:
        assert any(each in text for each in policy._episodes._ids)  # type: ignore[attr-defined]
    if isinstance(error, ModelError):
        assert error.env_id == policy.env_id
    assert str(pickle.loads(pickle.dumps(error))) == text


@contextlib.contextmanager
def scripted_endpoint(
    answer: Callable[[interaction_pb2.PredictRequest], list[Any]],
    *,
    refuse_ends: bool = False,
    refuse_batches: bool = False,
) -> Iterator[str]:
    """A model endpoint that resolves everything and answers predicts with these SpaceValues."""

    def join(requests: Any, _: Any) -> Any:
        for request in requests:
            response = interaction_pb2.JoinResponse(request_id=request.request_id)
            kind = request.WhichOneof("kind")
            if kind == "predict" and refuse_batches and len(request.predict.episode_info) > 1:
                response.error.message = "one at a time"
                response.error.code = interaction_pb2.MODEL_ERROR_CODE_INTERNAL
            elif kind == "predict":
                response.predict.actions.extend(answer(request.predict))
                response.predict.SetInParent()
            elif kind == "reset_adapter" and refuse_ends:
                response.error.message = "ends are not for me"
            else:
                getattr(response, kind).SetInParent()
            yield response

    def handshake(request: Any) -> service_pb2.HandshakeResponse:
        return service_pb2.HandshakeResponse(base=answer_handshake(request.base, "model", ()))

    host = GrpcHost(
        ModelServiceCallbacks(handshake, join, lambda request: service_pb2.ShutdownResponse()),
        "127.0.0.1:0",
    )
    try:
        yield host.start()
    finally:
        host.stop(0)


def actions_of(space: gym.Space[Any], *batches: Any) -> list[Any]:
    codec = SpaceCodec(space)
    return [codec.encode(codec.flatten(batch, len(batch)), len(batch)) for batch in batches]


def test_a_model_killed_between_predicts_and_started_again(socket_dir: Path) -> None:
    address = f"unix://{socket_dir}/model.sock"
    server = ModelServer(TellingModel(), address)
    server.start()
    with RemotePolicy(address, **SPACES, num_envs=2) as policy:
        first, _ = policy.predict(rows(2, 0), episode_start=[True, True])
        assert first[:, 2].tolist() == [0, 0]
        server.stop(0)
        with pytest.raises(UnavailableError) as caught:
            policy(rows(2, 1))
        check_names(caught.value, policy)
        with ModelServer(TellingModel(), address):
            assert policy(rows(2, 1))[:, 2].tolist() == [1, 1]


def test_a_model_started_again_while_an_episode_ends(socket_dir: Path) -> None:
    """The end waits until the new server is set up, and no request meets an unknown adapter."""
    address = f"unix://{socket_dir}/model.sock"
    server = ModelServer(TellingModel(), address)
    server.start()
    with RemotePolicy(address, **SPACES, num_envs=2) as policy:
        policy.predict(rows(2, 0), episode_start=[True, True])
        ended = policy._episodes._ids[0]  # type: ignore[attr-defined]
        server.stop(0)
        model = TellingModel()
        with ModelServer(model, address):
            policy.predict(rows(2, 1), episode_start=[True, False])
            policy(rows(2, 2))
            assert model.ended == [ended]


def test_frames_are_replayed_though_the_model_is_gone(socket_dir: Path) -> None:
    address = f"unix://{socket_dir}/model.sock"
    with RemotePolicy_on(address) as (policy, server):
        policy(rows(1, 0, 3))
        server.stop(0)
        assert [policy(rows(1, t, 3))[0, 3] for t in (1, 2)] == [1, 2]
        with pytest.raises(UnavailableError):
            policy(rows(1, 3, 3))


@contextlib.contextmanager
def RemotePolicy_on(address: str) -> Iterator[tuple[RemotePolicy, ModelServer]]:  # noqa: N802
    with (
        ModelServer(TellingModel(), address) as server,
        RemotePolicy(address, **SPACES, execution_horizon=3) as policy,
    ):
        yield policy, server


class GatedModel(TellingModel):
    """Waits in every call until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def predict_chunked(self, observation: Any) -> PredictFrames:
        self.entered.set()
        self.gate.wait()
        return super().predict_chunked(observation)


@pytest.mark.parametrize("horizon", [1, 4])
def test_a_late_answer_is_never_used(horizon: int) -> None:
    model = GatedModel()
    with (
        ModelServer(model) as server,
        RemotePolicy(
            server.address,
            **SPACES,
            num_envs=2,
            execution_horizon=horizon,
            timeouts={"predict": 0.1},
        ) as policy,
    ):
        try:
            with pytest.raises(DeadlineError, match=r"timeouts\.predict") as caught:
                policy.predict(rows(2, 0), episode_start=[True, True])
            check_names(caught.value, policy)
        finally:
            model.gate.set()
        object.__setattr__(policy.lane_policy.adapter.session.timeouts, "predict", 30.0)
        # The answer for t = 0 comes first on the stream; t = 1 is what was asked now.
        assert policy.predict(rows(2, 1))[0][:, 2].tolist() == [1, 1]
        assert [call.observation[0, 2] for call in model.calls] == [0, 1]


class MoodyModel(TellingModel):
    """Raises once, when an observation of lane 1 is at t = 2."""

    has_raised = False

    def predict_chunked(self, observation: Any) -> PredictFrames:
        for row in observation.observation:
            if row[0] == 1 and row[2] == 2 and not self.has_raised:
                self.has_raised = True
                message = "lane 1 upsets me"
                raise ValueError(message)
        return super().predict_chunked(observation)


def test_a_model_that_raises_on_one_lane() -> None:
    """It raises within that call, with the model's text and the input's signature, then works."""
    with (
        ModelServer(MoodyModel()) as server,
        RemotePolicy(server.address, **SPACES, num_envs=3) as policy,
    ):
        policy.predict(rows(3, 0), episode_start=[True] * 3)
        policy(rows(3, 1))
        with pytest.raises(ModelError, match="lane 1 upsets me") as caught:
            policy(rows(3, 2))
        check_names(caught.value, policy)
        assert len(caught.value.episode_ids) == 3
        assert "float32" in str(caught.value)
        assert caught.value.is_recoverable
        assert "ValueError" in caught.value.debug_info
        assert policy(rows(3, 2))[:, 2].tolist() == [2, 2, 2]
        assert policy(rows(3, 3))[:, 2].tolist() == [3, 3, 3]


def test_a_failed_call_takes_no_frame_from_the_lanes_that_replay() -> None:
    with (
        ModelServer(MoodyModel()) as server,
        RemotePolicy(server.address, **SPACES, num_envs=2, execution_horizon=4) as policy,
    ):
        policy.predict(rows(2, 0, 4), episode_start=[True, True])
        policy(rows(2, 1, 4))
        with pytest.raises(ModelError):
            policy.predict(rows(2, 2, 4), episode_start=[False, True])
        actions = policy(rows(2, 2, 4))
        assert actions[:, 2:].tolist() == [[0, 2], [2, 0]]


GOOD = actions_of(DISCRETE["single_action_space"], np.array([1, 2]))
BAD_ANSWERS = {
    "one row": actions_of(DISCRETE["single_action_space"], np.array([1])),
    "three rows": actions_of(DISCRETE["single_action_space"], np.array([1, 1, 1])),
    "no frame": [],
    "outside": actions_of(spaces.Discrete(9), np.array([1, 7])),
    "negative": actions_of(spaces.Discrete(9, start=-4), np.array([-1, 1])),
    "no leaf": [type(GOOD[0])()],
    "two leaves": [type(GOOD[0])(leaves=[b"", b""])],
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_nonsense_is_refused_and_the_next_answer_taken(name: str) -> None:
    answers = [BAD_ANSWERS[name], GOOD]
    with (
        scripted_endpoint(lambda request: answers.pop(0)) as address,
        RemotePolicy(address, **DISCRETE, num_envs=2) as policy,
    ):
        with pytest.raises(ModelError, match="the answer is not valid") as caught:
            policy.predict(SIGHT, episode_start=[True, True])
        assert caught.value.code == "INVALID_RESPONSE"
        assert caught.value.is_recoverable
        check_names(caught.value, policy)
        assert policy.predict(SIGHT)[0].tolist() == [1, 2]


def test_a_late_frame_of_a_chunk_is_checked_too() -> None:
    answer = actions_of(spaces.Discrete(9), np.array([1, 1]), np.array([1, 8]))
    with (
        scripted_endpoint(lambda request: answer) as address,
        RemotePolicy(address, **DISCRETE, num_envs=2, execution_horizon=3) as policy,
        pytest.raises(ModelError, match=r"actions\[1\]: row 1 at action: .*8"),
    ):
        policy.predict(SIGHT, episode_start=[True, True])


def test_nan_is_refused_and_a_box_left_is_told_once() -> None:
    space = BOX["single_action_space"]
    outside = {"arm": np.array([[0.0, 3.0], [0, 0]], np.float32)}
    nan = {"arm": np.array([[0.0, 0.0], [0, np.nan]], np.float32)}
    codec = SpaceCodec(space)
    answers = [codec.encode(codec.flatten(batch, 2), 2) for batch in (nan, outside, outside)]
    with (
        scripted_endpoint(lambda request: [answers.pop(0)]) as address,
        RemotePolicy(address, **BOX, num_envs=2) as policy,
    ):
        with pytest.raises(ModelError, match="nan"):
            policy.predict(SIGHT, episode_start=[True, True])
        with pytest.warns(UserWarning, match=r"leave the action space \(action.arm") as told:
            actions = policy(SIGHT)
        assert [each.filename for each in told] == [__file__]
        assert actions["arm"].tolist() == outside["arm"].tolist()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            policy(SIGHT)


def test_a_released_adapter_and_then_a_resolved_one() -> None:
    with (
        ModelServer(TellingModel()) as server,
        RemotePolicy(server.address, **SPACES) as policy,
    ):
        policy(rows(1, 0))
        with ModelSession.open(server.address) as other:
            other.release_adapter(policy.env_id).result(10)
        with pytest.raises(ModelError, match="no adapter") as caught:
            policy(rows(1, 1))
        assert caught.value.code == "NOT_CONFIGURED"
        check_names(caught.value, policy)
        assert policy(rows(1, 1))[0, 2] == 1


def test_refused_ends_become_a_warning_of_a_later_step() -> None:
    answer = actions_of(DISCRETE["single_action_space"], np.array([1, 1]))
    with (
        scripted_endpoint(lambda request: answer, refuse_ends=True) as address,
        RemotePolicy(address, **DISCRETE, num_envs=2) as policy,
    ):
        policy.predict(SIGHT, episode_start=[True, True])
        with pytest.warns(UserWarning, match="could not forget .*ends are not for me") as told:
            end_lane_one_twice(policy)
        assert {each.filename for each in told} == {__file__}


def end_lane_one_twice(policy: RemotePolicy) -> None:
    for _ in range(2):
        policy.predict(SIGHT, episode_start=[False, True])


class FixedChunk(ModelRouteSetup):
    def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
        return RouteNeeds(native_chunk=4)


class FixedChunkModel(TellingModel):
    def route_setup(self) -> ModelRouteSetup:
        return FixedChunk()


def test_a_horizon_that_the_model_cannot_fill() -> None:
    with ModelServer(FixedChunkModel()) as server:
        with pytest.raises(ModelError) as caught:
            RemotePolicy(server.address, **SPACES, execution_horizon=5)
        assert server.address in str(caught.value)
        with RemotePolicy(server.address, **SPACES, execution_horizon=4) as policy:
            assert policy.lane_policy.adapter.native_chunk == 4


def test_three_ways_of_a_wrong_address(socket_dir: Path) -> None:
    with pytest.raises(UnavailableError, match="nothing listens"):
        RemotePolicy(f"unix://{socket_dir}/nobody.sock", **SPACES)
    env = gym.make("CartPole-v1")
    with EnvServer(env) as server, pytest.raises(ProtocolError, match="env endpoint"):
        RemotePolicy(server.address, **SPACES)
    with pytest.raises(ConfigurationError):
        RemotePolicy("https://nobody:1", **SPACES)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"execution_horizon": 0}, "execution_horizon"),
        ({"replan_interval": 2}, "replan_interval"),
        ({"prefetch": True}, "prefetch"),
        ({"coalesce": -1}, "coalesce"),
        ({"ensemble": "median"}, "median"),
        ({"num_envs": 0}, "num_envs"),
        ({"single_action_space": None}, "single_action_space"),
        ({"single_action_space": spaces.Graph(spaces.Discrete(2), None)}, "Graph"),
    ],
)
def test_options_are_checked_before_anything_is_sent(options: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {**SPACES, **options}
    with pytest.raises((ConfigurationError, CodecError), match=match):
        RemotePolicy("127.0.0.1:9", **arguments)


def test_an_observation_of_another_shape_is_refused_before_sending() -> None:
    model = TellingModel()
    with (
        ModelServer(model) as server,
        RemotePolicy(server.address, **SPACES, num_envs=3) as policy,
    ):
        with pytest.raises(CodecError, match="observation"):
            policy(rows(2, 0))
        with pytest.raises(ConfigurationError, match="episode_start"):
            policy.predict(rows(3, 0), episode_start=[True])
        assert not model.calls
        policy.predict(rows(3, 0))


def test_nothing_works_after_close_but_closing() -> None:
    with ModelServer(TellingModel()) as server:
        policy = RemotePolicy(server.address, **SPACES)
        policy(rows(1, 0))
        policy.close()
        policy.close()
        assert policy.closed
        assert "closed" in repr(policy)
        for call in (lambda: policy(rows(1, 1)), policy.reset):
            with pytest.raises(ClosedError, match="after close"):
                call()


def test_close_is_quick_when_the_model_is_gone(socket_dir: Path) -> None:
    address = f"unix://{socket_dir}/model.sock"
    with RemotePolicy_on(address) as (policy, server):
        policy(rows(1, 0))
        server.stop(0)
        policy.close()


class StatefulModel(ModelHandler):
    """Counts its calls, and raises on the third."""

    def __init__(self) -> None:
        self.calls = 0

    def predict(self, observation: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            message = "third time unlucky"
            raise RuntimeError(message)
        return observation.observation


def test_the_third_call_raises_and_the_fourth_works() -> None:
    with (
        ModelServer(StatefulModel()) as server,
        RemotePolicy(server.address, **SPACES) as policy,
    ):
        for t in range(6):
            if t == 2:
                with pytest.raises(ModelError, match="third time unlucky") as caught:
                    policy(rows(1, t))
                assert "float32" in str(caught.value), "the input's signature"
            else:
                assert policy(rows(1, t))[0, 2] == t


@pytest.mark.parametrize("close", [600.0, 0.2])
def test_close_does_not_wait_for_an_answer_that_was_given_up(close: float) -> None:
    """As after Ctrl-C: the process is to end, and the model hears of it when it is free."""
    model = GatedModel()
    timeouts = {"predict": 0.1, "close": close}
    with ModelServer(model) as server:
        policy = RemotePolicy(server.address, **SPACES, num_envs=2, timeouts=timeouts)
        with pytest.raises(DeadlineError):
            policy.predict(rows(2, 0), episode_start=[True, True])
        episodes = list(policy._episodes._ids)  # type: ignore[attr-defined]
        policy.close()  # Before the gate is set: the model is still at work.
        model.gate.set()
        with RemotePolicy(server.address, **SPACES) as other:
            other(rows(1, 0))
        assert model.ended == [*episodes, *other._episodes._ids]  # type: ignore[attr-defined]
        assert server._service is not None
        assert len(server._service.routes) == 0


def test_close_waits_for_a_chunk_that_is_on_its_way() -> None:
    model = GatedModel()
    model.gate.set()
    with ModelServer(model) as server:
        policy = RemotePolicy(server.address, **SPACES, execution_horizon=4, prefetch=True)
        policy(rows(1, 0, 4))
        model.gate.clear()
        for t in (1, 2):
            policy(rows(1, t, 4))
        assert policy.stats.prefetch_calls == 1
        opener = threading.Timer(0.7, model.gate.set)
        opener.start()
        policy.close()
        assert model.gate.is_set()
        assert server._service is not None
        assert len(server._service.routes) == 0
        opener.join()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"envs": "CartPole-v1"}, "the model's address comes first, then the env"),
        ({"envs": 3}, "without observation_space"),
        ({**SPACES, "num_envs": "2"}, "whole number of at least 1, got '2'"),
        ({**SPACES, "num_envs": 1.5}, "whole number"),
        ({**SPACES, "num_envs": 0}, "whole number of at least 1, got 0"),
    ],
)
def test_what_is_no_env_is_refused_before_anything_is_sent(options: Any, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        RemotePolicy("127.0.0.1:1", **options)


def test_a_policy_is_neither_copied_nor_pickled() -> None:
    with ModelServer(TellingModel()) as server, RemotePolicy(server.address, **SPACES) as policy:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(UnsupportedCallError, match="make one in each process") as caught:
                attempt(policy)
            assert policy.endpoint in str(caught.value)
        policy(rows(1, 0))


def test_rows_asked_for_ahead_that_are_refused_together_are_asked_for_one_by_one() -> None:
    """As on a new connection, where it is not known yet what the model takes."""

    def answer(request: interaction_pb2.PredictRequest) -> list[Any]:
        (seen,) = SpaceCodec(OBSERVATION_SPACE).decode(request.observation, 1)
        return actions_of(ACTION_SPACE, *[seen + np.eye(1, 4, 3) * frame for frame in range(4)])

    def sight(t: int) -> Any:
        return np.array([[lane, 0, t, 0] for lane in range(2)], np.float32)

    with (
        scripted_endpoint(answer, refuse_batches=True) as address,
        RemotePolicy(address, **SPACES, num_envs=2, execution_horizon=4, prefetch=True) as policy,
    ):
        policy.predict(sight(0), episode_start=[True, True])
        policy(sight(1))
        session: Any = policy.lane_policy.adapter.session
        stream = session._connection.stream
        assert stream is not None
        stream._call.cancel()
        assert stream.wait_ended(10)
        for t in range(2, 12):
            actions = policy(sight(t))
            assert (actions[:, 2] + actions[:, 3] == t).all()
        assert policy.stats.prefetch_calls > 0
        assert policy.lane_policy.adapter.grouping is RowGrouping.APART
