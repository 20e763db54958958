"""``rlmesh-gym serve-model``: a policy at an address."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.options import (
    add_server_options,
    find_in_working_directory,
    keyword_arguments,
    keyword_option,
    server_arguments,
)
from rlmesh_gym.cli.signals import serve_until_interrupted
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server import ModelHandler, ModelServer

if TYPE_CHECKING:
    import argparse
    from types import ModuleType


EPILOG = """\
The object may be a ModelHandler, a class of one, a policy (a function of the batched observation
that returns the batched actions, or any object that can be called so, such as a torch module), or a
factory: a function that needs no arguments, or those of --kwargs, and returns one of these.

  rlmesh-gym serve-model my_policy:act --address 127.0.0.1:6000
  rlmesh-gym serve-model policies/act.py:make --kwargs checkpoint=last.npz
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("object", metavar="MODULE:OBJECT", help="what to serve; or FILE.py:OBJECT")
    keyword_option(parser, "--kwargs", "the class or factory")
    add_server_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    handler = build_handler(load_object(options.object), keyword_arguments(options.kwargs))
    server = ModelServer(handler, **server_arguments(options))
    serve_until_interrupted(server, options.object)
    return Exit.DONE


def load_object(reference: str) -> Any:
    """Import what ``module:object`` or ``path/to/file.py:object`` names; dots reach attributes."""
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

    A class, a function that needs no arguments, and whatever comes with ``arguments`` are called
    for what they return. All else that can be called is a policy.
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
