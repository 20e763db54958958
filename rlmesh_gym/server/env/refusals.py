"""Requests that are answered with an in-band error, and what becomes of their session."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym._proto.env.v1 import interaction_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.server.env.served_env import Outcome


ErrorCode = interaction_pb2.EnvErrorCode


@dataclass(eq=False)
class InBandError(Exception):
    """A request that is answered with an in-band error."""

    code: ErrorCode.ValueType
    message: str
    recoverable: bool = True  # The session goes on as if the request had not been made.
    debug_info: str = ""
    lanes: Sequence[int] | None = None  # That the request named; None for the whole vector.
    cuts: bool = False  # The running episodes of those lanes end here.


def invalid(message: str) -> InBandError:
    """Return the refusal of a request that names or sends something wrong."""
    return InBandError(ErrorCode.ENV_ERROR_CODE_INVALID_ACTION, message)


def unsupported(message: str) -> InBandError:
    """Return the refusal of a request for what this server or environment does not do."""
    return InBandError(ErrorCode.ENV_ERROR_CODE_UNSUPPORTED, message)


def check_roll(rolling: NDArray[np.bool_], outcome: Outcome) -> None:
    """Check that the lanes that a step was to reset (NEXT_STEP) have no reward or ending."""
    wrong = rolling & (outcome.terminated | outcome.truncated | (outcome.rewards != 0.0))
    if wrong.any():
        raise InBandError(
            ErrorCode.ENV_ERROR_CODE_INTERNAL,
            f"step failed: lanes {np.flatnonzero(wrong).tolist()} were to be reset by this step "
            "(NEXT_STEP), yet they have a reward or an ending",
            recoverable=False,
            cuts=True,
        )


def failure(
    what: str, error: BaseException, lanes: Sequence[int] | None, *, harmless: bool = False
) -> InBandError:
    """Return the refusal for an exception, with its traceback; see :class:`InBandError`."""
    return InBandError(
        ErrorCode.ENV_ERROR_CODE_INTERNAL,
        f"{what}: {type(error).__name__}: {error}",
        recoverable=harmless,
        debug_info="".join(traceback.format_exception(error)),
        lanes=lanes,
        cuts=not harmless,
    )
