"""Vectorised checks of rows against their space, compiled once per leaf.

*Domain* is what an environment cannot be given at all: a Discrete value outside its range, NaN.
*Bounds* are what a space declares but values often leave: the range of a Box, the length and
characters of a Text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec.spaces.text import wire_charset

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RowCheck", "bounds_check", "domain_check", "text_check"]

RowCheck = Callable[["NDArray[Any]"], "list[tuple[int, str]]"]
"""Rows to ``(row, detail)``, at most one entry per row and none when all is well."""


_FEW = 4096
_FEW_NUMBERS = 256


def _any(mask: NDArray[np.bool_]) -> bool:
    """Return ``mask.any()``, for few values in a quarter of the time."""
    return b"\1" in mask.tobytes() if mask.size <= _FEW else bool(mask.any())


def domain_check(space: spaces.Space[Any]) -> RowCheck | None:
    """Return the check for values that are never legal, or None if there are none.

    Args:
        space: A fundamental space of fixed size.
    """
    if isinstance(space, spaces.Discrete):
        return _integer_check(int(space.start), int(space.start) + int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        start = space.start.astype(np.int64)
        return _integer_check(start, start + space.nvec.astype(np.int64))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return _check_nan
    return None


def _integer_check(low: int | NDArray[Any], end: int | NDArray[Any]) -> RowCheck:
    last = end - 1  # the end itself may be 2**63
    is_scalar = isinstance(low, int)

    def check(rows: NDArray[Any]) -> list[tuple[int, str]]:
        if is_scalar and 0 < rows.size <= _FEW_NUMBERS:
            numbers = rows.tolist()
            if low <= min(numbers) and max(numbers) <= last:
                return []
        wrong = (rows < low) | (rows > last)
        if not _any(wrong):
            return []
        lows, lasts = np.broadcast_to(low, rows.shape[1:]), np.broadcast_to(last, rows.shape[1:])
        found = []
        for row, at in _first_per_row(wrong):
            legal = f"[{lows[at]}, {int(lasts[at]) + 1})"
            found.append((row, f"value {rows[(row, *at)]}{_where(at)} not in range {legal}"))
        return found

    return check


def _check_nan(rows: NDArray[Any]) -> list[tuple[int, str]]:
    wrong = np.isnan(rows)
    if not _any(wrong):
        return []
    return [(row, f"value nan{_where(at)}") for row, at in _first_per_row(wrong)]


def bounds_check(space: spaces.Space[Any]) -> RowCheck | None:
    """Return the check of a Box range, or None if every value of its dtype is inside.

    NaN counts as inside: it is the domain check's.

    Args:
        space: A fundamental space of fixed size; all but Box and MultiBinary give None.
    """
    if isinstance(space, spaces.MultiBinary):
        return _range_check(np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8))
    if not isinstance(space, spaces.Box) or space.dtype.kind == "b":
        return None
    low, high = space.low, space.high
    if low.size == 0:
        return None
    if space.dtype.kind == "f":
        free = np.isneginf(low).all() and np.isposinf(high).all()
    else:
        info = np.iinfo(space.dtype)  # type: ignore[type-var,unused-ignore]
        free = (low == info.min).all() and (high == info.max).all()
    return None if free else _range_check(low, high)


def _range_check(low: NDArray[Any], high: NDArray[Any]) -> RowCheck:
    # One number instead of an image of equal ones: no second memory stream per check.
    first_low, first_high = low.flat[0], high.flat[0]
    uniform = bool((low == first_low).all() and (high == first_high).all())
    lows, highs = (first_low, first_high) if uniform else (low, high)

    def check(rows: NDArray[Any]) -> list[tuple[int, str]]:
        wrong = (rows < lows) | (rows > highs)
        if not _any(wrong):
            return []
        return [
            (row, f"value {rows[(row, *at)]}{_where(at)} not in [{low[at]}, {high[at]}]")
            for row, at in _first_per_row(wrong)
        ]

    return check


def text_check(space: spaces.Text) -> RowCheck:
    """Return the check of a Text's length and characters.

    The default charset means "any character", as it does on the wire.
    """
    charset = frozenset(wire_charset(space))
    shortest, longest = space.min_length, space.max_length

    def check(rows: NDArray[Any]) -> list[tuple[int, str]]:
        found = []
        for row, text in enumerate(rows.tolist()):
            if not shortest <= len(text) <= longest:
                found.append((row, f"text of length {len(text)} not in [{shortest}, {longest}]"))
            elif charset and not charset.issuperset(text):
                strange = next(character for character in text if character not in charset)
                found.append((row, f"character {strange!r} not in the charset"))
        return found

    return check


def _first_per_row(wrong: NDArray[np.bool_]) -> list[tuple[int, tuple[int, ...]]]:
    flat = wrong.reshape(len(wrong), -1)
    found = []
    for row in np.flatnonzero(flat.any(axis=1)).tolist():
        at = np.unravel_index(int(flat[row].argmax()), wrong.shape[1:]) if wrong.ndim > 1 else ()
        found.append((row, tuple(int(axis) for axis in at)))
    return found


def _where(at: tuple[int, ...]) -> str:
    return f" at {list(at)}" if at else ""
