"""The core of a model server: what a handler may return, and how its errors are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

import rlmesh_gym as rg
from rlmesh_gym._proto.model.v1 import interaction_pb2 as pb
from rlmesh_gym.codec import EnvSpec, LeavesValue, SpaceCodec
from rlmesh_gym.errors import CodecError, ConfigurationError, ModelError
from rlmesh_gym.model import CallableHandler, HistoryNeeds, ModelRoute, as_handler, predict_frames
from rlmesh_gym.rpc import HistoryRows
from rlmesh_gym.server.model.actions import detached, read_batch
from rlmesh_gym.server.model.answers import check_needs, make_observation, read_frames
from rlmesh_gym.server.model.client import Client
from rlmesh_gym.server.model.routes import Route
from tests.model_client import (
    EchoHandler,
    connected,
    exchange,
    predict_request,
    request_of,
    resolve_request,
    service_of,
    serving,
)

if TYPE_CHECKING:
    from pathlib import Path

PAIR = spaces.Tuple((spaces.Discrete(4), spaces.Discrete(4)))
NAMED = spaces.Dict(move=spaces.Discrete(4), aim=spaces.Box(-1, 1, (2,), np.float64))
BOX = spaces.Box(-9, 9, (3,), np.float32)


def _read(space: spaces.Space[Any], batch: Any, rows: int = 2) -> Any:
    codec = SpaceCodec(space, "action")
    return [leaf.tolist() for leaf in read_batch(codec, batch, rows)]


@pytest.mark.parametrize(
    ("space", "batch", "leaves"),
    [
        pytest.param(PAIR, [(1, 0), (3, 2)], [[1, 3], [0, 2]], id="tuples"),
        pytest.param(PAIR, ([1, 3], [0, 2]), [[1, 3], [0, 2]], id="vector form"),
        pytest.param(PAIR, ((1, 3), (0, 2)), [[1, 3], [0, 2]], id="a tuple is the vector form"),
        pytest.param(PAIR, [[1, 2], [2, 1]], [[1, 2], [2, 1]], id="the same either way"),
        pytest.param(
            NAMED,
            [{"move": 1, "aim": [0, 1]}, {"move": 2, "aim": np.ones(2)}],
            [[1, 2], [[0, 1], [1, 1]]],
            id="dicts",
        ),
        pytest.param(
            spaces.Dict(a=PAIR), {"a": [(1, 0), (3, 2)]}, [[1, 3], [0, 2]], id="in a dict"
        ),
        pytest.param(
            spaces.Tuple((PAIR, spaces.Discrete(4))),
            ([(1, 0), (3, 2)], [1, 1]),
            [[1, 3], [0, 2], [1, 1]],
            id="in a tuple",
        ),
        pytest.param(
            spaces.Tuple((spaces.Text(3), spaces.Discrete(4))),
            [("a", 1), ("b", 2)],
            [["a", "b"], [1, 2]],
            id="text",
        ),
    ],
)
def test_actions_row_by_row(space: Any, batch: Any, leaves: Any) -> None:
    assert _read(space, batch) == leaves


def test_three_rows_of_a_pair_can_only_be_rows_and_two_lists_of_three_members() -> None:
    assert _read(PAIR, [[1, 0], [3, 2], [2, 2]], 3) == [[1, 3, 2], [0, 2, 2]]
    assert _read(PAIR, [np.array([1, 3, 2]), np.array([0, 2, 2])], 3) == [[1, 3, 2], [0, 2, 2]]


@pytest.mark.parametrize(
    ("space", "batch", "says"),
    [
        pytest.param(PAIR, [[1, 0], [3, 2]], ["one value per row", "[(1, 0), (3, 2)]"], id="both"),
        pytest.param(PAIR, [(1, 0)], ["[(1, 0), (3, 2)]"], id="too few"),
        pytest.param(NAMED, [{"move": 1}], ["'aim'"], id="missing key"),
        pytest.param(BOX, None, ["None", "return the batch"], id="None"),
        pytest.param(BOX, (row for row in [1]), ["generator", "instead of yielding"], id="yield"),
        pytest.param(BOX, {"actions": np.zeros((2, 3))}, ["result['actions']"], id="dict"),
        pytest.param(
            NAMED, {"actions": {"move": [1, 1]}}, ["under 'actions'"], id="a dict in a dict"
        ),
        pytest.param(BOX, np.zeros((2, 5, 3)), ["PredictFrames(chunk[:, 0]"], id="chunk"),
        pytest.param(
            spaces.Discrete(4), np.zeros((2, 5), int), ["PredictFrames(chunk[:, 0]"], id="numbers"
        ),
        pytest.param(BOX, rg.PredictFrames(np.zeros((2, 3))), ["plain batches"], id="frames"),
    ],
)
def test_what_is_no_batch_says_what_to_write(space: Any, batch: Any, says: list[str]) -> None:
    with pytest.raises(CodecError) as caught:
        _read(space, batch)
    for part in says:
        assert part in str(caught.value)


def test_a_coroutine_is_refused_without_a_warning_of_python() -> None:
    async def act() -> None:
        await asyncio.sleep(0)

    with pytest.raises(CodecError, match="the model returned a coroutine; write a plain def"):
        _read(BOX, act())


class BFloat16:
    """As a torch tensor of bfloat16: numpy cannot read it before it is widened."""

    dtype = "torch.bfloat16"

    def __init__(self, values: Any) -> None:
        self.values = values

    def float(self) -> Any:
        return np.asarray(self.values, np.float32)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_bfloat16_is_taken_as_float32() -> None:
    rows = [[1.5, 2, 3], [4, 5, 6.25]]
    assert _read(BOX, BFloat16(rows)) == [rows]
    assert _read(BOX, [BFloat16(row) for row in rows]) == [rows]
    assert _read(spaces.Dict(a=BOX), {"a": BFloat16(rows)}) == [rows]
    copy = detached(rg.PredictFrames(BFloat16(rows), [BFloat16(rows)]))
    assert copy.actions.tolist() == copy.replay[0].tolist() == rows
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert _read(BOX, np.asarray(rows).astype(ml_dtypes.bfloat16)) == [rows]


async def _act(observation: Any) -> Any:
    return observation


async def _stream(observation: Any) -> Any:
    yield observation


def _generate(observation: Any) -> Any:
    yield observation


class _AsyncCall:
    async def __call__(self, observation: Any) -> Any:
        return observation


class _AsyncHandler(rg.ModelHandler):
    async def predict(self, observation: Any) -> Any:
        return observation


@pytest.mark.parametrize("model", [_act, _stream, _generate, _AsyncCall(), _AsyncHandler()])
def test_what_returns_no_actions_is_refused_at_once(model: Any) -> None:
    with pytest.raises(ConfigurationError, match="returns no actions when it is called"):
        as_handler(model)
    with pytest.raises(ConfigurationError, match=r"write a plain def|instead of yielding"):
        rg.ModelServer(model)


def test_an_array_of_predict_chunked_says_what_to_write() -> None:
    class Raw(rg.ModelHandler):
        def predict_chunked(self, observation: Any) -> Any:
            return np.zeros((1, 4, 3))

    observation = rg.ModelObservation("env", None, ("a",), execution_horizon=4)
    with pytest.raises(TypeError, match=r"returned ndarray, .* PredictFrames\(chunk\[:, 0\]"):
        predict_frames(Raw(), observation)


class Picky(EchoHandler):
    """Raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def predict(self, observation: rg.ModelObservation) -> Any:
        raise self.error

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        raise self.error


