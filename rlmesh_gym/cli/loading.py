"""Finding the object that a command line names, ``module:object`` or ``file.py:object``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server import ModelHandler

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["build_handler", "find_in_working_directory", "load_object"]


def load_object(reference: str) -> Any:
    """Import what ``module:object`` or ``path/to/file.py:object`` names; dots reach attributes.

    Modules of the working directory are found, as with ``python -m``.

    Raises:
        ConfigurationError: Nothing of that name, or its import fails.
    """
    # The last colon: a path of Windows has one of its own.
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name:
        message = f"expected module:object or file.py:object, got {reference!r}"
        raise ConfigurationError(message)
    found: Any = _import(place)
    try:
        return functools.reduce(getattr, name.split("."), found)
    except AttributeError as error:
        message = f"{place!r} has no {name!r}"
        raise ConfigurationError(message) from error


def find_in_working_directory() -> None:
    """Let imports find the working directory's modules, which a console script's do not."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _import(place: str) -> ModuleType:
    find_in_working_directory()
    try:
        return (
            _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
    except Exception as error:
        message = f"cannot import {place!r}: {type(error).__name__}: {error}"
        raise ConfigurationError(message) from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        message = f"{path} is no Python file"
        raise ConfigurationError(message)
    module = importlib.util.module_from_spec(spec)
    # Pickle and dataclasses look their module up by name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def build_handler(found: Any, arguments: dict[str, Any]) -> Any:
    """Make what ``ModelServer`` takes of a handler, a policy, a class or a factory.

    A class, and a function that needs no arguments, are called for what they return; so is
    whatever comes with ``arguments``. All else that can be called is a policy: functions of an
    observation, decorated ones (``*args``), and objects such as modules and compiled functions.

    Raises:
        ConfigurationError: It cannot be called like that, or fails.
    """
    if isinstance(found, ModelHandler):
        if arguments:
            message = "--kwargs are for a class or a factory, and this is a ready handler"
            raise ConfigurationError(message)
        return found
    if not (arguments or inspect.isclass(found) or _is_factory(found)):
        return found
    try:
        return found(**arguments)
    except Exception as error:
        name = getattr(found, "__name__", repr(found))
        message = f"{name}(…) failed: {type(error).__name__}: {error}"
        raise ConfigurationError(message) from error


def _is_factory(found: Any) -> bool:
    """Whether it is a function that takes nothing, or only what has a default."""
    if not (inspect.isroutine(found) or isinstance(found, functools.partial)):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # A built-in one that does not tell.
        return False
    return all(
        parameter.kind is not parameter.VAR_POSITIONAL
        and (parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD)
        for parameter in parameters
    )
