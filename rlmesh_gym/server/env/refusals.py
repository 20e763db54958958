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
class RefusedError(Exception):
    """A request that is answered with an in-band error.

    Attributes:
        recoverable: The session goes on as if the request had not been made.
        lanes: Lanes that the request named; None for the whole vector.
        cuts: The running episodes of those lanes end here.
    """

    code: ErrorCode.ValueType
    message: str
    recoverable: bool = True
    debug_info: str = ""
    lanes: Sequence[int] | None = None
    cuts: bool = False


def invalid(message: str) -> RefusedError:
    """Return the refusal of a request that names or sends something wrong."""
    return RefusedError(ErrorCode.ENV_ERROR_CODE_INVALID_ACTION, message)


def unsupported(message: str) -> RefusedError:
    """Return the refusal of a request for what this server or environment does not do."""
    return RefusedError(ErrorCode.ENV_ERROR_CODE_UNSUPPORTED, message)


def check_roll(rolling: NDArray[np.bool_], outcome: Outcome) -> None:
    """Check that the lanes that a step was to reset (NEXT_STEP) have no reward or ending."""
    wrong = rolling & (outcome.terminated | outcome.truncated | (outcome.rewards != 0.0))
    if wrong.any():
        raise RefusedError(
            ErrorCode.ENV_ERROR_CODE_INTERNAL,
            f"step failed: lanes {np.flatnonzero(wrong).tolist()} were to be reset by this step "
            "(NEXT_STEP), yet they have a reward or an ending",
            recoverable=False,
            cuts=True,
        )


def failure(
    what: str, error: BaseException, lanes: Sequence[int] | None, *, cuts: bool = True
) -> RefusedError:
    """Return the refusal for an exception, with its traceback; see :class:`RefusedError`."""
    return RefusedError(
        ErrorCode.ENV_ERROR_CODE_INTERNAL,
        f"{what}: {type(error).__name__}: {error}",
        recoverable=False,
        debug_info="".join(traceback.format_exception(error)),
        lanes=lanes,
        cuts=cuts,
    )
