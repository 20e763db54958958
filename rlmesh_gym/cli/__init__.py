"""The command line: ``rlmesh-gym serve | serve-model | ping | demo | run | merge | bench``.

This module chooses the command and turns errors into one line and an exit code; each command is a
module of its own with ``configure(parser)`` and ``execute(options)``, imported when it is used.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING

import gymnasium.error

from rlmesh_gym._version import __version__
from rlmesh_gym.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# Name, module, line for the overview.
_COMMANDS = (
    ("serve", "serve", "serve a Gymnasium environment at an address"),
    ("serve-model", "serve_model", "serve a policy at an address"),
    ("ping", "ping", "show what an endpoint is and how long a round trip takes"),
    ("demo", "demo", "watch an agent learn on eight remote lanes (about a minute)"),
    ("run", "run", "evaluate a served policy on served environments and write a report"),
    ("merge", "merge", "join the reports of several runs"),
    ("bench", "bench", "measure steps per second beside Gymnasium's own vectors"),
)

_EPILOG = """\
RLMESH_GYM_TOKEN holds the token that an endpoint asks for. 'rlmesh-gym COMMAND --help' has the
options of a command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; 'run' has more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name, the process's own if None.

    Returns:
        The exit code. Errors of the package are told in one line on standard error.

    Raises:
        SystemExit: For ``--help``, ``--version`` and wrong usage, as argparse does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _make_output_safe()
    # gRPC logs on its own what our errors say better; it reads this once, at its import.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    parser = _parser(arguments)
    options = parser.parse_args(arguments)
    if options.execute is None:
        parser.print_help()
        return EXIT_USAGE
    verbose = bool(getattr(options, "verbose", False))
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    try:
        code: int = options.execute(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except gymnasium.error.Error as error:
        return _fail(error, verbose=verbose)
    return code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log what happens, and show the traceback of an error",
    )
    parser = argparse.ArgumentParser(
        prog="rlmesh-gym",
        description="Remote environments and served policies as ordinary Gymnasium objects.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rlmesh-gym {__version__}")
    parser.set_defaults(execute=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, module, text in _COMMANDS:
        command = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
            allow_abbrev=False,
        )
        # Only what is asked for is imported: help must not wait for gRPC.
        if name in arguments:
            loaded = importlib.import_module(f"rlmesh_gym.cli.{module}")
            loaded.configure(command)
            command.set_defaults(execute=loaded.execute)
    return parser


def _fail(error: Exception, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(type(error), error, error.__traceback__)
    message = " ".join(str(error).split()) or type(error).__name__
    print(f"rlmesh-gym: {message}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED


def _make_output_safe() -> None:
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A terminal without Unicode shows question marks instead of ending the program.
            reconfigure(errors="replace")
