from __future__ import annotations

import tracemalloc
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
from rlmesh_gym.codec import SpaceCodec, add_info, encode_meta_map, join_infos
from rlmesh_gym.codec.lane_infos import decode_final_obs
from rlmesh_gym.env import ConformanceWarning, RemoteVectorEnv
from rlmesh_gym.env.drive.endpoint import StepReply
from rlmesh_gym.env.reading.infos import (
    BatchedInfos,
    ConformanceLog,
    LaneInfos,
    read_infos,
    vector_infos,
)
from rlmesh_gym.errors import CodecError
from rlmesh_gym.server import EnvServer
from tests.env.comparison import equal
from tests.env.local_session import batched
from tests.fake_envs import InfoVarietyEnv


def joined(*infos: dict[str, Any]) -> dict[str, Any]:
    return join_infos(enumerate(infos), len(infos))


def read(infos: dict[str, Any], rows: int, **options: Any) -> Any:
    options.setdefault("conformance", ConformanceLog("here"))
    return read_infos(encode_meta_map(infos), rows, **options)


PLAIN = {"a": 1, "b": 2.5, "c": True, "text": "x", "none": None, "vector": [1.0, 2.0]}


def test_lane_form_of_several_rows() -> None:
    infos = read(
        {"final_info": [{"a": 1}, {"b": "x"}], "_final_info": [True, False]}, 2, per_lane=True
    )
    assert isinstance(infos, LaneInfos)
    assert infos.row(0) == {"a": 1}
    assert infos.row(1) == {"b": "x"}


def test_lane_form_of_one_row_is_bare() -> None:
    infos = read({"final_info": "own", "a": 1}, 1, per_lane=True)
    assert infos.row(0) == {"final_info": "own", "a": 1}


def test_lane_endpoints_may_send_the_batched_form() -> None:
    infos = read({"a": [1, 2], "_a": [True, False]}, 2, per_lane=True)
    assert isinstance(infos, BatchedInfos)
    assert infos.row(1) == {}


@pytest.mark.parametrize(
    "lanes",
    [
        [PLAIN, PLAIN],
        [PLAIN, {}],
        [{}, {"nested": {"deep": {"value": 1}, "other": 2.5}}],
        [{"a": 1}, {"b": np.arange(3)}, {"c": {"d": np.eye(2)}}],
        [{"_x": 1}, {"_x": 2}],
        [{"episode": {"r": 1.0, "l": 2}}, {}],
        [{"final_info": 3}, {"final_info": 4}],
        [{"flag": False}, {"flag": True}],
        [{"word": "x"}, {"word": "y"}, {"word": None}],
    ],
    ids=range(9),
)
def test_both_shapes_give_gymnasiums_form(lanes: list[dict[str, Any]]) -> None:
    count = len(lanes)
    # What SyncVectorEnv would build if arrays had crossed the wire as arrays.
    arrays = [{k: np.array(v) if isinstance(v, list) else v for k, v in i.items()} for i in lanes]
    expected = joined(*arrays)
    as_lanes = read({"final_info": lanes, "_final_info": [True] * count}, count, per_lane=True)
    assert equal(joined(*[as_lanes.row(row) for row in range(count)]), expected)
    as_batch = read(batched(arrays), count, per_lane=False)
    assert equal(as_batch.arrays(), expected)
    assert equal(joined(*[as_batch.row(row) for row in range(count)]), expected)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1, "x", [1, "x"]),
        (2.5, {"a": 1}, [2.5, {"a": 1}]),
        ({"a": 1}, 2, [{"a": 1}, 2]),
        ({"a": [1.0, 2.0]}, None, [{"a": [1.0, 2.0]}, None]),
        (1, [1, 2], [1, [1, 2]]),
        ([1, 2], [1, 2, 3], [[1, 2], [1, 2, 3]]),
        ("x", {"a": 1}, ["x", {"a": 1}]),
    ],
)
def test_a_value_that_does_not_fit_makes_an_object_array(
    first: Any, second: Any, expected: list[Any]
) -> None:
    as_lanes = read(
        {"final_info": [{"k": first}, {"k": second}], "_final_info": [True, True]},
        2,
        per_lane=True,
    )
    infos = joined(as_lanes.row(0), as_lanes.row(1))
    assert infos["k"].dtype == object
    assert infos["_k"].tolist() == [True, True]
    got = [_as_lists(value) for value in infos["k"]]
    assert got == expected


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("mine", ["text", 7, [1, 2], {"deep": 1}, np.eye(2), None, np.arange(2)])
@pytest.mark.parametrize("own_key_first", [True, False])
def test_a_key_where_the_mask_of_another_belongs(mine: Any, own_key_first: bool) -> None:
    info = {"_x": mine, "x": 1} if own_key_first else {"x": 1, "_x": mine}
    served: dict[str, Any] = {}
    for lane in (1, 2):
        add_info(served, info, lane, 3)
    for infos in (joined({}, info, info), served):
        assert infos["x"][1:].tolist() == [1, 1]
        assert len(infos["_x"]) == 3


