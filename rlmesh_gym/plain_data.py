"""Plain JSON data out of whatever an environment or a run holds, and dataclasses back from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

_NON_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def jsonable(value: Any) -> Any:
    """Plain JSON data for ``value``, whatever an environment put into it.

    Arrays become nested lists, numpy scalars Python numbers, dataclasses dicts, bytes hexadecimal
    text, and what JSON does not know its ``repr``. JSON has no NaN: non-finite floats become the
    strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which ``float()`` reads back.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    plain: Any
    if value is None or isinstance(value, (bool, str, int)):
        plain = value
    elif isinstance(value, float):
        plain = value if math.isfinite(value) else _NON_FINITE.get(value, "NaN")
    elif isinstance(value, Mapping):
        plain = {str(key): jsonable(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple, set, frozenset)):
        plain = [jsonable(item) for item in value]
    elif isinstance(value, (bytes, bytearray)):
        plain = bytes(value).hex()
    else:
        plain = repr(value)
    return plain


class PlainData:
    """Base of dataclasses that turn into plain data and back.

    ``_READERS`` says how fields are read that JSON does not hold as they are.
    """

    _READERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps(..., allow_nan=False)`` takes."""
        result: dict[str, Any] = jsonable(self)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`; keys that are not known, of a later version, are ignored.

        Raises:
            TypeError: A field is missing; likewise KeyError and ValueError for what cannot be read.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        given = {item.name: data[item.name] for item in fields if item.name in data}
        unset = dataclasses.MISSING
        needed = (one for one in fields if one.default is unset and one.default_factory is unset)
        missing = [item.name for item in needed if item.name not in given]
        if missing:
            raise TypeError(f"it lacks {', '.join(missing)}")
        for name, read in cls._READERS.items():
            if name in given:
                given[name] = read(given[name])
        return cls(**given)
