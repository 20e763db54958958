"""The exit codes, on which scripts depend, and which of them an error has."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import TYPE_CHECKING

from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ModelError,
    ProtocolError,
    UnavailableError,
)
from rlmesh_gym.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


class Exit(IntEnum):
    """What a command ends with."""

    DONE = 0
    FAILED = 1
    USAGE = 2  # What argparse uses; also for options that contradict each other.
    ENV_UNREACHABLE = 3
    MODEL_UNREACHABLE = 4
    MISMATCH = 5
    INTERRUPTED = 130  # What a shell reports for SIGINT.


def tell(text: str, code: Exit) -> Exit:
    """Say in one line on standard error why the command ends with ``code``."""
    print(f"rlmesh-gym: {printable(' '.join(text.split()))}", file=sys.stderr)
    return code


def explain(
    error: Error, addresses: Sequence[str], env_endpoints: Sequence[str], model_endpoint: str
) -> tuple[Exit, str]:
    """Exit code and text for the error that ended a run; ``addresses`` as the user typed them."""
    endpoint = getattr(error, "endpoint", "")
    if isinstance(error, (UnavailableError, DeadlineError)):
        if endpoint == model_endpoint:
            return Exit.MODEL_UNREACHABLE, f"model: {error}"
        if endpoint in env_endpoints:
            return Exit.ENV_UNREACHABLE, f"environment: {error}"
    if _is_mismatch(error):
        compare = " ".join(f"'rlmesh-gym ping {address}'" for address in addresses)
        return Exit.MISMATCH, (
            f"environment and model do not fit: {error}; compare what {compare} shows with what "
            "the model was made for"
        )
    return Exit.FAILED, str(error)


def _is_mismatch(error: Error) -> bool:
    if isinstance(error, ModelError):
        # Our model server checks the actions itself; there is no code for that on the wire.
        return error.operation == "resolve_adapter" or "action frame" in str(error)
    if isinstance(error, EnvError):
        return error.code == "INVALID_ACTION"
    if isinstance(error, ProtocolError):
        return error.operation == "predict"
    return isinstance(error, ConfigurationError) and "same spaces" in str(error)