@pytest.mark.parametrize("value", [1, "text", [1], [None, {}], [{"a": 1}, 3]])
def test_terminal_infos_that_are_no_dicts(value: Any) -> None:
    infos = read({"final_info": value, "_final_info": 3}, 2, per_lane=False)
    reply = StepReply(
        SpaceValue(),
        np.zeros(2),
        np.ones(2, bool),
        np.zeros(2, bool),
        np.zeros(2, bool),
        [0, 1],
        infos,
    )
    assert reply.final_info(1) == {}


def test_the_first_value_chooses_the_dtype_as_in_gymnasium() -> None:
    assert joined({"k": 1}, {"k": 2.7})["k"].tolist() == [1, 2]


def test_values_that_are_not_per_lane() -> None:
    infos = read({"fps": 30, "names": ["a", "b", "c"], "x": [1, 2]}, 2, per_lane=False)
    arrays = infos.arrays()
    assert arrays["fps"].tolist() == [30, 30]
    assert arrays["names"].tolist() == [["a", "b", "c"]] * 2
    assert arrays["x"].tolist() == [1, 2]
    assert arrays["_x"].tolist() == [True, True]
    assert infos.row(1) == {"fps": 30, "names": ["a", "b", "c"], "x": 2}


SPACE = gym.spaces.Dict({"z": gym.spaces.Box(0, 1, (2,), np.float32), "a": gym.spaces.Text(5)})


LANES, LENGTH = 2000, 20_001
"""Each lane with a copy of its own, a list of so many numbers would take 320 MB."""


@pytest.mark.parametrize("typed", [True, False])
def test_what_speaks_of_all_lanes_costs_little_lane_by_lane(typed: bool) -> None:
    long = np.arange(LENGTH) if typed else list(range(LENGTH))
    infos = BatchedInfos({"long": long, "deep": {"long": long}, "t": 4}, LANES, typed=typed)
    spans = [SimpleNamespace(start=start, num_envs=LANES) for start in (0, LANES)]
    tracemalloc.start()
    try:
        rows = [infos.row(lane) for lane in range(LANES)]
        joined = vector_infos([(spans[0], infos), (spans[1], infos)], 2 * LANES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20
    assert rows[3]["t"] == 4
    for value in (rows[3]["long"], rows[LANES - 1]["deep"]["long"], joined["long"][2 * LANES - 1]):
        np.testing.assert_array_equal(value, np.arange(LENGTH))
        assert not value.flags.writeable
    assert joined["_long"].all()
    assert joined["t"].tolist() == [4] * 2 * LANES


def test_short_values_for_all_lanes_are_each_rows_own() -> None:
    infos = BatchedInfos({"array": np.arange(3)}, 2, typed=True)
    infos.row(0)["array"][0] = 9
    assert infos.row(1)["array"].tolist() == [0, 1, 2]
    whole = BatchedInfos({"array": np.zeros(2**23, np.uint8)}, 1, typed=True)
    whole.row(0)["array"][0] = 1  # One lane shares with nobody.


@pytest.mark.parametrize("deep", [True, False])
def test_no_more_keys_for_all_lanes_than_there_is_room_for(
    deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {str(key): key for key in range(5000)}
    if deep:
        told = {str(part): {str(key): key for key in range(100)} for part in range(50)}
    with pytest.raises(CodecError, match=r"50\d0 keys for each of 4096 lanes, at most 256 are"):
        BatchedInfos(told, 4096).row(0)
    monkeypatch.setenv("RLMESH_GYM_MAX_SPACE_BYTES", str(2**31))
    assert len(BatchedInfos(told, 4096).row(7)) == len(told)


def test_terminal_observations() -> None:
    codec = SpaceCodec(SPACE)
    sample = {"z": np.array([0.25, 0.5], np.float32), "a": "hey"}
    content = codec.encode(codec.flatten_row(sample), 1).SerializeToString()
    for form in (content, {"z": [0.25, 0.5], "a": "hey"}):
        infos = read(
            {"final_obs": [None, form], "_final_obs": [False, True]},
            2,
            per_lane=False,
            observation_codec=codec,
        )
        arrays = infos.arrays()
        assert arrays["final_obs"].dtype == object
        assert arrays["final_obs"][0] is None
        assert equal(arrays["final_obs"][1], sample)
        assert equal(infos.row(1)["final_obs"], sample)
        assert infos.row(0) == {}


def test_a_numeric_key_named_final_obs_stays_an_object_array() -> None:
    infos = read({"final_obs": [1, 2], "_final_obs": [True, True]}, 2, per_lane=False)
    assert infos.arrays()["final_obs"].dtype == object


@pytest.mark.parametrize(
    ("space", "plain"),
    [
        (SPACE, [1]),
        (SPACE, {"z": [0.0, 0.0]}),
        (gym.spaces.Tuple((gym.spaces.Discrete(2),)), [1, 2]),
        (gym.spaces.Text(3), 5),
        (gym.spaces.Box(0, 1, (2,)), [1.0]),
        (gym.spaces.Box(0, 1, (2,)), ["x", "y"]),
    ],
)
def test_plain_samples_that_do_not_fit(space: Any, plain: Any) -> None:
    with pytest.raises(CodecError):
        decode_final_obs(SpaceCodec(space), plain)


def test_plain_samples() -> None:
    space = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Text(3)))
    value = decode_final_obs(SpaceCodec(space), [2, "ab"])
    assert value == (2, "ab")
    assert isinstance(value[0], np.int64)


