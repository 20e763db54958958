"""Every Python example of ``docs/training.md`` whose library is here runs as it stands."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Ray takes its time to start on a busy machine.
pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
LIBRARIES = {
    "CleanRL and scripts like it": "gymnasium",
    "Stable-Baselines3": "stable_baselines3",
    "TorchRL": "torchrl",
    "RLlib": "ray",
    "skrl": "skrl",
    "Tianshou": "tianshou",
}


def examples() -> dict[str, str]:
    """The code under each heading."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.splitlines()[0]] = "\n".join(blocks)
    return found


EXAMPLES = examples()


def test_each_library_has_an_example() -> None:
    assert EXAMPLES.keys() == LIBRARIES.keys()


@pytest.mark.parametrize(
    "heading", [name for name, module in LIBRARIES.items() if find_spec(module) is not None]
)
def test_example(heading: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[heading], str(PAGE), "exec"), names)
    if heading == "RLlib":
        import ray

        ray.shutdown()  # The example leaves it to the end of the process.
        assert names["result"]["env_runners"]["num_env_steps_sampled"] >= 128
