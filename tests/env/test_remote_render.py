from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from PIL import Image

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.env.reading.frames import FrameReader
from rlmesh_gym.errors import EnvError, ProtocolError
from rlmesh_gym.server import EnvServer
from tests.fake_envs import CountingEnv


def makers(count: int) -> list[Any]:
    return [
        lambda lane=lane: CountingEnv(9, base=10.0 * lane, render_mode="rgb_array")
        for lane in range(count)
    ]


@pytest.mark.parametrize("kind", ["lanes", "vector"])
def test_a_frame_per_lane(kind: str) -> None:
    reference = SyncVectorEnv(makers(3))
    served: Any = SyncVectorEnv(makers(2)) if kind == "vector" else [m() for m in makers(2)]
    with (
        EnvServer(served) as first,
        EnvServer(makers(3)[2]()) as second,
        RemoteVectorEnv(
            addresses=[first.address, second.address], autoreset_mode="Disabled"
        ) as envs,
    ):
        assert envs.render_mode == "rgb_array"
        envs.reset()
        reference.reset()
        envs.step([0] * 3)
        reference.step(np.zeros(3, np.int64))
        frames = envs.render()
        assert isinstance(frames, tuple)
        for got, expected in zip(frames, reference.render(), strict=True):
            assert np.array_equal(got, expected)
            assert got.dtype == np.uint8
            assert got.flags.writeable


def test_no_render_mode_no_frames() -> None:
    with EnvServer([CountingEnv(3)]) as server, RemoteVectorEnv(server.address) as envs:
        assert envs.render() is None
        assert envs.call("render") == (None,)
    with EnvServer(CountingEnv(3)) as server, RemoteEnv(server.address) as env:
        assert env.render() is None


class Rendered:
    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self, timeout: float | None) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class RenderingEndpoint:
    """What ``FrameReader`` needs of an endpoint; gives the results in turn."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.num_envs = len(results)
        self.start = 4
        self.address = "tcp://h:1"
        self.session = self

    def render(self, indices: list[int]) -> Rendered:
        return Rendered(self.results[indices[0]])


def png(array: np.ndarray) -> Any:
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG")
    return interaction_pb2.RenderResponse(
        frame=content.getvalue(), format=interaction_pb2.RENDER_FORMAT_PNG
    )


def test_kinds_of_images() -> None:
    images = [
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.arange(18, dtype=np.uint8).reshape(2, 3, 3),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
    ]
    endpoint: Any = RenderingEndpoint(*[png(image) for image in images])
    frames = FrameReader().fetch(endpoint, 1.0)
    for got, expected in zip(frames, images, strict=True):
        assert np.array_equal(got, expected)  # type: ignore[arg-type]


def test_lanes_that_cannot_be_rendered() -> None:
    refusal = EnvError("only index 0", code="INVALID_ACTION", is_recoverable=True)
    endpoint: Any = RenderingEndpoint(png(np.zeros((2, 2, 3), np.uint8)), refusal, refusal)
    reader = FrameReader()
    with pytest.warns(UserWarning, match=r"cannot render lanes \[5, 6\]"):
        frames = reader.fetch(endpoint, 1.0)
    assert frames[0] is not None
    assert frames[1:] == [None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.fetch(endpoint, 1.0)


def test_no_image() -> None:
    reader = FrameReader()
    empty: Any = RenderingEndpoint(interaction_pb2.RenderResponse())
    assert reader.fetch(empty, 1.0) == [None]
    other: Any = RenderingEndpoint(interaction_pb2.RenderResponse(frame=b"GIF"))
    assert reader.fetch(other, 1.0) == [None]
    broken: Any = RenderingEndpoint(
        interaction_pb2.RenderResponse(frame=b"\x89PNG", format=interaction_pb2.RENDER_FORMAT_PNG)
    )
    with pytest.raises(ProtocolError, match="not a PNG"):
        reader.fetch(broken, 1.0)
    header = b"IHDR" + struct.pack(">IIBBBBB", 200_000, 200_000, 8, 2, 0, 0, 0)
    chunks = (header, b"IDAT")
    image = b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )
    bomb: Any = RenderingEndpoint(
        interaction_pb2.RenderResponse(
            frame=b"\x89PNG\r\n\x1a\n" + image, format=interaction_pb2.RENDER_FORMAT_PNG
        )
    )
    with pytest.raises(ProtocolError, match="exceeds limit"):
        reader.fetch(bomb, 1.0)
    fatal: Any = RenderingEndpoint(EnvError("gone", is_recoverable=False))
    with pytest.raises(EnvError):
        reader.fetch(fatal, 1.0)


def test_later_frames_are_about_as_large_as_the_first() -> None:
    reader = FrameReader()
    first: Any = RenderingEndpoint(png(np.zeros((600, 600, 3), np.uint8)))
    assert reader.fetch(first, 1.0)[0] is not None
    for size in (1200, 100):  # Four times as many pixels at most.
        assert reader.fetch(RenderingEndpoint(png(np.zeros((size, size), np.uint8))), 1.0)  # type: ignore[arg-type]
    bomb: Any = RenderingEndpoint(png(np.zeros((1201, 1200), np.uint8)))
    with pytest.raises(ProtocolError, match="1200 x 1201 pixels is larger than the 1,440,000"):
        reader.fetch(bomb, 1.0)
