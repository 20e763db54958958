"""Messages with large observations, put together from their parts and taken apart again.

They are an env's answers and the requests to a model. Protobuf copies a field of bytes several
times: on its way out into the message, through a growing buffer, into the result; on its way in
into the message and out of it once more. Here the memory of the observation goes straight into the
encoded message, and comes out as a view of the received one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym._proto.spaces.v1 import value_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LARGE_BYTES = 16 * 1024
"""From here on doing it by hand is quicker."""

_MOST_BYTES = 2**31 - 1
"""What protobuf takes for a message; also what it encodes by itself."""

_LENGTH_DELIMITED = 2
_MAX_VARINT_BITS = 64
_FIXED_BYTES = {1: 8, 5: 4}


class RawValue(NamedTuple):
    """A ``SpaceValue`` that is no message: its leaves are still what they are views of.

    That is an answer as it was received, or the arrays that go out with a request.
    """

    leaves: list[memoryview]


class _Overlay:
    """A message in one of whose fields something else stands."""

    __slots__ = ("_message", "_name", "_value")

    def __init__(self, message: Any, name: str, value: object) -> None:
        self._message = message
        self._name = name
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return self._value if name == self._name else getattr(self._message, name)


def _tag(number: int) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED)


@lru_cache(maxsize=256)  # Messages of one stream come in few sizes.
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


_BODIES = {"reset": interaction_pb2.ResetResponse, "step": interaction_pb2.StepResponse}
_ARM_NAMES = {_number(interaction_pb2.JoinResponse, name): name for name in _BODIES}
_OBSERVATION_NUMBERS = {name: _number(body, "observation") for name, body in _BODIES.items()}
_LEAF_NUMBER = _number(value_pb2.SpaceValue, "leaves")
_ARMS = {name: _tag(number) for number, name in _ARM_NAMES.items()}
_OBSERVATIONS = {name: _tag(number) for name, number in _OBSERVATION_NUMBERS.items()}
_LEAF = _tag(_LEAF_NUMBER)
_ARMS["predict"] = _tag(_number(model_pb2.JoinRequest, "predict"))
_OBSERVATIONS["predict"] = _tag(_number(model_pb2.PredictRequest, "observation"))


def assemble(
    message: interaction_pb2.JoinResponse | model_pb2.JoinRequest,
    leaves: Sequence[bytes | memoryview],
) -> bytes:
    """Encode ``message`` with ``leaves`` as its observation.

    It answers a reset or a step, or asks for a prediction, and has no observation yet; its arm is
    cleared.
    """
    kind = message.WhichOneof("kind") or ""
    rest: bytes = getattr(message, kind).SerializeToString()
    message.ClearField(kind)  # type: ignore[arg-type]
    value: list[bytes | memoryview] = []
    for leaf in leaves:
        value += (_LEAF, _varint(len(leaf)), leaf)
    value_bytes = sum(map(len, value))
    observation = _OBSERVATIONS[kind] + _varint(value_bytes)
    return b"".join(
        [
            message.SerializeToString(),
            _ARMS[kind],
            _varint(len(observation) + value_bytes + len(rest)),
            observation,
            *value,
            rest,
        ]
    )


class LargeRequest:
    """A request to predict whose observation is put in when it is encoded, once."""

    __slots__ = ("_leaves", "_message", "request_id")

    def __init__(self, message: model_pb2.JoinRequest, observation: RawValue) -> None:
        self.request_id = ""
        self._message = message
        self._leaves = observation.leaves

    def SerializeToString(self) -> bytes:  # noqa: N802 - as a message has it
        """Encode it; a ValueError is for what protobuf would not take."""
        if sum(map(len, self._leaves)) > _MOST_BYTES:
            raise ValueError(f"the observation has more than {_MOST_BYTES} bytes")
        self._message.request_id = self.request_id
        return assemble(self._message, self._leaves)


def parse_answer(data: bytes) -> Any:
    """Parse a ``JoinResponse``, whose observation stays in ``data`` where it is large.

    Returns the message, or something that reads like it and whose observation is a
    :class:`RawValue`; raises protobuf's ``DecodeError`` where ``data`` is no such message.
    """
    if len(data) < LARGE_BYTES:
        return interaction_pb2.JoinResponse.FromString(data)
    try:
        parts = _take_apart(memoryview(data))
    except IndexError:  # Cut off, or nothing that makes a message: protobuf says what it is.
        parts = None
    if parts is None:
        return interaction_pb2.JoinResponse.FromString(data)
    kind, leaves, rest = parts
    answer = interaction_pb2.JoinResponse.FromString(rest)
    body = _Overlay(getattr(answer, kind), "observation", RawValue(leaves))
    return _Overlay(answer, kind, body)


def _take_apart(data: memoryview) -> tuple[str, list[memoryview], bytes] | None:
    """Return the arm, the observation's leaves and the answer without them.

    None unless there is exactly one arm with exactly one observation; protobuf would merge several.
    """
    arms = [field for field in _fields(data, 0, len(data)) if field[0] in _ARM_NAMES]
    if len(arms) != 1 or arms[0][1] < 0:
        return None
    number, begin, end, tag = arms[0]
    kind = _ARM_NAMES[number]
    inner = [f for f in _fields(data, begin, end) if f[0] == _OBSERVATION_NUMBERS[kind]]
    if len(inner) != 1 or inner[0][1] < 0:
        return None
    _, first, last, cut = inner[0]
    leaves: list[memoryview] = []
    for number, begin_leaf, end_leaf, _ in _fields(data, first, last):
        if number != _LEAF_NUMBER or begin_leaf < 0:
            return None
        leaves.append(data[begin_leaf:end_leaf])
    body = b"".join((data[begin:cut], data[last:end]))
    rest = b"".join((data[:tag], _ARMS[kind], _varint(len(body)), body, data[end:]))
    return kind, leaves, rest


def _fields(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(number, begin, end, tag)`` of each field, the positions in ``data``.

    ``begin`` is -1 for fields that are not length-delimited. IndexError says: not a message.
    """
    at = begin
    while at < end:
        tag = at
        key, at = _read_varint(data, at)
        wire_type = key & 7
        start = -1
        if wire_type == _LENGTH_DELIMITED:
            size, at = _read_varint(data, at)
            start = at
            at += size
        elif wire_type == 0:
            _, at = _read_varint(data, at)
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            at = end + 1  # Groups, which no message here has.
        if at > end:
            raise IndexError(at)
        yield key >> 3, start, at, tag


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < _MAX_VARINT_BITS:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - seven bits a byte
            return number, at
        shift += 7
    raise IndexError(at)
