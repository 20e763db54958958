"""The element types of the wire: one table between numpy and ``DataType``.

All twelve are little-endian on the wire and native in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym._proto.spaces.v1 import types_pb2
from rlmesh_gym.errors import CodecError, UnsupportedSpaceError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


DTYPES: dict[types_pb2.DataType.ValueType, np.dtype[Any]] = {
    number: np.dtype(name.removeprefix("DATA_TYPE_").lower())
    for name, number in types_pb2.DataType.items()
    if number != types_pb2.DATA_TYPE_UNSPECIFIED
}
"""Wire type to native numpy dtype; ``types.proto`` names them as numpy does."""

_WIRE_TYPES = {dtype: data_type for data_type, dtype in DTYPES.items()}


def encode_dtype(dtype: DTypeLike, path: str = "$") -> types_pb2.DataType.ValueType:
    """Return the wire type of what ``numpy.dtype`` takes, in either byte order.

    Raises:
        UnsupportedSpaceError: The wire has no such type, as for ``longdouble`` or ``complex64``.
    """
    native = np.dtype(dtype).newbyteorder("=")
    try:
        return _WIRE_TYPES[native]
    except KeyError:
        names = ", ".join(str(known) for known in _WIRE_TYPES)
        message = f"dtype {native} is not supported by the protocol, which has {names}"
        raise UnsupportedSpaceError(message, path=path) from None


def decode_dtype(data_type: int, path: str = "$") -> np.dtype[Any]:
    """Return the native numpy dtype of a wire type.

    Raises:
        CodecError: The number is 0 (unset) or unknown.
    """
    for known, dtype in DTYPES.items():
        if known == data_type:
            return dtype
    raise CodecError(f"{data_type_name(data_type)} is not an element type", path=path)


def wire_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in the byte order of the wire, whatever that of this machine."""
    return dtype.newbyteorder("<")


def data_type_name(data_type: int) -> str:
    """Return the short name of a wire type for messages, such as ``UINT8``; never raises."""
    value = types_pb2.DataType.DESCRIPTOR.values_by_number.get(data_type)
    return f"dtype {data_type}" if value is None else value.name.removeprefix("DATA_TYPE_")