def test_conformance_notes_become_warnings_once() -> None:
    log = ConformanceLog("tcp://h:1")
    note = {"kind": "action", "path": "$.x", "detail": "3.0 is above 1.0"}
    wire = {
        "final_info": [{"a": 1, "rlmesh.conformance.warning": [note]}, {}],
        "_final_info": [False, False],
        "rlmesh.conformance.warning": [note],
    }
    with pytest.warns(ConformanceWarning, match=r"tcp://h:1: action at \$.x: 3.0 is above") as seen:
        infos = read(wire, 2, per_lane=True, conformance=log)
    assert len(seen) == 1
    assert infos.row(0) == {"a": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infos = read({"x": [1, 2], **wire}, 2, per_lane=False, conformance=log)
        assert "rlmesh.conformance.warning" not in infos.arrays()
    with pytest.warns(ConformanceWarning, match="od\ufffdd"):
        read({"rlmesh.conformance.warning": "od\x1bd"}, 1, per_lane=True, conformance=log)


def normalised(infos: Any) -> Any:
    """What the wire cannot keep: the width of numbers, and the type of a numpy bool."""
    if isinstance(infos, dict):
        return {key: normalised(value) for key, value in infos.items()}
    if isinstance(infos, np.ndarray):
        if infos.dtype == object:
            plain = [normalised(value) for value in infos]
            kinds = {type(value) for value in plain}
            if bool in kinds and kinds <= {bool, type(None)}:
                return np.array([bool(value) for value in plain])
            array = np.empty(len(infos), dtype=object)
            for index, value in enumerate(plain):
                array[index] = value
            return array
        if infos.dtype.kind == "f":
            return infos.astype(np.float64)
        return infos
    if isinstance(infos, np.generic):
        return infos.item()
    return infos


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["lanes", "vector"])
def test_infos_of_every_kind_over_the_wire(kind: str, mode: AutoresetMode) -> None:
    makers = [partial(InfoVarietyEnv, 2), partial(InfoVarietyEnv, 3)]
    reference = SyncVectorEnv(makers, autoreset_mode=mode)
    served: Any = (
        [maker() for maker in makers]
        if kind == "lanes"
        else SyncVectorEnv(makers, autoreset_mode=mode)
    )
    with (
        EnvServer(served) as server,
        RemoteVectorEnv(server.address, autoreset_mode=mode) as envs,
    ):
        assert envs.reset(seed=1)[1].keys() == reference.reset(seed=1)[1].keys()
        steps = 2 if mode is AutoresetMode.DISABLED else 12
        for _ in range(steps):
            got = envs.step([1, 2])[4]
            expected = reference.step(np.array([1, 2]))[4]
            assert equal(normalised(got), normalised(expected)), (got, expected)


def test_infos_are_a_function_of_the_seed() -> None:
    runs = []
    for _ in range(2):
        with (
            EnvServer([InfoVarietyEnv(3), InfoVarietyEnv(2)]) as server,
            RemoteVectorEnv(server.address, autoreset_mode="SameStep") as envs,
        ):
            infos = [envs.reset(seed=4)[1]]
            infos += [envs.step([0, 1])[4] for _ in range(8)]
            runs.append(infos)
    assert equal(runs[0], runs[1])


def test_ids_in_infos_on_demand() -> None:
    with (
        EnvServer([InfoVarietyEnv(2)]) as server,
        RemoteVectorEnv(server.address, episode_ids_in_infos=True) as envs,
    ):
        infos = envs.reset()[1]
        assert infos["episode_id"].tolist() == list(envs.episode_ids)
        assert infos["_episode_id"].tolist() == [True]