@pytest.mark.parametrize("recoverable", [True, False])
def test_a_handler_chooses_code_and_finality(recoverable: bool) -> None:
    error = ModelError("no more fuel", code="BUSY", is_recoverable=recoverable)
    requests = (predict_request({"a": 1}), request_of("reset_adapter", episode_ids=["a"]))
    with service_of(Picky(error)) as service:
        for request in requests:
            _, answer = exchange(service, resolve_request(), request)
            assert answer.error.code == pb.MODEL_ERROR_CODE_BUSY
            assert answer.error.is_recoverable is recoverable
            assert "failed: no more fuel" in answer.error.message
            assert "a" in answer.error.message
            assert "Traceback" in answer.error.debug_info


def test_a_code_that_does_not_exist_is_internal() -> None:
    with service_of(Picky(ModelError("broken", code="BANANA", is_recoverable=True))) as service:
        _, answer = exchange(service, resolve_request(), predict_request({"a": 1}))
    assert answer.error.code == pb.MODEL_ERROR_CODE_INTERNAL
    assert "unknown code 'BANANA'" in answer.error.message


def test_a_chosen_error_reaches_the_client(socket_dir: Path) -> None:
    error = ModelError("licence over", code="CLOSED", is_recoverable=False)
    with serving(Picky(error), socket_dir) as server, connected(server) as client:
        client.resolve()
        with pytest.raises(ModelError, match="licence over") as caught:
            client.predict({"a": 1})
    assert (caught.value.code, caught.value.is_recoverable) == ("CLOSED", False)


def test_the_release_tells_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rlmesh_gym.server")
    with service_of(EchoHandler()) as service:
        exchange(
            service,
            resolve_request(),
            request_of("release_adapter", reason="env step took longer than 3 s"),
        )
        assert "env 'env' is released: env step took longer than 3 s" in caplog.text
        exchange(service, resolve_request(), request_of("close", reason="the run is over"))
    assert "env 'env' is released: the run is over" in caplog.text


def _route(needs: rg.RouteNeeds, options: rg.ResolveOptions) -> Route:
    contract = EnvSpec("Test-v0", spaces.Box(-9, 9, (2,), np.float64), PAIR, {})
    route = ModelRoute("env", contract, options, check_needs(needs, options, "env"))
    return Route(route, owner="run", client=Client())


def test_the_core_serves_a_run_without_a_wire() -> None:
    options = rg.ResolveOptions(execution_horizon=2, delivers_history=True)
    route = _route(rg.RouteNeeds(native_chunk=3, history=HistoryNeeds()), options)
    handler = CallableHandler(lambda rows: rg.PredictFrames([(1, 2)] * len(rows), [[(3, 0)]] * 3))
    frame = HistoryRows(0, LeavesValue([np.zeros((1, 2))]), [("a", 7)])
    rows, episodes = LeavesValue([np.ones((1, 2))]), [("a", 7)]
    observation = make_observation(route, rows, episodes, history=[frame], step=1, staged={})
    frames = read_frames(route, observation, predict_frames(handler, observation))
    assert [[leaf.tolist() for leaf in leaves] for leaves in frames] == [[[1], [2]], [[3], [0]]]
    route.deliver(observation)
    with pytest.raises(ModelError, match="step 1 came after step 1, expected 2") as caught:
        make_observation(route, rows, episodes, step=1)
    assert caught.value.code == "INVALID_REQUEST"
    route.forget(["a"])
    assert make_observation(route, rows, episodes, step=1).num_envs == 1
    for leaves, ids, says in (
        ([np.ones((2, 2))], ["a"], "1 rows do not fit"),
        ([np.ones((2, 2))], ["a", "a"], "more than one row"),
        ([np.full((1, 2), np.nan)], ["a"], "nan"),
    ):
        with pytest.raises(ModelError, match=says):
            make_observation(route, LeavesValue(leaves), [(name, None) for name in ids], step=2)
