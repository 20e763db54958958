"""What an endpoint promises about its environment: spaces, metadata, lanes, autoreset mode."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.core.v1 import env_contract_pb2
from rlmesh_gym.codec.autoreset import MODE_KEY, mode_named
from rlmesh_gym.codec.metadata import decode_meta_map, encode_meta_map, encode_meta_value
from rlmesh_gym.codec.spaces.limits import (
    MESSAGE_VARIABLE,
    SPACE_VARIABLE,
    max_message_bytes,
    max_space_bytes,
)
from rlmesh_gym.codec.spaces.space_decoding import decode_space
from rlmesh_gym.codec.spaces.space_encoding import encode_space, plain_integers
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping


_WIRE_MODES = {
    mode: env_contract_pb2.AutoresetMode.Value(f"AUTORESET_MODE_{mode.name}")
    for mode in AutoresetMode
}
_MODES = {number: mode for mode, number in _WIRE_MODES.items()}
_LANE_BYTES = 512
"""What a lane costs its client, whatever it observes."""


_UNNAMED = "UnknownEnv-v1"
"""What the released package calls an environment without a spec, too."""


def find_env_id(env: Any) -> str:
    """Return the name of an environment, a vector of them or a wrapper, whatever it was made by.

    What runs elsewhere has the name that its endpoint tells, in place of the id that stands for all
    remote environments. A vector that was built from functions has no spec; its environments have.
    """
    base = getattr(env, "unwrapped", env)
    told = getattr(getattr(base, "contract", None), "env_id", "")
    if told:
        return str(told)
    inner = getattr(base, "envs", None)
    first = inner[:1] if isinstance(inner, (list, tuple)) else ()
    specs = (getattr(one, "spec", None) for one in (env, *first))
    return str(next((spec.id for spec in specs if spec is not None), _UNNAMED))


@dataclass(frozen=True)
class EnvSpec:
    """One lane of an environment, as a policy sees it.

    Attributes:
        env_id: Name of the environment; may be empty.
        single_observation_space: What the lane observes; None if the message has none.
        single_action_space: What the lane can do.
        metadata: The environment's metadata, plain Python values.
    """

    env_id: str
    single_observation_space: spaces.Space[Any] | None
    single_action_space: spaces.Space[Any]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvContract:
    """An environment endpoint.

    Attributes:
        env_id: Name of the environment; may be empty.
        single_observation_space: Space of one lane's observation.
        single_action_space: Space of one lane's action.
        metadata: The environment's metadata; ``metadata["autoreset_mode"]``, where there is one,
            is an ``AutoresetMode`` as Gymnasium wants it.
        num_envs: Number of lanes, at least 1.
        render_mode: Gymnasium's render mode, None if it does not render.
        autoreset_mode: What happens after the end of an episode; ``DISABLED`` for lanes that the
            client resets.
    """

    env_id: str
    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    num_envs: int = 1
    render_mode: str | None = None
    autoreset_mode: AutoresetMode = AutoresetMode.DISABLED


def split_metadata(metadata: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[Any, str]]:
    """Tell what of an environment's metadata the wire can carry.

    Metadata is free text about the environment; an odd entry is no reason to do without it.

    Returns:
        The entries that have a wire form, and of the others the reason why not.
    """
    kept: dict[str, Any] = {}
    left_out: dict[Any, str] = {}
    for key, value in metadata.items():
        if not isinstance(key, str):
            left_out[key] = "its key is not a str"
            continue
        try:
            encode_meta_value(value)
        except CodecError as error:
            left_out[key] = str(error)
        else:
            kept[key] = value
    return kept, left_out


def without_unsupported(contract: EnvContract) -> EnvContract:
    """Return the contract without metadata entries that have no wire form, warning of each."""
    kept, left_out = split_metadata(contract.metadata)
    for key, reason in left_out.items():
        warnings.warn(
            f"metadata[{key!r}] is not sent to clients: {reason}", UserWarning, stacklevel=2
        )
    return replace(contract, metadata=kept) if left_out else contract


def encode_env_spec(
    env_id: str,
    single_observation_space: spaces.Space[Any] | None,
    single_action_space: spaces.Space[Any],
    metadata: Mapping[str, Any] | None = None,
) -> env_contract_pb2.EnvSpec:
    """Return the message of one lane's spaces and metadata.

    Raises:
        UnsupportedSpaceError: A space is not supported by the protocol; the path begins with
            ``observation_space`` or ``action_space``.
        CodecError: The metadata has none.
    """
    message = env_contract_pb2.EnvSpec(
        id=_unicode(env_id, "env_id"),
        action_space=encode_space(single_action_space, "action_space"),
        metadata=encode_meta_map(metadata or {}, "metadata"),
    )
    if single_observation_space is not None:
        observation_space = encode_space(single_observation_space, "observation_space")
        message.observation_space.CopyFrom(observation_space)
    return message


def decode_env_spec(message: env_contract_pb2.EnvSpec) -> EnvSpec:
    """Read the message of one lane's spaces and metadata.

    Raises:
        CodecError: No action space, or a part that is malformed.
    """
    if not message.HasField("action_space"):
        raise CodecError("the env spec has no action space", path="action_space")
    observation_space = None
    if message.HasField("observation_space"):
        observation_space = decode_space(message.observation_space, "observation_space")
    return EnvSpec(
        env_id=message.id,
        single_observation_space=observation_space,
        single_action_space=decode_space(message.action_space, "action_space"),
        metadata=decode_meta_map(message.metadata, "metadata"),
    )


def encode_contract(contract: EnvContract) -> env_contract_pb2.EnvContract:
    """Return the message of a contract.

    Raises:
        UnsupportedSpaceError: A space is not supported by the protocol.
        CodecError: The metadata has none, or ``num_envs`` is not positive.
    """
    if not 1 <= contract.num_envs < 2**32:
        raise CodecError(f"expected a number of lanes, got {contract.num_envs}", path="num_envs")
    return env_contract_pb2.EnvContract(
        spec=encode_env_spec(
            contract.env_id,
            contract.single_observation_space,
            contract.single_action_space,
            contract.metadata,
        ),
        num_envs=contract.num_envs,
        render_mode=_unicode(contract.render_mode or "", "render_mode"),
        autoreset_mode=_WIRE_MODES[contract.autoreset_mode],
    )


def decode_contract(message: env_contract_pb2.EnvContract) -> EnvContract:
    """Read the message of a contract.

    ``num_envs`` 0 counts as 1. An unset autoreset mode is read from the text
    ``metadata["autoreset_mode"]`` if that names one; without it the endpoint promises nothing, and
    ``DISABLED`` is what that means.

    Raises:
        CodecError: A space is missing or malformed, the autoreset mode is unknown, or there are
            more lanes than one message can observe.
    """
    spec = decode_env_spec(message.spec)
    if spec.single_observation_space is None:
        raise CodecError("the contract has no observation space", path="observation_space")
    num_envs = message.num_envs or 1
    _check_lanes(num_envs, spec.single_observation_space, spec.single_action_space)
    metadata = spec.metadata
    if message.autoreset_mode == env_contract_pb2.AUTORESET_MODE_UNSPECIFIED:
        mode = mode_named(metadata.get(MODE_KEY)) or AutoresetMode.DISABLED
    elif message.autoreset_mode in _MODES:
        mode = _MODES[message.autoreset_mode]
    else:
        detail = f"{message.autoreset_mode} is not an autoreset mode"
        raise CodecError(detail, path="autoreset_mode")
    if MODE_KEY in metadata:
        metadata[MODE_KEY] = mode
    return EnvContract(
        **vars(spec),
        num_envs=num_envs,
        render_mode=message.render_mode or None,
        autoreset_mode=mode,
    )


def plain_spec(spec: env_contract_pb2.EnvSpec) -> None:
    """Change the spaces of a message into the form of the released package.

    Raises:
        UnsupportedSpaceError: A space has none.
    """
    for name in ("action_space", "observation_space"):
        if spec.HasField(name):
            plain_integers(getattr(spec, name), name)


def _unicode(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CodecError(f"not Unicode text: {error}", path=path) from None
    return text


def _check_lanes(num_envs: int, *spaces_of_one: spaces.Space[Any]) -> None:
    """Refuse more lanes than one message can hold, or than a few bytes may make anybody set up."""
    most = max_space_bytes() // _LANE_BYTES
    if num_envs > most:
        detail = f"{num_envs} lanes, at most {most} are expected; set {SPACE_VARIABLE} to take more"
        raise CodecError(detail, path="num_envs")
    row_bytes = max(map(_row_bytes, spaces_of_one))
    if num_envs * row_bytes > max_message_bytes():
        detail = (
            f"{num_envs} lanes of {row_bytes} bytes do not fit in one message, which has at most "
            f"{max_message_bytes()} bytes; set {MESSAGE_VARIABLE} to take more"
        )
        raise CodecError(detail, path="num_envs")


def _row_bytes(space: spaces.Space[Any]) -> int:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        members = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_row_bytes, members))
    if isinstance(space, spaces.Text):
        return 8
    return np.dtype(space.dtype).itemsize * math.prod(space.shape or ())
