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
    """
    # The last colon: a path of Windows has one of its own.
    place, separator, name = reference.rpartition(":")
    if not separator or not place or not name:
        raise ConfigurationError(f"expected module:object or file.py:object, got {reference!r}")
    find_in_working_directory()
    load = _import_file if place.endswith(".py") else importlib.import_module
    try:
        module: Any = load(place)
    except Exception as error:
        message = f"cannot import {place!r}: {type(error).__name__}: {error}"
        raise ConfigurationError(message) from error
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise ConfigurationError(f"{place!r} has no {name!r}") from error


def find_in_working_directory() -> None:
    """Let imports find the working directory's modules, which a console script's do not."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _import_file(path: str) -> ModuleType:
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is no Python file")
    # Pickle and dataclasses look their module up by name.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_handler(found: Any, arguments: dict[str, Any]) -> Any:
    """Make what ``ModelServer`` takes of a handler, a policy, a class or a factory.

    A class, and a function that needs no arguments, are called for what they return; so is
    whatever comes with ``arguments``. All else that can be called is a policy: functions of an
    observation, decorated ones (``*args``), and objects such as modules and compiled functions.
    """
    if isinstance(found, ModelHandler):
        if arguments:
            raise ConfigurationError(
                "--kwargs are for a class or a factory, and this is a ready handler"
            )
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
