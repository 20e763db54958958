"""Frames of every kind to one form, and through PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from rlmesh_gym.codec import as_frame, as_rgb, decode_png, encode_png
from rlmesh_gym.errors import ConfigurationError, ProtocolError

RGB = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
GREY = RGB[..., 0]
RGBA = np.arange(4 * 5 * 4, dtype=np.uint8).reshape(4, 5, 4)


def read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


FRAMES: dict[str, tuple[Any, Any]] = {
    "rgb": (RGB, RGB),
    "grey": (GREY, GREY),
    "rgba": (RGBA, RGBA),
    "one_channel": (GREY[..., np.newaxis], GREY),
    "batch_of_one": (RGB[np.newaxis], RGB),
    "channels_first": (np.moveaxis(RGB, -1, 0), RGB),
    "one_channel_first": (GREY[np.newaxis], GREY),
    "read_only": (read_only(RGB), RGB),
    "strided": (np.repeat(RGB, 2, axis=1)[:, ::2], RGB),
    "fractions": (np.full((2, 2, 3), 0.5), np.full((2, 2, 3), 128, np.uint8)),
    "float_bytes": (RGB.astype(np.float32), RGB),
    "beyond": (np.array([[-3.0, 300.0], [np.nan, 255.4]]), np.array([[0, 255], [0, 255]])),
    "wide_ints": (np.array([[-1, 256], [7, 255]]), np.array([[0, 255], [7, 255]])),
    "bools": (np.array([[True, False]]), np.array([[255, 0]])),
    "lists": (RGB.tolist(), RGB),
    "four_rows": (RGB[:4, :, :1], GREY),
    "rgba_first": (np.moveaxis(RGBA, -1, 0), RGBA),
    "truths": (GREY > 9, (GREY > 9) * 255),
    "none": (None, None),
    "number": (3, None),
    "one_in_a_tuple": ((RGB,), None),
    "frames": ([RGB, RGB], None),
    "no_frames": ([], None),
    "two_channels": (np.zeros((5, 5, 2)), None),
    "batch_of_two": (np.zeros((2, 4, 5, 3)), None),
    "flat": (np.zeros(3), None),
}


@pytest.mark.parametrize(("frame", "expected"), FRAMES.values(), ids=FRAMES.keys())
def test_frames_become_bytes_and_survive_the_wire(frame: Any, expected: Any) -> None:
    pixels, png = as_frame(frame), encode_png(frame)
    if expected is None:
        assert pixels is None
        assert png is None
        return
    assert pixels is not None
    assert png is not None
    for got in (pixels, decode_png(png)):
        assert got.dtype == np.uint8
        assert got.flags.writeable
        np.testing.assert_array_equal(got, expected)
    assert not np.shares_memory(pixels, np.asarray(frame))
    assert as_rgb(pixels).shape == (*pixels.shape[:2], 3)


@pytest.mark.parametrize(
    ("frame", "error"),
    [("text", TypeError), (np.array([["x", "y"]]), TypeError), (np.zeros((0, 4, 3)), ValueError)],
)
def test_what_is_no_image(frame: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        as_frame(frame)


def claiming(width: int, height: int) -> bytes:
    """A PNG of few bytes that says it is large."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x89PNG", b"GIF89a", encode_png(RGB)[:45]],  # type: ignore[index]
)
def test_what_is_no_png(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="tcp://h:1: render: the frame is not a PNG"):
        decode_png(data, "tcp://h:1")


def test_frames_are_bounded_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    large = claiming(9_000, 9_000)
    with pytest.raises(ProtocolError, match=r"9000 x 9000 .* 8,847,360 .*MAX_FRAME_PIXELS"):
        decode_png(large, "tcp://h:1")
    png = encode_png(np.zeros((30, 40, 3), np.uint8))
    assert png is not None
    assert decode_png(png, most_pixels=1200).shape == (30, 40, 3)
    with pytest.raises(ProtocolError, match="40 x 30"):
        decode_png(png, most_pixels=1199)
    monkeypatch.setenv("RLMESH_GYM_MAX_FRAME_PIXELS", "1000")
    with pytest.raises(ProtocolError, match="1,000"):
        decode_png(png)
    monkeypatch.setenv("RLMESH_GYM_MAX_FRAME_PIXELS", "many")
    with pytest.raises(ConfigurationError, match="whole number of pixels"):
        decode_png(png)
