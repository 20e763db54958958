"""Which exit code a failed run has, and what its user should do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.cli.exit_codes import (
    EXIT_ENV_UNREACHABLE,
    EXIT_FAILED,
    EXIT_MISMATCH,
    EXIT_MODEL_UNREACHABLE,
)
from rlmesh_gym.errors import (
    ConfigurationError,
    DeadlineError,
    EnvError,
    Error,
    ModelError,
    ProtocolError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["explain"]


def explain(
    error: Error, addresses: Sequence[str], env_endpoints: Sequence[str], model_endpoint: str
) -> tuple[int, str]:
    """Exit code and text for the error that ended a run.

    Args:
        error: What the driver raised.
        addresses: Of the env endpoints, as the user typed them.
        env_endpoints: The same as errors name them.
        model_endpoint: Address of the model as errors name it.
    """
    endpoint = getattr(error, "endpoint", "")
    is_lost = isinstance(error, (UnavailableError, DeadlineError))
    if is_lost and endpoint == model_endpoint:
        return EXIT_MODEL_UNREACHABLE, f"model: {error}"
    if is_lost and endpoint in env_endpoints:
        return EXIT_ENV_UNREACHABLE, f"environment: {error}"
    compare = " ".join(f"'rlmesh-gym ping {address}'" for address in addresses)
    if _is_mismatch(error):
        return EXIT_MISMATCH, (
            f"environment and model do not fit: {error}; compare what {compare} shows with what "
            "the model was made for"
        )
    return EXIT_FAILED, str(error)


def _is_mismatch(error: Error) -> bool:
    if isinstance(error, ModelError):
        # Our model server checks the actions itself; there is no code for that on the wire.
        return error.operation == "resolve_adapter" or "action frame" in str(error)
    if isinstance(error, EnvError):
        return error.code == "INVALID_ACTION"
    if isinstance(error, ProtocolError):
        return error.operation == "predict"
    return isinstance(error, ConfigurationError) and "same spaces" in str(error)
