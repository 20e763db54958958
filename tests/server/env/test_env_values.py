"""What passes between a client and an env: actions as the space samples them, checks, frames."""

from __future__ import annotations

from inspect import signature
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal
from PIL import Image

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.rpc import assemble
from rlmesh_gym.server.env.lane_vector import LaneVector
from tests.env_wire import Code, RawClient, infos, pb, serving_raw
from tests.fake_envs import (
    ActionTypeEnv,
    AllSpacesEnv,
    BufferReusingEnv,
    CountingEnv,
    DiscreteEnv,
    ImageEnv,
    RangeEnv,
    RenderEnv,
    StubbornEnv,
    counting_vector,
)

WARNING = "rlmesh.conformance.warning"

ACTION_SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.Box(-1, 1, (2, 2), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.MultiBinary(4),
    spaces.MultiDiscrete([3, 4]),
    spaces.Text(5),
    spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Tuple((spaces.Text(3), spaces.Box(0, 1)))}),
]


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, tuple):
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        assert got.flags.writeable
        assert_array_equal(got, expected)
    else:
        assert got == expected


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_an_env_receives_what_its_space_samples(space: spaces.Space[Any]) -> None:
    space.seed(4)
    lanes = [ActionTypeEnv(space), ActionTypeEnv(space)]
    with serving_raw(lanes) as client:
        join = client.open()
        join.reset()
        for subset in ((), (1, 0)):
            actions = [space.sample(), space.sample()]
            join.step(actions, lanes=subset)
            for action, lane in zip(actions, subset or (0, 1), strict=True):
                assert_same(lanes[lane].last_action, action)
        assert lanes[0].last_action is not lanes[1].last_action


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_a_vector_env_receives_the_batch_of_its_action_space(space: spaces.Space[Any]) -> None:
    received: list[Any] = []

    class Noting(LaneVector):
        def step(self, actions: Any) -> Any:
            received.append(actions)
            return super().step(actions)

    space.seed(4)
    vector = Noting([ActionTypeEnv(space), ActionTypeEnv(space)])
    reference = SyncVectorEnv([lambda: ActionTypeEnv(space)] * 2)
    with serving_raw(vector) as client:
        join = client.open()
        join.reset()
        join.step([space.sample(), space.sample()])
        assert_same(received[0], received[0])
        assert reference.action_space.contains(received[0])
    reference.close()


def test_discrete_keeps_the_dtype_of_its_space() -> None:
    if "dtype" not in signature(spaces.Discrete).parameters:
        pytest.skip("this Gymnasium has int64 only")
    env = ActionTypeEnv(spaces.Discrete(4, dtype=np.int32))  # type: ignore[type-var,arg-type,unused-ignore]
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        assert infos(join.step([3])) == {"type": "int32"}


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (np.array([7.0], dtype=np.float64), [7.0]),
        ([7], [7.0]),
        ((7.5,), [7.5]),
        (np.array([[7]]), [7.0]),
        (7, [7.0]),
        (np.array([7], dtype=">f4"), [7.0]),
        (np.arange(4, dtype=np.float32)[3:0:-3], [3.0]),
        (np.array([np.inf]), [np.inf]),
    ],
)
def test_observations_are_cast_to_the_space(observation: Any, expected: list[float]) -> None:
    with serving_raw(StubbornEnv(5, observation=observation)) as client:
        join = client.open()
        join.reset()
        step = join.step([1])
        assert len(step.observation.leaves[0]) == 4
        assert client.numbers(step) == expected


