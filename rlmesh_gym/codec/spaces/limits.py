"""Bounds that follow from the transport; they keep a small message from costing much memory."""

from __future__ import annotations

import os

from rlmesh_gym.errors import ConfigurationError

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""What both ends of the wire accept; one row of a space, and one row per lane, must fit in it."""

MAX_SPACE_MEMBERS = 4096
"""Spaces in one space, all levels together; each costs half a millisecond, whatever it holds."""

MESSAGE_VARIABLE = "RLMESH_GYM_MAX_MESSAGE_BYTES"
FRAME_VARIABLE = "RLMESH_GYM_MAX_FRAME_PIXELS"
SPACE_VARIABLE = "RLMESH_GYM_MAX_SPACE_BYTES"

_FRAME_PIXELS = 4096 * 2160
_SPACE_BYTES = 48 * 1024 * 1024
_GRPC_BYTES = 2**31 - 1
"""More than this no message of gRPC has."""


def max_message_bytes() -> int:
    """Return the most bytes of one message of a session that this side takes.

    ``RLMESH_GYM_MAX_MESSAGE_BYTES`` if set, else 256 MiB, which is what the released package takes.
    A ConfigurationError says that the variable is no such number, as for the others here.
    """
    return min(limit_from(MESSAGE_VARIABLE, MAX_MESSAGE_BYTES), _GRPC_BYTES)


def max_space_bytes() -> int:
    """Return the most memory that the bounds of one lane's space may take.

    A few bytes can describe a Box of any shape, whose bounds Gymnasium keeps for each element:
    ``RLMESH_GYM_MAX_SPACE_BYTES`` if set, else 48 MiB, which are 5 million float32.
    """
    return limit_from(SPACE_VARIABLE, _SPACE_BYTES)


def max_frame_pixels() -> int:
    """Return the most pixels that a rendered frame may have.

    ``RLMESH_GYM_MAX_FRAME_PIXELS`` if set, else those of 4096 x 2160.
    """
    return limit_from(FRAME_VARIABLE, _FRAME_PIXELS, of="pixels")


def limit_from(variable: str, default: int, *, of: str = "bytes") -> int:
    """Return what an environment variable sets, else the default.

    Raises:
        ConfigurationError: The variable is no whole number of at least 1.
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(
            f"{variable} must be a whole number of {of}, at least 1, got {text!r}"
        )
    return int(text)


# Protobuf parsers give up at 100 nested messages, of which the envelope takes up to five.
MAX_SPACE_DEPTH = 45  # a Dict or Tuple level is two messages: SpaceSpec and DictSpec
MAX_META_DEPTH = 30  # a map level is three: MetaMap, its entry, MetaValue
