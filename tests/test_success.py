from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlmesh_gym.episodes import SUCCESS_KEYS, success_of
from tests.env.success_env import FORMS, Tensor


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form(form: Any, flag: bool) -> None:
    assert success_of(form(flag)) is flag


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, None),
        ({"success": "yes"}, None),
        ({"success": None}, None),
        ({"success": float("nan")}, None),
        ({"success": []}, None),
        ({"success": [True, True]}, None),
        ({"success": np.array([True, True])}, None),
        ({"success": np.array(["x"])}, None),
        ({"success": Tensor([1.0, 0.0])}, None),
        ({"success": {"success": True}}, None),
        ({"episode": 3}, None),
        ({"is_success": None, "success": 1}, True),
        ({"is_success": np.bool_(False), "success": True}, False),
        ({"success": False, "episode": {"success": True}}, False),
        ({"success": "?", "episode": {"task_success": True}}, True),
        ({"success": [[np.array([True])]]}, True),
    ],
)
def test_what_else_an_info_holds(info: dict[str, Any], expected: bool | None) -> None:
    assert success_of(info) is expected


def test_the_order_of_the_keys() -> None:
    info = dict.fromkeys(SUCCESS_KEYS, True)
    for key in SUCCESS_KEYS:
        assert success_of({**info, key: False}) is (key != SUCCESS_KEYS[0])
        assert success_of({key: False}) is False
