"""Text on the wire: a slab with a header of lengths, and the space for "any characters"."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Text

from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence


_DEFAULT_CHARSET = Text(1).character_set
_U64 = np.dtype("<u8")


class UnrestrictedText(Text):
    """A ``Text`` space whose length is bounded but whose characters are not.

    The wire writes Gymnasium's default alphanumeric charset as the empty string, which means that
    any character may come. ``contains`` therefore looks at the length only, while ``sample``,
    ``==`` and the ``character_*`` properties stay those of the default charset: samples are legal
    everywhere, and the decoded space equals the ``Text`` that the environment declared.
    """

    def __init__(
        self, max_length: int, *, min_length: int = 1, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(max_length, min_length=min_length, seed=seed)

    def contains(self, x: Any) -> bool:
        """Tell whether ``x`` is a ``str`` of allowed length, whatever its characters."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnrestrictedText({self.min_length}, {self.max_length})"


def wire_charset(space: Text) -> str:
    """Return the characters of a Text as the wire writes them: sorted, empty for "any"."""
    if isinstance(space, UnrestrictedText) or space.character_set == _DEFAULT_CHARSET:
        return ""
    return "".join(sorted(space.character_set))


def encode_text_slab(texts: Sequence[str], path: str = "$") -> bytes:
    """Return the slab: a u64 count, one u64 byte length per text, then the UTF-8 bodies."""
    joined = "".join(texts)
    if joined.isascii():
        lengths = list(map(len, texts))
        body = joined.encode("ascii")
    else:
        parts = []
        for row, text in enumerate(texts):
            try:
                parts.append(text.encode())
            except UnicodeEncodeError as error:  # noqa: PERF203
                message = f"text of row {row} is not Unicode text: {error}"
                raise CodecError(message, path=path) from None
        lengths = list(map(len, parts))
        body = b"".join(parts)
    return np.array([len(lengths), *lengths], dtype=_U64).tobytes() + body


def decode_text_slab(data: bytes, num_rows: int, path: str = "$") -> list[str]:
    """Read a slab back that must hold ``num_rows`` texts and nothing else."""
    start = 8 * (num_rows + 1)
    if len(data) < start:
        message = f"expected a text header of {start} bytes for {num_rows} rows, got {len(data)}"
        raise CodecError(message, path=path)
    header = np.frombuffer(data, dtype=_U64, count=num_rows + 1).tolist()
    if header[0] != num_rows:
        raise CodecError(f"expected {num_rows} texts, got {header[0]}", path=path)
    # Python integers from here: 2**64 - 1 is an ordinary wrong length, not an overflow.
    offsets = list(accumulate(header[1:], initial=start))
    if offsets[-1] != len(data):
        message = f"expected {offsets[-1] - start} bytes of text, got {len(data) - start}"
        raise CodecError(message, path=path)
    body = data[start:]
    if body.isascii():
        text = body.decode("ascii")
        return [text[begin - start : end - start] for begin, end in pairwise(offsets)]
    try:
        return [data[begin:end].decode("utf-8") for begin, end in pairwise(offsets)]
    except UnicodeDecodeError as error:
        raise CodecError(f"text is not valid UTF-8: {error}", path=path) from None
