"""Warnings that point at the user's line, however deep in here they arise."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0] + "."


def warn_caller(message: str) -> None:
    """Give a ``UserWarning`` at the line outside this package that led here."""
    level = 2
    frame = sys._getframe(1)  # noqa: SLF001 - what the warnings module itself uses
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
