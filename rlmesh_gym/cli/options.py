"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


_TOKEN_HELP = "better given as RLMESH_GYM_TOKEN, since others see a command line"  # noqa: S105


def count_option(
    parser: argparse.ArgumentParser, name: str, text: str, default: int | None = None
) -> None:
    """Add an option for a whole number of at least 1."""
    parser.add_argument(name, type=positive_int, default=default, metavar="N", help=text)


def positive_int(text: str) -> int:
    """Read a whole number of at least 1 (an argparse type)."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if (number := float(text)) > 0:
            return number
    raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--token``, ``--tls`` and ``--timeout`` of a client."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--token", metavar="TOKEN", help=f"what the endpoint asks for; {_TOKEN_HELP}"
    )
    group.add_argument(
        "--tls",
        nargs="?",
        const=True,
        metavar="ROOTS.pem",
        help="connect with TLS; with a file, trust the certificates in it",
    )
    group.add_argument("--tls-cert", metavar="FILE", help="certificate (PEM) to present, with TLS")
    group.add_argument("--tls-key", metavar="FILE", help="private key of the certificate (PEM)")
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for any one answer (default: what the library has)",
    )


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add what all servers are told: the address, who is let in, and for how long."""
    parser.add_argument(
        "--address",
        default="127.0.0.1:0",
        metavar="ADDRESS",
        help="host:port or unix:///path to listen on; port 0, the default, takes a free one",
    )
    group = parser.add_argument_group("access")
    group.add_argument("--token", metavar="TOKEN", help=f"ask clients for it; {_TOKEN_HELP}")
    group.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), for TLS")
    group.add_argument("--tls-key", metavar="FILE", help="private key of the certificate (PEM)")
    group.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="ask clients for a certificate that one of these (PEM) has signed",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine without a token or client certificates",
    )
    group = parser.add_argument_group("silent clients")
    group.add_argument(
        "--client-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="a client without a sign of life for so long counts as gone (default: 30)",
    )
    group.add_argument(
        "--session-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="end a session without a request for so long (default: never)",
    )


def server_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a server, but for what it serves, from the options of all servers."""
    files = {
        "certificate_chain": options.tls_cert,
        "private_key": options.tls_key,
        "root_certificates": options.tls_client_ca,
    }
    return {
        "address": options.address,
        "token": options.token,
        "tls": {name: path for name, path in files.items() if path is not None} or None,
        "insecure": options.insecure,
        "client_timeout": options.client_timeout,
        "session_timeout": options.session_timeout,
    }


def connection_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The ``token=``, ``tls=`` and ``timeouts=`` of a client from its options."""
    tls, timeouts = options.tls, None
    if isinstance(tls, str):
        tls = {"root_certificates": tls}
    if options.tls_cert is not None or options.tls_key is not None:
        own = {"certificate_chain": options.tls_cert, "private_key": options.tls_key}
        tls = {**(tls if isinstance(tls, dict) else {}), **own}
    if options.timeout is not None:
        names = ("connect", "reset", "step", "render", "predict", "resolve")
        timeouts = dict.fromkeys(names, options.timeout)
    return {"token": options.token, "tls": tls, "timeouts": timeouts}


def find_in_working_directory() -> None:
    """Let imports find the working directory's modules, which a console script's do not."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def keyword_option(parser: argparse.ArgumentParser, name: str, owner: str) -> None:
    """Add an option for what :func:`keyword_arguments` reads."""
    text = f"argument of {owner}, or a JSON object of them; may be repeated"
    parser.add_argument(name, action="append", default=[], metavar="NAME=VALUE", help=text)


def keyword_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Read keyword arguments given as ``name=value`` or as JSON objects; later ones win.

    A value that is JSON is taken as such (``true``, ``3``, ``[1, 2]``), any other text as itself.
    """
    result: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                result.update(json.loads(text))
            except ValueError as error:
                raise ConfigurationError(f"{text!r} is not a JSON object: {error}") from error
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigurationError(f"expected name=value or a JSON object, got {text!r}")
        try:
            result[name] = json.loads(value)
        except ValueError:
            result[name] = value
    return result
