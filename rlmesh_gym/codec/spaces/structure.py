"""The Dict and Tuple skeleton of a space: nested values to a flat list of parts and back.

It knows nothing of arrays or bytes; a *part* is whatever stands at a fundamental space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from rlmesh_gym.codec.spaces.cast import describe, sequence_length
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Structure:
    """One node, such as a fundamental space: a single part."""

    def split(self, value: Any, parts: list[Any]) -> None:
        """Append the parts of a nested value, in pre-order; a CodecError where one is missing."""
        parts.append(value)

    def join(self, parts: Iterator[Any]) -> Any:
        """Return the nested value made of the next parts."""
        return next(parts)


class _Dict(Structure):
    def __init__(self, members: Mapping[str, Structure], path: str) -> None:
        self._members = tuple(members.items())
        self._path = path

    def split(self, value: Any, parts: list[Any]) -> None:
        if not isinstance(value, Mapping):
            raise CodecError(f"expected a dict, got {describe(value)}", path=self._path)
        for key, member in self._members:
            try:
                part = value[key]
            except KeyError:
                message = f"the key {key!r} is missing, got {list(value)}"
                raise CodecError(message, path=self._path) from None
            member.split(part, parts)

    def join(self, parts: Iterator[Any]) -> Any:
        return {key: member.join(parts) for key, member in self._members}


class _Tuple(Structure):
    def __init__(self, members: Sequence[Structure], path: str) -> None:
        self._members = tuple(members)
        self._path = path

    def split(self, value: Any, parts: list[Any]) -> None:
        if sequence_length(value) != len(self._members):
            message = f"expected a tuple of length {len(self._members)}, got {describe(value)}"
            raise CodecError(message, path=self._path)
        for member, part in zip(self._members, value, strict=True):
            member.split(part, parts)

    def join(self, parts: Iterator[Any]) -> Any:
        return tuple(member.join(parts) for member in self._members)


def compile_structure(
    space: spaces.Space[Any], path: str, leaves: list[tuple[str, spaces.Space[Any]]]
) -> Structure:
    """Return the skeleton of a space; append its fundamental spaces with their paths, in pre-order.

    What is neither Dict nor Tuple counts as fundamental.
    """
    if isinstance(space, spaces.Dict):
        members = space.spaces.items()
        named = {key: compile_structure(child, f"{path}.{key}", leaves) for key, child in members}
        return _Dict(named, path)
    if isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
        listed = [compile_structure(child, f"{path}[{at}]", leaves) for at, child in children]
        return _Tuple(listed, path)
    leaves.append((path, space))
    return Structure()
