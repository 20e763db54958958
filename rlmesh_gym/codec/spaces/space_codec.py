"""Values of one space: as nested Gymnasium values, as flat arrays, and as messages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gymnasium import spaces

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec.spaces.checks import legal_member
from rlmesh_gym.codec.spaces.leaves import compile_leaf
from rlmesh_gym.codec.spaces.space_encoding import encode_space
from rlmesh_gym.codec.spaces.structure import compile_structure
from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.spaces.v1 import spaces_pb2
    from rlmesh_gym.codec.spaces.leaves import Leaf


T = TypeVar("T")

Leaves = list["NDArray[Any]"]
"""One array per fundamental space in pre-order, rows first: shape ``(n, *leaf.shape)``, the leaf's
own dtype. A Text leaf is an object array of ``str``, shape ``(n,)``; so every row operation is
numpy indexing."""

_LARGE_ROW_BYTES = 1024
"""Batches of smaller rows never leave the heap."""


class LeavesValue:
    """A batch handed over within one process: what stands where a peer would get a message.

    Args:
        leaves: One array per fundamental space. Whoever receives them copies or only reads.
    """

    __slots__ = ("leaves",)

    def __init__(self, leaves: Leaves) -> None:
        self.leaves: Leaves = leaves


class SpaceCodec:
    """The codec of a *single* space, compiled once; stateless afterwards, so threads may share it.

    A value passes through three forms: *nested* (what Gymnasium's vector environments take and
    return), *leaves* (see ``Leaves``) and the *message*.

    Attributes:
        space: The space given.
        spec: Its description for the wire; not to be changed.
        paths: Path of each leaf.
        row_bytes: Bytes of a row in the message, without Text.
    """

    def __init__(self, space: spaces.Space[Any], path: str = "$") -> None:
        """Compile.

        Args:
            space: Space of one lane.
            path: Prefix of the paths in errors, such as ``"action"``.

        Raises:
            UnsupportedSpaceError: The space, or one inside it, is not supported by the protocol.
        """
        self.space = space
        # Refuses all that has no wire form.
        self.spec: spaces_pb2.SpaceSpec = encode_space(space, path)
        found: list[tuple[str, spaces.Space[Any]]] = []
        self._structure = compile_structure(space, path, found)
        self._leaves = tuple(compile_leaf(child, where) for where, child in found)
        self._is_leaf = not isinstance(space, (spaces.Dict, spaces.Tuple))
        leaves = list(enumerate(self._leaves))
        self._domains = [(at, leaf.domain) for at, leaf in leaves if leaf.domain]
        self._bounds = [(at, leaf.bounds) for at, leaf in leaves if leaf.bounds]
        self._path = path
        self.row_bytes: int = sum(leaf.row_bytes for leaf in self._leaves)
        if any(leaf.row_bytes >= _LARGE_ROW_BYTES for leaf in self._leaves):
            _keep_large_blocks()
        self.paths: tuple[str, ...] = tuple(where for where, _ in found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.space})"

    def __reduce__(self) -> tuple[type[SpaceCodec], tuple[spaces.Space[Any], str]]:
        return SpaceCodec, (self.space, self._path)  # compiled anew: the checks are closures

    # Leaves and messages

    def encode(self, leaves: Leaves, num_rows: int) -> value_pb2.SpaceValue:
        """Return the message of ``num_rows`` rows; it shares no memory with the leaves.

        Raises:
            CodecError: Not the leaves of this space, or text that is not Unicode.
        """
        pairs = self._paired(leaves)
        return value_pb2.SpaceValue(leaves=[leaf.encode(rows, num_rows) for leaf, rows in pairs])

    def buffers(self, leaves: Leaves, num_rows: int) -> list[bytes | memoryview]:
        """Return what stands in the message, leaf by leaf, for those who encode it themselves.

        Views share the leaves' memory where that already has the wire's layout.

        Raises:
            CodecError: As for ``encode``.
        """
        return [leaf.buffer(rows, num_rows) for leaf, rows in self._paired(leaves)]

    def decode(self, value: value_pb2.SpaceValue | LeavesValue, num_rows: int) -> Leaves:
        """Return the leaves of a message as new, writable, C-contiguous arrays.

        Args:
            value: Any message; nothing in it is trusted.
            num_rows: Rows that it must hold.

        Raises:
            CodecError: Another number of leaves or rows, or bytes that do not fit.
        """
        if isinstance(value, LeavesValue):
            return [rows.copy() for rows in self._handed_over(value, num_rows)]
        return [leaf.decode(part, num_rows) for leaf, part in self._paired(value.leaves)]

    def view(self, value: value_pb2.SpaceValue | LeavesValue, num_rows: int) -> Leaves:
        """Return the leaves of a message for reading only, views of its bytes where possible.

        Raises:
            CodecError: As for ``decode``.
        """
        if isinstance(value, LeavesValue):
            return self._handed_over(value, num_rows)
        return [leaf.view(part, num_rows) for leaf, part in self._paired(value.leaves)]

    def _handed_over(self, value: LeavesValue, num_rows: int) -> Leaves:
        for leaf, rows in self._paired(value.leaves):
            leaf.check_rows(rows, num_rows)
        return value.leaves

    def decode_into(
        self,
        value: value_pb2.SpaceValue | LeavesValue,
        out: Leaves,
        start: int,
        num_rows: int,
    ) -> None:
        """Write the rows of a message over rows ``start`` to ``start + num_rows`` of ``out``.

        Fixed-size leaves are copied once, without a temporary.

        Args:
            value: Any message; nothing in it is trusted.
            out: Leaves of this space with enough rows.
            start: First row to overwrite.
            num_rows: Rows that the message must hold.

        Raises:
            CodecError: As for ``decode``; leaves before the one at fault are overwritten then.
        """
        if isinstance(value, LeavesValue):
            for target, given in zip(out, self._handed_over(value, num_rows), strict=True):
                target[start : start + num_rows] = given
            return
        for (leaf, part), rows in zip(self._paired(value.leaves), out, strict=True):
            target = rows[start : start + num_rows]
            leaf.check_rows(target, num_rows)
            leaf.decode_into(part, target)

    def empty(self, num_rows: int) -> Leaves:
        """Return ``num_rows`` rows of zeros and empty strings."""
        return [leaf.empty(num_rows) for leaf in self._leaves]

    # Nested values and leaves

    def flatten(self, batch: Any, num_rows: int) -> Leaves:
        """Take apart a batch in Gymnasium's vector form, the structure of ``batch_space``.

        An array of the right dtype, shape and layout is returned as it is, not copied; all else
        is cast: an integer or bool leaf takes only values that it holds exactly (``1.0`` but not
        ``1.5``), a floating leaf takes every number. Keys that a Dict does not declare are dropped.

        Args:
            batch: Arrays of shape ``(num_rows, *shape)`` in dicts and tuples; for Text, a tuple of
                ``num_rows`` str.
            num_rows: Rows that it must have.

        Raises:
            CodecError: Missing keys, other shapes or number of rows, values that do not fit.
        """
        if self._is_leaf:
            return [self._leaves[0].batch(batch, num_rows)]
        parts: list[Any] = []
        self._structure.split(batch, parts)
        pairs = zip(self._leaves, parts, strict=True)
        return [leaf.batch(part, num_rows) for leaf, part in pairs]

    def unflatten(self, leaves: Leaves, num_rows: int) -> Any:
        """Return leaves in Gymnasium's vector form; the arrays are the leaves themselves.

        Raises:
            CodecError: Not leaves of this space with ``num_rows`` rows.
        """
        if self._is_leaf and len(leaves) == 1:
            self._leaves[0].check_rows(leaves[0], num_rows)
            return self._leaves[0].unbatch(leaves[0])
        parts = []
        for leaf, rows in self._paired(leaves):
            leaf.check_rows(rows, num_rows)
            parts.append(leaf.unbatch(rows))
        return self._structure.join(iter(parts))

    def flatten_rows(self, samples: Sequence[Any]) -> Leaves:
        """Stack single samples, one per lane, into new leaves.

        Looser than ``flatten``, since environments return what they like: axes of length one may be
        missing or too many (``[3]`` for a Discrete, ``(1, 3)`` for ``(3,)``).

        Raises:
            CodecError: A sample does not fit the space.
        """
        if self._is_leaf:
            return [self._leaves[0].stack(samples)]
        columns: list[list[Any]] = [[] for _ in self._leaves]
        for sample in samples:
            parts: list[Any] = []
            self._structure.split(sample, parts)
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        return [leaf.stack(column) for leaf, column in zip(self._leaves, columns, strict=True)]

    def flatten_row(self, sample: Any) -> Leaves:
        """Return one sample as leaves with one row; see ``flatten_rows``."""
        return self.flatten_rows([sample])

    def unflatten_row(self, leaves: Leaves, row: int) -> Any:
        """Return one lane's sample as ``space.sample()`` would give it.

        A Discrete is a numpy integer, other arrays are copies, Text is a ``str``.
        """
        parts = [leaf.sample(rows, row) for leaf, rows in self._paired(leaves)]
        return self._structure.join(iter(parts))

    # Checks

    def out_of_domain(self, leaves: Leaves) -> list[tuple[int, str, str]]:
        """Find values that are never legal: outside a Discrete or MultiDiscrete, or NaN.

        Returns:
            ``(row, path, detail)``, at most one per row and leaf; empty when all is well.
        """
        found: list[tuple[int, str, str]] = []
        for at, check in self._domains:
            if wrong := check(leaves[at]):
                found += [(row, self.paths[at], detail) for row, detail in wrong]
        return found

    def out_of_bounds(self, leaves: Leaves) -> list[tuple[int, str, str]]:
        """Find values that the space does not declare, though an environment may take them.

        These are values outside a Box range, MultiBinary values other than 0 and 1, and Text that
        is too short, too long or of other characters.

        Returns:
            As ``out_of_domain``; NaN is left to that.
        """
        found: list[tuple[int, str, str]] = []
        for at, check in self._bounds:
            if wrong := check(leaves[at]):
                found += [(row, self.paths[at], detail) for row, detail in wrong]
        return found

    def _paired(self, leaves: Sequence[T]) -> zip[tuple[Leaf, T]]:
        if len(leaves) != len(self._leaves):
            message = f"expected {len(self._leaves)} leaves, got {len(leaves)}"
            raise CodecError(message, path=self._path)
        return zip(self._leaves, leaves)  # noqa: B905 - this very moment they were counted


@functools.cache
def _keep_large_blocks() -> None:
    """Have freed blocks of up to 31 MiB kept for reuse, once per process.

    The GNU C library takes the buffers of a batch of images from the system anew at each step, and
    every page is then faulted in: for 64 lanes of (84, 84, 4) uint8, 2.8 ms instead of 0.2 ms to
    encode. It stops doing so for sizes that it has once seen freed, so an untouched block is freed
    here, and up to twice that size stays with the process. Other allocators take no notice.
    """
    np.empty(31 * 1024 * 1024, np.uint8)


def filler_action(codec: SpaceCodec) -> Leaves:
    """Return a legal action for lanes whose action is not used, as leaves with one row."""
    return codec.flatten_row(legal_member(codec.space))
