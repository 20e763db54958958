"""Files of a run: replaced as a whole or left as they were, and read whatever is in them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one at every moment, also on a full disk.

    Raises:
        OSError: It cannot be written; what was there is there still.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def parse_json(data: bytes | str) -> Any:
    """Parse JSON that somebody else may have written.

    Raises:
        ValueError: It is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
