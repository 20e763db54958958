"""A server's notes about values outside their declared range, as Python warnings."""

from __future__ import annotations

import warnings
from typing import Any

from rlmesh_gym.codec.lane_infos import CONFORMANCE_KEY

__all__ = ["ConformanceLog", "ConformanceWarning"]


class ConformanceWarning(UserWarning):
    """An observation or action left the range that its space declares."""


class ConformanceLog:
    """Turns a server's conformance notes into Python warnings, once per kind and path.

    Args:
        endpoint: Address, for the text.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._seen: set[tuple[str, str]] = set()

    def take_from(self, info: dict[str, Any]) -> None:
        """Remove the reserved key from ``info`` and warn about what it says."""
        notes = info.pop(CONFORMANCE_KEY, None)
        info.pop(f"_{CONFORMANCE_KEY}", None)
        if notes is None:
            return
        for note in notes if isinstance(notes, list) else [notes]:
            self._warn(note)

    def _warn(self, note: Any) -> None:
        if note is None:
            return
        if isinstance(note, list):  # One list per lane, as a batched dict holds them.
            for item in note:
                self._warn(item)
            return
        fields = note if isinstance(note, dict) else {"detail": note}
        kind, path = str(fields.get("kind", "value")), str(fields.get("path", "$"))
        if (kind, path) in self._seen:
            return
        self._seen.add((kind, path))
        warnings.warn(
            f"{self._endpoint}: {kind} at {path}: {fields.get('detail', 'out of its range')}",
            ConformanceWarning,
            stacklevel=2,
        )
