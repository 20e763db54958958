"""The Python examples of ``docs/training.md``, to be run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["LIBRARIES", "examples", "run_example"]

PAGE = Path(__file__).parents[2] / "docs" / "training.md"

LIBRARIES = {
    "CleanRL and scripts like it": "gymnasium",
    "Stable-Baselines3": "stable_baselines3",
    "TorchRL": "torchrl",
    "RLlib": "ray",
    "skrl": "skrl",
    "Tianshou": "tianshou",
}
"""Headings that have an example, and the module that each needs."""


def examples() -> dict[str, str]:
    """The code under each heading that has some."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.splitlines()[0]] = "\n".join(blocks)
    return found


def run_example(heading: str) -> dict[str, Any]:
    """Run an example; returns its variables."""
    names: dict[str, Any] = {}
    exec(compile(examples()[heading], str(PAGE), "exec"), names)
    return names
