"""The examples of ``docs/training.md`` whose library is here; RLlib's is in ``test_rllib.py``."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.training.training_page import LIBRARIES, examples, run_example

pytestmark = pytest.mark.training


def test_each_library_has_an_example() -> None:
    assert examples().keys() == LIBRARIES.keys()


@pytest.mark.parametrize(
    "heading",
    [name for name, module in LIBRARIES.items() if find_spec(module) and module != "ray"],
)
def test_example(heading: str) -> None:
    run_example(heading)
