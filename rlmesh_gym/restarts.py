"""How long a lost peer is waited for, and how often it is taken back; for envs and models alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from rlmesh_gym.errors import ConfigurationError, SessionRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from rlmesh_gym.errors import Error


OnFailure: TypeAlias = Literal["raise", "restart"]
"""What becomes of a call whose peer was lost: an error, or a new session."""

RESTART_PATIENCE = 60.0
MAX_RESTARTS = 3

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_SLOT_PATIENCE = 10.0
"""Until a server that is there sees that the lost session is over, and takes another."""


def check_on_failure(value: object) -> None:
    """Raise ``ConfigurationError`` unless it is ``"raise"`` or ``"restart"``."""
    if value not in get_args(OnFailure):
        raise ConfigurationError(f"on_failure must be 'raise' or 'restart', got {value!r}")


def check_patience(value: object) -> None:
    """Raise ``ConfigurationError`` unless it is a number of seconds."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not value >= 0:  # type: ignore[operator]
        raise ConfigurationError(f"restart_patience must be seconds, got {value!r}")


def check_max_restarts(value: object) -> None:
    """Raise ``ConfigurationError`` unless it is a count or None."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if value is not None and not is_count:
        raise ConfigurationError(
            f"max_restarts must be a whole number of at least 0 or None, got {value!r}"
        )


class RestartBudget:
    """Gives a peer up that is lost more than ``max_restarts`` times without progress in between.

    None never gives up.
    """

    def __init__(self, max_restarts: int | None) -> None:
        check_max_restarts(max_restarts)
        self._max_restarts = max_restarts
        # For each peer its progress when it was last lost, and what it was lost by since then.
        self._causes: dict[Hashable, tuple[int, list[str]]] = {}

    def takes_on(self, peer: Hashable, error: Error, progress: int) -> bool:
        """Count a loss by this error; return whether the peer is to be restarted.

        ``progress`` grows with everything that the peer gets done. Where the peer is given up, the
        error tells what it was lost by before.
        """
        before, causes = self._causes.get(peer, (-1, []))
        if progress != before:
            causes = []
        causes.append(str(error))
        self._causes[peer] = progress, causes
        if self._max_restarts is None or len(causes) <= self._max_restarts:
            return True
        history = "; ".join(f"{number}. {cause}" for number, cause in enumerate(causes, 1))
        error.args = (
            f"{error} (given up after {self._max_restarts} restarts without a step in between; the "
            f"causes were: {history})",
        )
        causes.clear()
        return False


class Comeback:
    """One wait for a peer that was lost: growing pauses, and a last try when the time is up."""

    def __init__(self, patience: float, sleep: Callable[[float], None]) -> None:
        self._patience = patience
        self._sleep = sleep
        self._begun = time.monotonic()
        self._pause = _FIRST_PAUSE

    def pause_after(self, error: Error) -> None:
        """Wait a little after a try that failed, or raise its error where the time is up."""
        refused = isinstance(error, SessionRefusedError)
        patience = max(self._patience, _SLOT_PATIENCE) if refused else self._patience
        left = self._begun + patience - time.monotonic()
        if left <= 0:
            raise error
        self._sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
