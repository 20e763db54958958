"""The command line: ``rlmesh-gym serve | serve-model | ping | check | demo | run | merge | bench``.

This module chooses the command and turns errors into one line and an exit code; each command is a
module of its own with ``EPILOG``, ``configure(parser)`` and ``execute(options)``, imported when it
is used.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import gymnasium.error

from rlmesh_gym._version import __version__
from rlmesh_gym.cli.exit_codes import Exit, tell
from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = {
    "serve": "serve a Gymnasium environment at an address",
    "serve-model": "serve a policy at an address",
    "ping": "show what an endpoint is and how long a round trip takes",
    "check": "check that an endpoint, or what is to be one, keeps the protocol's rules",
    "demo": "watch an agent learn on eight remote lanes (about a minute)",
    "run": "evaluate a served policy on served environments and write a report",
    "merge": "join the reports of several runs",
    "bench": "measure steps per second beside Gymnasium's own vectors",
}

_EPILOG = """\
RLMESH_GYM_TOKEN holds the token that an endpoint asks for. 'rlmesh-gym COMMAND --help' has the
options of a command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; 'run' has more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Errors of the package are told in one line on standard error; ``--help``, ``--version`` and
    wrong usage raise ``SystemExit``, as argparse does.
    """
    # gRPC reads it at its import. What it does in forks makes one in ten of the workers crash that
    # an environment forks beside a gRPC server (grpcio 1.85).
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A terminal without Unicode shows question marks instead of ending the program.
            reconfigure(errors="replace")
    parser = _parser(arguments)
    options = parser.parse_args(arguments)
    if options.execute is None:
        parser.print_help()
        return Exit.USAGE
    verbose = bool(getattr(options, "verbose", False))
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    try:
        code: int = options.execute(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # Else what cannot be written shows only when Python ends.
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _write_no_more()  # The reader of our output has gone.
        return Exit.FAILED
    except gymnasium.error.Error as error:
        if verbose:
            traceback.print_exception(error)
        is_usage = isinstance(error, ConfigurationError)
        text = str(error).strip() or type(error).__name__
        return tell(text, Exit.USAGE if is_usage else Exit.FAILED)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _write_no_more()
        return tell(str(error), Exit.FAILED)
    return code


def _write_no_more() -> None:
    """Let nothing more be written to standard output; Python would try once more at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log what happens, and show the traceback of an error",
    )
    shared: dict[str, Any] = {
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "parents": [common],
        "allow_abbrev": False,
    }
    parser = argparse.ArgumentParser(
        prog="rlmesh-gym",
        description="Remote environments and served policies as ordinary Gymnasium objects.",
        epilog=_EPILOG,
        **shared,
    )
    parser.add_argument("--version", action="version", version=f"rlmesh-gym {__version__}")
    parser.set_defaults(execute=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, text in _COMMANDS.items():
        description = f"{text[0].upper()}{text[1:]}."
        command = commands.add_parser(name, help=text, description=description, **shared)
        # Only what is asked for is imported: help must not wait for gRPC.
        if name in arguments:
            loaded = importlib.import_module(f"rlmesh_gym.cli.{name.replace('-', '_')}")
            command.epilog = loaded.EPILOG
            loaded.configure(command)
            command.set_defaults(execute=loaded.execute)
    return parser