@pytest.mark.parametrize(
    ("info", "flags"),
    [({}, (1, 0)), (None, (1, 0)), ({"TimeLimit.truncated": True}, (0, 1))],
)
def test_results_of_four_parts(info: Any, flags: tuple[int, int]) -> None:
    class Legacy(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, _, _ = super().step(action)
            return observation, reward, terminated, info

    with serving_raw(Legacy(2)) as client:
        join = client.open()
        join.reset()
        assert join.step([1]).terminated_mask == b"\0"
        step = join.step([1])
        assert (step.terminated_mask[0], step.truncated_mask[0]) == flags
        assert step.HasField("infos") == (info is not None)


def test_plain_numbers_are_discrete_observations() -> None:
    with serving_raw([DiscreteEnv(3), DiscreteEnv(3)]) as client:
        join = client.open()
        assert client.numbers(join.reset()) == [0.0, 0.0]
        assert client.numbers(join.step([1, 1])) == [1.0, 1.0]


def test_a_discrete_observation_outside_its_space() -> None:
    env = DiscreteEnv(3)
    env.length = 99
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        for _ in range(3):
            join.step([1])
        error = join.refused(client.step_request([1]))
        assert "value 4 not in range [0, 4)" in error.message
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL


def test_every_space_arrives_as_the_env_gave_it() -> None:
    local = [AllSpacesEnv(composite_action=True) for _ in range(2)]
    with serving_raw([AllSpacesEnv(composite_action=True) for _ in range(2)]) as client:
        space = local[0].action_space
        space.seed(0)
        join = client.open()
        expected = [env.reset(seed=seed)[0] for env, seed in zip(local, (3, 4), strict=True)]
        reply: Any = join.reset(seeds=[3, 4])
        for _ in range(5):
            for row, sample in enumerate(expected):
                got = client.rows(reply, 2)[row]
                assert client.contract.single_observation_space.contains(got)
                assert_array_equal(got["pose"], sample["pose"])
                assert got["pair"][0] == sample["pair"][0]
                assert got["mode"] == sample["mode"]
            actions = [space.sample(), space.sample()]
            results = [env.step(action) for env, action in zip(local, actions, strict=True)]
            expected = [result[0] for result in results]
            reply = join.step(actions)
            assert list(reply.rewards) == [result[1] for result in results]


def test_large_observations_are_complete() -> None:
    with serving_raw([ImageEnv(), ImageEnv()]) as client:
        frames = ImageEnv().frames
        join = client.open()
        request = client.reset_request(seeds=[1], ids=["a", "b"])
        request.request_id = "first"
        reply: Any = join.ask(request)
        assert reply.request_id == "first"
        assert reply.endpoint_total_ns > 0
        reply = reply.reset
        for t in range(6):
            rows = client.rows(reply, 2)
            assert_array_equal(rows[0], frames[t & 3])
            assert_array_equal(rows[1], frames[t & 3])
            assert infos(reply) == {"final_info": [{}, {}], "_final_info": [t == 0] * 2}
            reply = join.step([1, 2])
            assert list(reply.rewards) == [1.0, 1.0]
            assert reply.terminated_mask == b"\0\0"
        reply = join.step([1], lanes=[1])
        assert list(reply.env_indices) == [1]
        assert len(reply.observation.leaves[0]) == 84 * 84 * 4


# Values outside their declared range


def wild() -> dict[str, Any]:
    return {"u": np.array([3, 0], dtype=np.float32), "word": "abcd"}


def out_of_range(client: RawClient) -> pb.JoinRequest:
    return client.step_request([wild()])


def in_range(client: RawClient) -> pb.JoinRequest:
    return client.step_request([{"u": np.zeros(2, dtype=np.float32), "word": "abc"}])


def test_warn_tells_once_per_session_and_path() -> None:
    env = RangeEnv()
    with serving_raw(env) as client:
        for _ in range(2):
            join = client.open()
            env.observation = np.zeros(2)
            join.reset()
            first = infos(join.ask(out_of_range(client)).step)
            assert [(w["kind"], w["path"]) for w in first[WARNING]] == [
                ("action", "$.u"),
                ("action", "$.word"),
            ]
            assert "3.0" in first[WARNING][0]["detail"]
            assert_array_equal(env.last_action["u"], [3, 0])
            assert env.last_action["word"] == "abcd"
            assert infos(join.ask(out_of_range(client)).step) == {}
            env.observation = np.array([0.0, -2.0])
            then = infos(join.ask(in_range(client)).step)
            assert [(w["kind"], w["path"]) for w in then[WARNING]] == [("observation", "$.x")]
            assert infos(join.ask(in_range(client)).step) == {}
            join.close()


def test_warnings_of_several_lanes_stand_in_both_places() -> None:
    lanes = [RangeEnv(), RangeEnv()]
    lanes[1].observation = np.array([5.0, 0.0])
    with serving_raw(lanes) as client:
        join = client.open()
        told = infos(join.reset())
        assert told["final_info"][0] == {}
        assert told["final_info"][1][WARNING] == told[WARNING]
        assert told[WARNING][0]["path"] == "$.x"
        # Every lane that did it at the first time is marked, the summary says it once.
        told = infos(join.ask(client.step_request([wild(), wild()])).step)
        assert [len(lane[WARNING]) for lane in told["final_info"]] == [2, 2]
        assert [warning["path"] for warning in told[WARNING]] == ["$.u", "$.word"]


def test_warnings_of_a_vector_stand_beside_its_infos() -> None:
    vector = LaneVector([RangeEnv(), RangeEnv()])
    vector.envs[1].observation = np.array([5.0, 0.0])  # type: ignore[attr-defined]
    with serving_raw(vector) as client:
        join = client.open()
        assert infos(join.reset())[WARNING][0]["kind"] == "observation"
        assert infos(join.reset()) == {}


def test_an_env_that_uses_the_reserved_key_keeps_it() -> None:
    class Own(RangeEnv):
        def reset(self, **_: Any) -> Any:
            return {"x": np.full(2, 9.0)}, {WARNING: "mine"}

    with serving_raw(Own()) as client:
        assert infos(client.open().reset()) == {WARNING: "mine"}


def test_strict_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLMESH_VALIDATION_POLICY", "strict")
    env = RangeEnv()
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        error = join.refused(out_of_range(client))
        assert error.code == Code.ENV_ERROR_CODE_INVALID_ACTION
        assert error.is_recoverable
        assert error.message.startswith("$.u: ")
        assert env.last_action is None
        env.observation = np.full(2, 1.5)
        error = join.refused(in_range(client))
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL
        assert "$.x" in error.message


def test_off_does_not_look() -> None:
    env = RangeEnv()
    env.observation = np.full(2, 7.0)
    with serving_raw(env, validation="off") as client:
        join = client.open()
        assert infos(join.reset()) == {}
        assert infos(join.ask(out_of_range(client)).step) == {}


@pytest.mark.parametrize("policy", ["warn", "strict", "off"])
def test_nan_actions_are_refused_under_every_policy(policy: str) -> None:
    env = RangeEnv()
    with serving_raw(env, validation=policy) as client:
        join = client.open()
        join.reset()
        action = {"u": np.array([0, np.nan], dtype=np.float32), "word": "a"}
        error = join.refused(client.step_request([action]))
        assert error.code == Code.ENV_ERROR_CODE_INVALID_ACTION
        assert "nan" in error.message
        bad_text = value_pb2.SpaceValue(leaves=[b"\0" * 8, b"\x01"])
        error = join.refused(pb.JoinRequest(step=pb.StepRequest(action=bad_text)))
        assert error.code == Code.ENV_ERROR_CODE_INVALID_ACTION
        assert "$.word" in error.message
        assert env.last_action is None


# Infos and terminal observations of vector envs


def test_terminal_observations_under_same_step() -> None:
    with serving_raw(counting_vector(3, AutoresetMode.SAME_STEP)) as client:
        assert client.capabilities["rlmesh_gym.final_obs"] == "true"
        join = client.open()
        join.reset()
        assert "final_obs" not in infos(join.step([1, 1, 1]))
        told = infos(join.step([1, 1, 1]))
        assert told["final_obs"][1:] == [None, None]
        assert told["_final_obs"] == [True, False, False]
        assert told["final_info"]["t"] == [2, 0, 0]
        assert told["rseed"] == [-1, 0, 0]
        assert told["_rseed"] == [True, False, False]
        value = value_pb2.SpaceValue.FromString(told["final_obs"][0])
        assert client.observations.decode(value, 1)[0].tolist() == [[2.0]]


@pytest.mark.parametrize("own", [True, False], ids=["LaneVector", "SyncVectorEnv"])
def test_terminal_observations_of_lanes_that_reuse_their_buffers(own: bool) -> None:
    vector = (
        LaneVector([BufferReusingEnv(2)], autoreset_mode=AutoresetMode.SAME_STEP)
        if own
        else SyncVectorEnv([lambda: BufferReusingEnv(2)], autoreset_mode=AutoresetMode.SAME_STEP)
    )
    with serving_raw(vector) as client:
        join = client.open()
        join.reset()
        join.step([0])
        done = join.step([0])
        told = infos(done)
        value = value_pb2.SpaceValue.FromString(told["final_obs"][0])
        assert client.observations.decode(value, 1)[0].tolist() == [[2.0]]
        assert told["final_info"]["inner"] == [[2.0, 2.0]]
        assert client.numbers(done) == [10.0]


def test_a_vector_with_dense_terminal_observations() -> None:
    class Dense(LaneVector):
        def step(self, actions: Any) -> Any:
            *rest, told = super().step(actions)
            if "final_obs" in told:
                dense = np.zeros((self.num_envs, 1), dtype=np.float32)
                for lane in np.flatnonzero(told["_final_obs"]):
                    dense[lane] = told["final_obs"][lane]
                told = {"final_obs": dense, "_final_obs": told["_final_obs"]}
            return *rest, told

    vector = Dense([CountingEnv(1), CountingEnv(2)], autoreset_mode=AutoresetMode.SAME_STEP)
    with serving_raw(vector) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        done = join.step([0, 0])
        told = infos(done)
        assert told["final_obs"][1] is None
        value = value_pb2.SpaceValue.FromString(told["final_obs"][0])
        assert client.observations.decode(value, 1)[0].tolist() == [[1.0]]
        assert [record.episode_id for record in done.completed_episodes] == ["a"]


# Frames


def decoded(png: bytes | None) -> Any:
    assert png is not None
    image = Image.open(BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image)


def render(client: RawClient, *lanes: int) -> pb.JoinRequest:
    return pb.JoinRequest(render=pb.RenderRequest(env_indices=lanes))


def test_every_lane_can_be_rendered() -> None:
    kinds: list[Any] = [
        [CountingEnv(5, base=100 * lane, render_mode="rgb_array") for lane in range(3)],
        counting_vector(3, render_mode="rgb_array"),
    ]
    for env in kinds:
        with serving_raw(env) as client:
            join = client.open()
            join.reset()
            for lanes, red in (((), 0), ((0,), 0), ((1,), 100), ((2,), 200)):
                response = join.ask(render(client, *lanes)).render
                assert response.format == pb.RenderFormat.RENDER_FORMAT_PNG
                assert decoded(response.frame)[0, 0].tolist() == [red, 0, 0]


def test_no_frame_without_a_render_mode() -> None:
    for env in (CountingEnv(), [CountingEnv(), CountingEnv()], counting_vector(2)):
        with serving_raw(env) as client:
            response = client.open().ask(render(client)).render
            assert not response.HasField("frame")
            assert response.format == 0


def test_a_frame_that_is_none_costs_that_call() -> None:
    with serving_raw(RenderEnv("a picture")) as client:
        join = client.open()
        join.reset(ids=["a"])
        error = join.refused(render(client))
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL
        assert error.message.startswith("render failed: TypeError")
        assert error.is_recoverable
        assert not error.interrupted_episodes
        join.step([0])


@pytest.mark.parametrize("kind", ["reset", "step"])
@pytest.mark.parametrize("sizes", [(), (0,), (1, 127, 128), (16384, 0, 2_097_152)])
def test_an_answer_put_together_is_the_encoded_one(kind: str, sizes: tuple[int, ...]) -> None:
    leaves = [bytes([size % 251]) * size for size in sizes]
    response = pb.JoinResponse(request_id="r1", endpoint_total_ns=2**60, user_ns=3)
    arm = getattr(response, kind)
    arm.infos.entries["x"].integer = -5
    if kind == "step":
        arm.rewards.extend([1.0, -2.0])
        arm.terminated_mask = b"\0\1"
    expected = pb.JoinResponse()
    expected.CopyFrom(response)
    getattr(expected, kind).observation.leaves.extend(leaves)
    getattr(expected, kind).observation.SetInParent()
    views = [memoryview(leaf) for leaf in leaves]
    assert pb.JoinResponse.FromString(assemble(response, views)) == expected
