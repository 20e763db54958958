"""``rlmesh-gym serve-model``: a policy at an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.cli.exit_codes import Exit
from rlmesh_gym.cli.loading import build_handler, load_object
from rlmesh_gym.cli.options import add_server_options, keyword_arguments, server_tls
from rlmesh_gym.cli.signals import serve_until_interrupted
from rlmesh_gym.server import ModelServer

if TYPE_CHECKING:
    import argparse

__all__ = ["EPILOG", "configure", "execute"]

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
    parser.add_argument(
        "--kwargs",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the class or factory, or a JSON object of them; may be repeated",
    )
    add_server_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    handler = build_handler(load_object(options.object), keyword_arguments(options.kwargs))
    server = ModelServer(handler, options.address, token=options.token, tls=server_tls(options))
    serve_until_interrupted(server, options.object)
    return Exit.DONE
