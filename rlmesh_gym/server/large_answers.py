"""Answers with large observations, put together from their parts.

Protobuf copies a field of bytes several times on its way out: into the message, through a growing
buffer, into the result. Here the memory of the observation goes straight into the encoded answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym._proto.spaces.v1 import value_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LARGE_BYTES", "assemble"]

LARGE_BYTES = 16 * 1024
"""From here on putting together by hand is quicker."""

_LENGTH_DELIMITED = 2


def _tag(number: int) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(message: type[object], name: str) -> int:
    descriptor = message.DESCRIPTOR  # type: ignore[attr-defined]
    return int(descriptor.fields_by_name[name].number)


_ARMS = {name: _tag(_number(interaction_pb2.JoinResponse, name)) for name in ("reset", "step")}
_OBSERVATIONS = {
    "reset": _tag(_number(interaction_pb2.ResetResponse, "observation")),
    "step": _tag(_number(interaction_pb2.StepResponse, "observation")),
}
_LEAF = _tag(_number(value_pb2.SpaceValue, "leaves"))


def assemble(response: interaction_pb2.JoinResponse, leaves: Sequence[bytes | memoryview]) -> bytes:
    """Encode ``response`` with ``leaves`` as its observation.

    Args:
        response: The answer to a reset or a step, without observation; its arm is cleared.
        leaves: Bytes of each leaf.
    """
    kind = response.WhichOneof("kind") or ""
    rest: bytes = getattr(response, kind).SerializeToString()
    response.ClearField(kind)  # type: ignore[arg-type]
    value: list[bytes | memoryview] = []
    for leaf in leaves:
        value += (_LEAF, _varint(len(leaf)), leaf)
    value_bytes = sum(map(len, value))
    observation = _OBSERVATIONS[kind] + _varint(value_bytes)
    return b"".join(
        [
            response.SerializeToString(),
            _ARMS[kind],
            _varint(len(observation) + value_bytes + len(rest)),
            observation,
            *value,
            rest,
        ]
    )
