"""Rendered frames: what ``render()`` returned to one plain form, and that to PNG and back."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rlmesh_gym.codec.spaces.limits import FRAME_VARIABLE, max_frame_pixels
from rlmesh_gym.errors import ProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


def as_frame(frame: Any) -> NDArray[np.uint8] | None:
    """Return what ``render()`` returned as an image.

    Args:
        frame: ``(H, W)``, ``(H, W, C)`` or ``(C, H, W)`` with 1, 3 or 4 channels, also as a batch
            of one, as an array or nested lists. Floats within 0 and 1 are taken for fractions of
            white; other numbers are clipped to 0 and 255. None is no frame, and so is anything of
            another rank or number of channels, such as a list of frames.

    Returns:
        uint8 of shape ``(H, W)``, ``(H, W, 3)`` or ``(H, W, 4)``, a fresh array; None for no frame.

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
        kind = type(frame).__name__
        raise TypeError(f"render must return an image, got {kind} of {pixels.dtype}")
    if pixels.ndim == 4 and len(pixels) == 1:  # noqa: PLR2004 - lanes, rows, columns, channels
        pixels = pixels[0]
    if pixels.ndim not in {2, 3}:
        return None
    if pixels.size == 0:
        raise ValueError(f"render returned an image without pixels, shape {pixels.shape}")
    if pixels.ndim == 3:  # noqa: PLR2004 - rows, columns, channels
        if pixels.shape[-1] not in _CHANNELS and pixels.shape[0] in _CHANNELS:
            pixels = np.moveaxis(pixels, 0, -1)
        if pixels.shape[-1] not in _CHANNELS:
            return None
        if pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
    return np.array(_bytes(pixels), dtype=np.uint8, order="C")


def _bytes(pixels: Any) -> Any:
    if pixels.dtype.kind == "b":
        return np.where(pixels, np.uint8(255), np.uint8(0))
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "f":
        pixels = np.nan_to_num(pixels)
        if pixels.min() >= 0.0 and pixels.max() <= 1.0:
            pixels = np.rint(pixels * 255.0)
    return np.clip(pixels, 0, 255)


def as_rgb(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a frame of :func:`as_frame` with three channels, as videos want it."""
    if frame.ndim == 3 and frame.shape[-1] == 3:  # noqa: PLR2004 - rows, columns, channels
        return frame
    return np.array(Image.fromarray(frame).convert("RGB"))


def encode_png(frame: Any) -> bytes | None:
    """Return what ``render()`` returned as a PNG; None for no frame. See :func:`as_frame`."""
    pixels = as_frame(frame)
    if pixels is None:
        return None
    file = BytesIO()
    # Level 1: a frame crosses the wire once; packing it tighter costs more than it saves.
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def decode_png(
    data: bytes, endpoint: str = "", *, most_pixels: int | None = None
) -> NDArray[np.uint8]:
    """Read a PNG that an endpoint sent.

    A small file can claim any size, so that is looked at before anything is decoded.

    Args:
        data: Any bytes; nothing in them is trusted.
        endpoint: Who sent them, for the error.
        most_pixels: What is expected at most; ``max_frame_pixels()`` where None.

    Returns:
        uint8 of shape ``(H, W)``, ``(H, W, 3)`` or ``(H, W, 4)``, writable.

    Raises:
        ProtocolError: Not a PNG, or one of more pixels.
    """
    most = max_frame_pixels() if most_pixels is None else most_pixels
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as image:
            if image.width * image.height > most:
                size = f"{image.width} x {image.height}"
                raise ProtocolError(  # noqa: TRY301
                    f"render: a frame of {size} pixels is larger than the {most:,} that are "
                    f"expected at most; {FRAME_VARIABLE} allows larger ones",
                    endpoint=endpoint,
                    operation="render",
                )
            plain = image if image.mode in _CHANNELS.values() else image.convert("RGB")
            return np.array(plain, dtype=np.uint8)
    except ProtocolError:
        raise
    except Exception as error:  # Pillow has many for what is no image.
        raise ProtocolError(
            f"render: the frame is not a PNG image: {error}", endpoint=endpoint, operation="render"
        ) from error
