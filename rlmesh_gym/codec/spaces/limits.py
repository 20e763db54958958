"""Bounds that follow from the transport; they keep a small message from costing much memory."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""What both ends of the wire accept; one row of a space, and one row per lane, must fit in it."""

# Protobuf parsers give up at 100 nested messages, of which the envelope takes up to five.
MAX_SPACE_DEPTH = 45  # a Dict or Tuple level is two messages: SpaceSpec and DictSpec
MAX_META_DEPTH = 30  # a map level is three: MetaMap, its entry, MetaValue
