"""Bounds that follow from the transport; they keep a small message from costing much memory."""

from __future__ import annotations

import os

from rlmesh_gym.errors import ConfigurationError

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""What both ends of the wire accept; one row of a space, and one row per lane, must fit in it."""

MAX_SPACE_MEMBERS = 4096
"""Spaces in one space, all levels together; each costs half a millisecond, whatever it holds."""

FRAME_VARIABLE = "RLMESH_GYM_MAX_FRAME_PIXELS"
_FRAME_PIXELS = 4096 * 2160

SPACE_VARIABLE = "RLMESH_GYM_MAX_SPACE_BYTES"
_SPACE_BYTES = 48 * 1024 * 1024


def max_space_bytes() -> int:
    """Return the most memory that the bounds of one lane's space may take.

    A few bytes can describe a Box of any shape, whose bounds Gymnasium keeps for each element:
    ``RLMESH_GYM_MAX_SPACE_BYTES`` if set, else 48 MiB, which are 5 million float32.

    Raises:
        ConfigurationError: The variable is no whole number of at least 1.
    """
    text = os.environ.get(SPACE_VARIABLE, "").strip()
    if not text:
        return _SPACE_BYTES
    return whole_bytes(SPACE_VARIABLE, text)


def max_frame_pixels() -> int:
    """Return the most pixels that a rendered frame may have.

    ``RLMESH_GYM_MAX_FRAME_PIXELS`` if set, else those of 4096 x 2160.

    Raises:
        ConfigurationError: The variable is no whole number of at least 1.
    """
    text = os.environ.get(FRAME_VARIABLE, "").strip()
    return whole_bytes(FRAME_VARIABLE, text, of="pixels") if text else _FRAME_PIXELS


def whole_bytes(name: str, text: str, *, of: str = "bytes") -> int:
    """Return the number of bytes that a variable's text names, or say that it names none."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"{name} must be a whole number of {of}, at least 1, got {text!r}")
    return int(text)


# Protobuf parsers give up at 100 nested messages, of which the envelope takes up to five.
MAX_SPACE_DEPTH = 45  # a Dict or Tuple level is two messages: SpaceSpec and DictSpec
MAX_META_DEPTH = 30  # a map level is three: MetaMap, its entry, MetaValue
