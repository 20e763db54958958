"""Turning what callers hand in into arrays of exactly a leaf's dtype.

The rule: an integer or bool element type takes only values that it holds exactly, whatever their
own dtype (``1.0`` and ``True`` pass for ``1``; ``1.5``, or ``300`` for uint8, do not). A floating
type takes every real number and rounds it, as Gymnasium's own vector environments do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_REAL_KINDS = "biuf"


def describe(value: object) -> str:
    """Say in a few words what a value is, for "got ..." in messages; never raises."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, dtype {value.dtype}"
    if isinstance(value, int) and value.bit_length() > 64:  # noqa: PLR2004  # str() may refuse
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, (np.generic, int, float)):
        return f"the {type(value).__name__} {value}"
    if isinstance(value, (list, tuple, str, dict)):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"a {type(value).__name__}"


def sequence_length(value: object) -> int | None:
    """Return the length of a tuple, list or array; None for all else, ``str`` included."""
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, (tuple, list)) else None


def object_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return an array of one axis with these objects, whatever they are."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # At once, numpy would take equal lists for more axes.
        array[index] = value
    return array


def as_array(value: object, dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """Return all that ``numpy.asarray`` takes as an array of the given native dtype.

    Its shape is untouched, and it is the value itself where nothing has to change.
    """
    if isinstance(value, np.ndarray):
        return cast_exact(value, dtype, path)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        # RuntimeError: a torch tensor that needs its gradient. ValueError: ragged lists.
        message = f"expected numbers of dtype {dtype}, got {describe(value)}: {error}"
        raise CodecError(message, path=path) from error
    if dtype.kind in "iu" and array.dtype.kind in "fO":
        # numpy makes float64 of [1, 2**63 + 1] and would round it.
        array = _exact_integers(value, array)
    return cast_exact(array, dtype, path)


def _exact_integers(value: object, array: NDArray[Any]) -> NDArray[Any]:
    objects = np.array(value, dtype=object)
    if not objects.size or not all(isinstance(item, (int, np.integer)) for item in objects.flat):
        return array
    for dtype in (np.int64, np.uint64):
        info = np.iinfo(dtype)
        if info.min <= min(objects.flat) and max(objects.flat) <= info.max:
            return objects.astype(dtype)
    return array


def cast_exact(array: NDArray[Any], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """Cast by the rule of this module, or raise a CodecError; an array of the dtype comes back."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in _REAL_KINDS:
        raise CodecError(f"expected numbers of dtype {dtype}, got dtype {array.dtype}", path=path)
    if dtype.kind != "f" and array.size and not np.can_cast(array.dtype, dtype, "safe"):
        _check_exact(array, dtype, path)
    with np.errstate(over="ignore"):  # 1e300 as float32 is inf, which the bounds check reports
        return array.astype(dtype)


def _check_exact(array: NDArray[Any], dtype: np.dtype[Any], path: str) -> None:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.dtype.kind == "f":
        # Compared as floats: high + 1 is a power of two and exact, high itself need not be.
        whole = np.trunc(array) == array
        inside = (array >= float(low)) & (array < float(high + 1))
        wrong = ~(whole & inside)
    else:
        if low <= int(array.min()) and int(array.max()) <= high:
            return
        wrong = np.array([not low <= int(item) <= high for item in array.flat]).reshape(array.shape)
    if wrong.any():
        value = array[wrong].flat[0]
        raise CodecError(f"expected {dtype} values, got {value} ({array.dtype})", path=path)
