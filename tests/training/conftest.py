"""Which of these tests can run here, and torch kept to one thread.

The libraries are installed on demand (``scripts/test-training``). A file whose libraries are
missing is not collected, so that the default run has nothing to skip.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

# All of them need torch; these need something else too.
_NEEDS = {
    "test_rllib.py": "ray",
    "test_sb3_bridge.py": "stable_baselines3",
    "test_training_sb3.py": "stable_baselines3",
    "test_training_skrl.py": "skrl",
    "test_training_tianshou.py": "tianshou",
    "test_training_torchrl.py": "torchrl",
}

collect_ignore = [file for file, module in _NEEDS.items() if find_spec(module) is None]
collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny networks are slower on several threads, and the lanes need the other cores."""
    if find_spec("torch") is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What torch's own imports warn of.
        import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _logs_go_with_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stable-Baselines3 makes a directory per model in the temporary folder otherwise."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
