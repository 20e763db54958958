from __future__ import annotations

import numpy as np
import pytest

from rlmesh_gym.codec import lane_info


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
