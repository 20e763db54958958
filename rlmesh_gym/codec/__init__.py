"""What passes between the ends, in Gymnasium's form and on the wire; no I/O, no state.

Whatever a message holds, reading it gives a value or a ``CodecError`` with the path to the fault.
"""

from __future__ import annotations

from rlmesh_gym.codec.autoreset import as_autoreset_mode, find_autoreset_mode
from rlmesh_gym.codec.contract import (
    EnvContract,
    EnvSpec,
    decode_contract,
    decode_env_spec,
    encode_contract,
    encode_env_spec,
    find_env_id,
    plain_spec,
    split_metadata,
    without_unsupported,
)
from rlmesh_gym.codec.frames import as_frame, as_rgb, decode_png, encode_png
from rlmesh_gym.codec.lane_infos import final_info, lane_info
from rlmesh_gym.codec.metadata import (
    decode_meta_map,
    encode_meta_map,
    encode_meta_value,
    without_misfits,
)
from rlmesh_gym.codec.spaces.dtypes import DTYPES, decode_dtype, encode_dtype
from rlmesh_gym.codec.spaces.limits import MAX_MESSAGE_BYTES
from rlmesh_gym.codec.spaces.space_codec import Leaves, LeavesValue, SpaceCodec, filler_action
from rlmesh_gym.codec.spaces.space_decoding import decode_space
from rlmesh_gym.codec.spaces.space_encoding import encode_space, same_space
from rlmesh_gym.codec.spaces.text import UnrestrictedText
from rlmesh_gym.codec.vector_infos import add_info, join_infos, one_dict

__all__ = [
    "DTYPES",
    "MAX_MESSAGE_BYTES",
    "EnvContract",
    "EnvSpec",
    "Leaves",
    "LeavesValue",
    "SpaceCodec",
    "UnrestrictedText",
    "add_info",
    "as_autoreset_mode",
    "as_frame",
    "as_rgb",
    "decode_contract",
    "decode_dtype",
    "decode_env_spec",
    "decode_meta_map",
    "decode_png",
    "decode_space",
    "encode_contract",
    "encode_dtype",
    "encode_env_spec",
    "encode_meta_map",
    "encode_meta_value",
    "encode_png",
    "encode_space",
    "filler_action",
    "final_info",
    "find_autoreset_mode",
    "find_env_id",
    "join_infos",
    "lane_info",
    "one_dict",
    "plain_spec",
    "same_space",
    "split_metadata",
    "without_misfits",
    "without_unsupported",
]
