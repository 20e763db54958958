"""Rendered frames: asked for lane by lane, decoded from PNG."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.codec import decode_png
from rlmesh_gym.codec.spaces.limits import max_frame_pixels
from rlmesh_gym.errors import EnvError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlmesh_gym.env.drive.endpoint import Endpoint


_WINDOW = 16
"""Requests in flight: enough to hide the way, far from what makes servers drop a connection."""


_FREE_PIXELS = 1024 * 1024
_GROWTH = 4
"""How much larger than an endpoint's first frame later ones may be, or a megapixel."""


class FrameReader:
    """Fetches frames, and remembers what it has complained about."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._most_pixels: dict[str, int] = {}  # By endpoint, from its first frame on.

    def fetch(self, endpoint: Endpoint, timeout: float | None) -> list[NDArray[np.uint8] | None]:
        """Return one frame per lane of an endpoint.

        A lane that it cannot render gives None, with one Python warning per endpoint.
        """
        frames: list[NDArray[np.uint8] | None] = []
        refused: dict[int, EnvError] = {}
        for begin in range(0, endpoint.num_envs, _WINDOW):
            indices = range(begin, min(begin + _WINDOW, endpoint.num_envs))
            pendings = [endpoint.session.render([index]) for index in indices]
            for index, pending in zip(indices, pendings, strict=True):
                try:
                    frames.append(self._decode(pending.result(timeout), endpoint))
                except EnvError as error:  # noqa: PERF203 - lane by lane
                    # A render that failed is told; a lane that has no frames is passed over.
                    if not error.is_recoverable or error.code == "INTERNAL":
                        raise
                    refused[endpoint.start + index] = error
                    frames.append(None)
        if refused and endpoint.address not in self._warned:
            self._warned.add(endpoint.address)
            reason = next(iter(refused.values()))
            lanes = f"{endpoint.address} cannot render lanes {list(refused)}"
            message = f"render: {lanes}, their frames are None: {reason}"
            warnings.warn(message, UserWarning, stacklevel=3)
        return frames

    def fetch_lane(
        self, endpoint: Endpoint, index: int, timeout: float | None
    ) -> NDArray[np.uint8] | None:
        """Return the frame of one lane of an endpoint; None where there is none."""
        return self._decode(endpoint.session.render([index]).result(timeout), endpoint)

    def _decode(self, response: Any, endpoint: Endpoint) -> NDArray[np.uint8] | None:
        if not isinstance(response, interaction_pb2.RenderResponse):
            return response  # type: ignore[no-any-return]  # A frame of this process.
        if not response.HasField("frame") or response.format != interaction_pb2.RENDER_FORMAT_PNG:
            return None
        address = endpoint.address
        frame = decode_png(response.frame, address, most_pixels=self._most_pixels.get(address))
        if address not in self._most_pixels:
            pixels = frame.shape[0] * frame.shape[1]
            self._most_pixels[address] = min(
                max_frame_pixels(), max(_FREE_PIXELS, _GROWTH * pixels)
            )
        return frame
