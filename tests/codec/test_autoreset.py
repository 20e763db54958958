"""Autoreset modes: as typed, and as found."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from rlmesh_gym.codec import as_autoreset_mode, find_autoreset_mode
from rlmesh_gym.errors import ConfigurationError
from tests.fake_envs import CountingEnv


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_spelling(mode: AutoresetMode) -> None:
    for name in (mode, mode.value, mode.name, mode.name.lower(), mode.name.replace("_", "-")):
        assert as_autoreset_mode(name) is mode
    assert as_autoreset_mode(None) is None


@pytest.mark.parametrize("value", ["", "step", "same step", 1, True])
def test_what_is_no_mode(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'NextStep', 'SameStep', 'Disabled' or None"):
        as_autoreset_mode(value)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vectors_of_one_class_are_told_apart(mode: AutoresetMode) -> None:
    """Gymnasium 1.1 writes the mode into metadata that all of them share."""
    envs = SyncVectorEnv([CountingEnv], autoreset_mode=mode)
    SyncVectorEnv([CountingEnv], autoreset_mode=AutoresetMode.DISABLED)
    assert find_autoreset_mode(envs) is mode
    assert find_autoreset_mode(VectorWrapper(envs)) is mode
    shared = SimpleNamespace(
        num_envs=1, autoreset_mode=mode, metadata={"autoreset_mode": AutoresetMode.DISABLED}
    )
    assert find_autoreset_mode(shared) is mode


@pytest.mark.parametrize("said", ["SameStep", "SAME_STEP", "same-step", AutoresetMode.SAME_STEP])
def test_metadata_say_it_in_any_spelling(said: Any) -> None:
    envs = VectorEnv[Any, Any, Any]()
    envs.num_envs = 2
    envs.metadata = {"autoreset_mode": said}
    assert find_autoreset_mode(envs) is AutoresetMode.SAME_STEP
    envs.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(ConfigurationError, match="unknown autoreset mode 'sometimes'"):
        find_autoreset_mode(envs)


def test_envs_that_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_autoreset_mode(CountingEnv()) is AutoresetMode.DISABLED
        # A vector env of Stable-Baselines3 has lanes and no single spaces.
        assert find_autoreset_mode(SimpleNamespace(num_envs=2)) is AutoresetMode.SAME_STEP
    silent = SimpleNamespace(num_envs=2, single_action_space=None, metadata={})
    with pytest.warns(UserWarning, match="taken for NEXT_STEP"):
        assert find_autoreset_mode(silent) is AutoresetMode.NEXT_STEP
