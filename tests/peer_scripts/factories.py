"""From the text ``"module:function"`` or a Gymnasium id to an env or a list of them."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym

__all__ = ["make", "make_vector"]


def make(factory: str, kwargs: dict[str, Any]) -> Any:
    """Return what the function returns, or ``gym.make`` where there is no such function."""
    function = _function(factory)
    return gym.make(factory, **kwargs) if function is None else function(**kwargs)


def make_vector(factory: str, kwargs: dict[str, Any], num_envs: int, mode: str) -> Any:
    """Return a SyncVectorEnv of ``num_envs`` of them with autoreset ``mode``."""
    autoreset_mode = gym.vector.AutoresetMode[mode]
    makers = [lambda: make(factory, kwargs)] * num_envs
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=autoreset_mode)


def _function(factory: str) -> Any:
    module, separator, name = factory.partition(":")
    if not separator:
        return None
    found = getattr(importlib.import_module(module), name, None)
    return found if callable(found) else None
