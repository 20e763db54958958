"""Bytes of a message in one canonical order, read without protobuf's own parser.

Two encoders may write fields and map entries in different orders, and leave out or spell out the
default key or value of a map entry; everything else has one form only. This reader also refuses
what the schema does not know: unknown fields, wrong wire types, trailing bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

__all__ = ["canonical"]

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64,
    FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_BYTES: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH,
}
_PACKED = {_VARINT, _FIXED64, _FIXED32}


def canonical(data: bytes, descriptor: Descriptor) -> list[tuple[int, Any]]:
    """Return ``(field number, value)`` in order of the numbers, submessages likewise.

    Raises:
        ValueError: The bytes are no message of this type, or hold a field that it does not have.
    """
    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        field = descriptor.fields_by_number.get(number)
        if field is None:
            raise ValueError(f"{descriptor.full_name} has no field {number}")
        expected = _WIRE_TYPES.get(field.type, _VARINT)
        if expected in _PACKED and _is_repeated(field):
            expected = _LENGTH  # proto3 packs numbers
        if wire_type != expected:
            raise ValueError(f"{field.full_name} has wire type {wire_type}")
        value: Any
        if wire_type == _VARINT:
            value, at = _varint(data, at)
        elif wire_type == _FIXED64:
            value, at = data[at : at + 8], at + 8
        else:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
            if len(value) != length:
                raise ValueError(f"{field.full_name} is cut off")
        if field.message_type is not None:
            value = canonical(value, field.message_type)
            if field.message_type.GetOptions().map_entry:
                value = _entry(value, field.message_type)
        fields.append((number, value))
    return _ordered(fields, descriptor)


def _is_repeated(field: FieldDescriptor) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    label: int = getattr(field, "label", 0)  # before protobuf 6
    return label == FieldDescriptor.LABEL_REPEATED


def _entry(fields: list[tuple[int, Any]], descriptor: Descriptor) -> list[tuple[int, Any]]:
    default: Any = b"" if descriptor.fields_by_number[2].message_type is None else []
    return list({1: b"", 2: default, **dict(fields)}.items())


def _ordered(fields: list[tuple[int, Any]], descriptor: Descriptor) -> list[tuple[int, Any]]:
    def rank(item: tuple[int, Any]) -> tuple[int, bytes]:
        number, value = item
        message_type = descriptor.fields_by_number[number].message_type
        if message_type is not None and message_type.GetOptions().map_entry:
            return number, dict(value)[1]
        return number, b""

    return sorted(fields, key=rank)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("cut off in a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
