"""What a handler returns, as leaves of the action space; what can be read two ways is refused."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import CodecError
from rlmesh_gym.model import PredictFrames

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rlmesh_gym.codec import Leaves


_BUILT_IN = 1
"""``isbuiltin`` of numpy's own dtypes; those of other packages, such as bfloat16, say 2."""


def read_batch(codec: SpaceCodec, batch: Any, num_rows: int) -> Leaves:
    """Read one batch of actions, in vector form or as a list with one value per row.

    For a Tuple space a tuple is the vector form, one batch per member, and a list of tuples has one
    per row. The leaves may share memory with the batch.

    Raises:
        CodecError: It does not fit the space, can be read in two ways, or is no batch at all.
    """
    if not isinstance(batch, np.ndarray):
        _refuse_what_never_fits(batch)
    space = codec.space
    try:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            return _read_composite(codec, batch, num_rows)
        return codec.flatten(_plain(batch), num_rows)
    except CodecError as error:
        hint = _hint(space, batch, num_rows)
        if not hint:
            raise
        raise CodecError(
            f"{str(error).removeprefix(f'{error.path}: ')}; {hint}", path=error.path
        ) from error


def detached(result: Any) -> Any:
    """Copy the arrays, of whatever library, of frames or a batch, so that their owner may go on."""
    if isinstance(result, PredictFrames):
        return PredictFrames(detached(result.actions), [detached(batch) for batch in result.replay])
    return _each(result, np.array)


def _plain(value: Any) -> Any:
    """Turn arrays of bfloat16, which neither numpy nor the wire has, into float32."""
    return _each(value, lambda array: array)


def _each(value: Any, keep: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.isbuiltin == _BUILT_IN:
        return keep(value)
    if isinstance(value, Mapping):
        return {key: _each(part, keep) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_each(part, keep) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return value
    if "bfloat16" in str(getattr(value, "dtype", None)):
        # A torch tensor cannot give numpy its bfloat16; other libraries bring the dtype along.
        wide = value.float() if hasattr(value, "float") else np.asarray(value).astype(np.float32)
        return keep(wide)
    return keep(value)


def _read_composite(codec: SpaceCodec, batch: Any, num_rows: int) -> Leaves:
    space = codec.space
    if isinstance(space, spaces.Dict) and isinstance(batch, Mapping):
        members = {
            key: _member(child, batch[key], num_rows)
            for key, child in space.spaces.items()
            if key in batch
        }
        return codec.flatten({**batch, **members}, num_rows)
    if isinstance(space, spaces.Tuple) and isinstance(batch, tuple):
        if len(batch) == len(space.spaces):
            batch = tuple(
                _member(child, part, num_rows)
                for child, part in zip(space.spaces, batch, strict=True)
            )
        return codec.flatten(batch, num_rows)
    rows = _sequence(batch)
    if rows is None:
        return codec.flatten(_plain(batch), num_rows)
    return _read_sequence(codec, _plain(rows), num_rows)


def _member(space: spaces.Space[Any], batch: Any, num_rows: int) -> Any:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        codec = SpaceCodec(space)
        return codec.unflatten(read_batch(codec, batch, num_rows), num_rows)
    return _plain(batch)


def _sequence(batch: Any) -> list[Any] | None:
    is_objects = isinstance(batch, np.ndarray) and batch.dtype == object and batch.ndim == 1
    return list(batch) if is_objects or isinstance(batch, (list, tuple)) else None


def _read_sequence(codec: SpaceCodec, values: Sequence[Any], num_rows: int) -> Leaves:
    """Read values that may be one per row, or (of a Tuple space) one batch per member."""
    by_row = _attempt(lambda: codec.flatten_rows(values)) if len(values) == num_rows else None
    if isinstance(codec.space, spaces.Dict):
        # A sequence is never the vector form of a Dict; without rows this says what is wrong.
        return by_row if by_row is not None else codec.flatten_rows(values)
    by_member = _attempt(lambda: codec.flatten(values, num_rows))
    if by_row is None:
        return by_member if by_member is not None else codec.flatten(values, num_rows)
    if by_member is None or all(isinstance(value, tuple) for value in values):
        return by_row
    if all(map(np.array_equal, by_row, by_member)):
        return by_row
    raise CodecError(
        f"a list of {num_rows} can be one value per row or one batch per member of the Tuple space",
        path="action",
    )


def _attempt(read: Any) -> Leaves | None:
    try:
        leaves: Leaves = read()
    except CodecError:
        return None
    return leaves


def _refuse_what_never_fits(batch: Any) -> None:
    if batch is None:
        came, cure = "None", "return the batch of actions"
    elif inspect.isawaitable(batch):
        if inspect.iscoroutine(batch):
            batch.close()  # Else Python complains of one that nobody awaited.
        came, cure = f"a {type(batch).__name__}", "write a plain def that returns the actions"
    elif inspect.isgenerator(batch) or inspect.isasyncgen(batch):
        came = "a generator"
        cure = "return the actions instead of yielding them, or PredictFrames for several steps"
    else:
        return
    raise CodecError(f"the model returned {came}; {cure}", path="action")


_AS_FRAMES = "PredictFrames(chunk[:, 0], [chunk[:, j] for j in range(1, chunk.shape[1])])"


def _hint(space: spaces.Space[Any], batch: Any, num_rows: int) -> str:
    """Say what to write instead, where that can be told from the form."""
    hint = ""
    if isinstance(batch, PredictFrames):
        hint = "the actions and the replay of PredictFrames are plain batches"
    elif isinstance(batch, Mapping) and not isinstance(space, spaces.Dict):
        hint = "return the actions themselves, as in result['actions'], not a dict"
    elif isinstance(batch, Mapping) and "actions" in batch:
        hint = "return what stands under 'actions', with the keys of the action space"
    elif isinstance(space, spaces.Tuple):
        hint = (
            "write a tuple with one batch per member, or a list of tuples with one per row, such "
            "as [(1, 0), (3, 2)]"
        )
    elif space.shape is not None:
        shape = tuple(getattr(batch, "shape", ()))
        if len(shape) == len(space.shape) + 2 and shape == (num_rows, shape[1], *space.shape):
            hint = f"a chunk of several steps is returned as {_AS_FRAMES}"
    return hint
