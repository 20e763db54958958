"""Gymnasium spaces, values and metadata to the messages of the wire and back; no I/O, no state.

Whatever a message holds, reading it gives a value or a ``CodecError`` with the path to the fault.
"""

from __future__ import annotations

from rlmesh_gym.codec.contract import (
    EnvContract,
    EnvSpec,
    decode_contract,
    decode_env_spec,
    encode_contract,
    encode_env_spec,
    split_metadata,
)
from rlmesh_gym.codec.lane_info import is_mask, lane_info
from rlmesh_gym.codec.metadata import (
    decode_meta_map,
    decode_meta_value,
    encode_meta_map,
    encode_meta_value,
)
from rlmesh_gym.codec.spaces.dtypes import DTYPES, decode_dtype, encode_dtype
from rlmesh_gym.codec.spaces.limits import MAX_MESSAGE_BYTES
from rlmesh_gym.codec.spaces.space_codec import Leaves, LeavesValue, SpaceCodec
from rlmesh_gym.codec.spaces.space_decoding import decode_space
from rlmesh_gym.codec.spaces.space_encoding import encode_space
from rlmesh_gym.codec.spaces.text import UnrestrictedText

__all__ = [
    "DTYPES",
    "MAX_MESSAGE_BYTES",
    "EnvContract",
    "EnvSpec",
    "Leaves",
    "LeavesValue",
    "SpaceCodec",
    "UnrestrictedText",
    "decode_contract",
    "decode_dtype",
    "decode_env_spec",
    "decode_meta_map",
    "decode_meta_value",
    "decode_space",
    "encode_contract",
    "encode_dtype",
    "encode_env_spec",
    "encode_meta_map",
    "encode_meta_value",
    "encode_space",
    "is_mask",
    "lane_info",
    "split_metadata",
]
