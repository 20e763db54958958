"""Text of peers, made safe to show."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cs", "Cf"}  # Cf holds the marks that turn the writing direction.


def printable(text: str) -> str:
    """Replace control characters, but for line ends and tabs: a terminal would act on them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if char not in "\n\t" and unicodedata.category(char) in _HIDDEN else char
        for char in text
    )
