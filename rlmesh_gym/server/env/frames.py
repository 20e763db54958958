"""Rendered frames as PNG. Knows images only, not where they come from."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["encode_frame"]

_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


def encode_frame(frame: Any) -> bytes | None:
    """Encode what ``render()`` returned.

    Args:
        frame: ``(H, W)``, ``(H, W, C)`` or ``(C, H, W)`` with 1, 3 or 4 channels, as an array or
            nested lists. Floats within 0 and 1 are taken for fractions of white; other numbers are
            clipped to 0 and 255. None is no frame, and so is anything of another rank or number of
            channels, such as a list of frames.

    Returns:
        PNG bytes, or None for no frame.

    Raises:
        TypeError: Not numbers.
        ValueError: No pixels.
    """
    if frame is None:
        return None
    if isinstance(frame, (list, tuple)) and (not frame or isinstance(frame[0], np.ndarray)):
        return None
    pixels = np.asarray(frame)
    if pixels.dtype.kind not in "biuf":
        message = f"render returned no image but {type(frame).__name__} of {pixels.dtype}"
        raise TypeError(message)
    if pixels.ndim not in {2, 3}:
        return None
    if pixels.size == 0:
        message = f"render returned an image without pixels, shape {pixels.shape}"
        raise ValueError(message)
    if pixels.ndim == 3:  # noqa: PLR2004 - rows, columns, channels
        if pixels.shape[-1] not in _CHANNELS and pixels.shape[0] in _CHANNELS:
            pixels = np.moveaxis(pixels, 0, -1)
        if pixels.shape[-1] not in _CHANNELS:
            return None
        if pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
    file = BytesIO()
    # Level 1: a frame crosses the wire once; packing it tighter costs more than it saves.
    Image.fromarray(np.ascontiguousarray(_bytes(pixels))).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _bytes(pixels: Any) -> Any:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "f":
        pixels = np.nan_to_num(pixels)
        if pixels.min() >= 0.0 and pixels.max() <= 1.0:
            pixels = np.rint(pixels * 255.0)
    elif pixels.dtype.kind == "b":
        pixels = pixels * 255
    return np.clip(pixels, 0, 255).astype(np.uint8)
