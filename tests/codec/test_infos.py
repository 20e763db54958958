from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from rlmesh_gym.codec import final_info, lane_info
from rlmesh_gym.codec.vector_infos import vector_form


def test_the_share_of_a_lane() -> None:
    told = {
        "a": np.array([1, 2]),
        "_a": np.array([True, False]),
        "free": [5, 6],
        "shared": "all",
        "triple": np.arange(3),
        "deep": {"x": np.array([7, 8]), "_x": [False, True], "y": (1, 2)},
        "_deep": np.array([True, True]),
        "_private": np.array([3, 4]),
    }
    assert lane_info(told, 0, 2).keys() == {"a", "free", "shared", "triple", "deep", "_private"}
    assert lane_info(told, 0, 2)["a"] == 1
    share = lane_info(told, 1, 2)
    assert "a" not in share
    assert share["free"] == 6
    assert share["shared"] == "all"
    assert share["triple"].tolist() == [0, 1, 2]
    assert share["deep"] == {"x": 8, "y": 2}
    assert share["_private"] == 4


@pytest.mark.parametrize("mask", [1, 0.5, True, "no", None, {}, np.zeros(()), np.eye(2), [1]])
def test_what_cannot_be_a_mask_leaves_nobody_out(mask: object) -> None:
    assert lane_info({"a": [5, 6], "_a": mask}, 1, 2)["a"] == 6


def test_final_infos_of_every_form() -> None:
    batched = {
        "t": np.array([3, 0]),
        "_t": np.array([True, False]),
        "pose": {"x": [1.5, 0.0], "_x": [True, False]},
        "_pose": [True, False],
        "note": "all",
        "final_obs": [None, None],
        "rlmesh.conformance.warning": [],
    }
    assert final_info(batched, 0, 2) == {"t": 3, "pose": {"x": 1.5}, "note": "all"}
    assert final_info(batched, 1, 2) == {"note": "all"}
    same_step = {
        "final_info": {"t": np.array([0, 7]), "_t": np.array([False, True])},
        "_final_info": np.array([False, True]),
        "kind": ["step", "reset"],
    }
    assert final_info(same_step, 1, 2) == {"t": 7}
    lanes = {"final_info": [{"t": 1}, {"t": 2}], "_final_info": [True, True]}
    assert final_info(lanes, 1, 2) == {"t": 2}
    bare = final_info({"t": 4, "path": np.arange(2)}, 0, 1)
    assert bare["t"] == 4
    assert bare["path"].tolist() == [0, 1]
    # An env's own dicts have whatever keys they have.
    nested = {"visits": {1: 2, "a": 3}, "_visits": np.array([True])}
    assert final_info(nested, 0, 1) == {"visits": {1: 2, "a": 3}}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("as_array", [True, False], ids=["array", "list"])
def test_long_values_for_many_lanes_cost_what_came(as_array: bool) -> None:
    lanes, size = 20_000, 20_001  # 3 GiB if each lane had its own.
    value = np.arange(size) if as_array else list(range(size))
    begun = time.monotonic()
    tracemalloc.start()
    try:
        infos = vector_form({"long": value}, lanes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert infos["long"].shape == (lanes, size)
    assert infos["long"][-1, -1] == size - 1
    assert infos["_long"].all()
    assert peak < 4 * 1024 * 1024
    assert time.monotonic() - begun < 5


def test_short_values_for_all_lanes_are_each_lanes_own() -> None:
    infos = vector_form({"array": np.arange(3), "list": [1, 2, 3], "odd": [1, "a", None]}, 2)
    infos["array"][0] = 9
    infos["list"][0] = 9
    assert infos["array"][1].tolist() == [0, 1, 2]
    assert infos["list"][1].tolist() == [1, 2, 3]
    assert infos["odd"].tolist() == [[1, "a", None]] * 2
