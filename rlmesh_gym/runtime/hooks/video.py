"""A hook that records chosen episodes, one video file each."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from rlmesh_gym.codec import as_rgb
from rlmesh_gym.errors import ConfigurationError, EnvError
from rlmesh_gym.runtime.hooks.table import RuntimeHooks

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlmesh_gym.runtime.hooks import events


_logger = logging.getLogger(__name__)


class _Recording:
    """Frames of one episode, compressed as they come: an hour of raw frames would fill memory."""

    def __init__(self, index: int, episode_id: str) -> None:
        self.index = index
        self.episode_id = episode_id
        self._frames: list[tuple[bytes, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: NDArray[np.uint8]) -> None:
        data = np.ascontiguousarray(frame, np.uint8)
        self._frames.append((zlib.compress(data.tobytes(), 1), data.shape))

    def __getitem__(self, place: int) -> NDArray[np.uint8]:
        data, shape = self._frames[place]
        return np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)


class VideoRecorder(RuntimeHooks):
    """Records chosen episodes of a run into files ``episode-00003-<id>.gif``.

    Frames come from the env's ``render``, one more call per step of a recorded lane, so the env
    must be made with ``render_mode="rgb_array"``. An env that renders nothing is left alone, with
    one warning.

    Args:
        folder: Where the files go; made if missing.
        episodes: How many of the plan's first episodes to record, or a function of an episode's
            number in the plan.
        kind: ``"gif"`` needs nothing more; ``"mp4"`` needs moviepy.
        fps: Frames per second of the files.
        max_frames: Longest recording; what comes after is left out.

    Attributes:
        paths: Files written so far.

    Raises:
        ConfigurationError: An unknown kind, or a number below 1.
        ImportError: ``"mp4"`` without moviepy; the message says what to install.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        episodes: int | Callable[[int], bool] = 1,
        *,
        kind: Literal["gif", "mp4"] = "gif",
        fps: int = 30,
        max_frames: int = 10_000,
    ) -> None:
        if kind not in {"gif", "mp4"}:
            raise ConfigurationError(f"kind must be 'gif' or 'mp4', got {kind!r}")
        if fps < 1 or max_frames < 1:
            raise ConfigurationError(
                f"fps and max_frames must be at least 1, got {fps} and {max_frames}"
            )
        if kind == "mp4":
            _import_moviepy()
        self.folder: Path = Path(folder)
        self.paths: list[Path] = []
        self._chosen = episodes if callable(episodes) else lambda index: index < episodes
        self._kind = kind
        self._fps = fps
        self._max_frames = max_frames
        self._recordings: dict[int, _Recording] = {}
        self._is_settled_late = False
        self._gave_up = False

    def session_started(self, event: events.SessionStarted) -> None:
        """Learn when an ended lane still shows its last frame."""
        self._is_settled_late = "SAME_STEP" in event.autoreset_mode
        self._recordings = {}
        self._gave_up = False

    def episode_started(self, event: events.EpisodeStarted) -> None:
        """Begin a recording if the episode is chosen."""
        if self._chosen(event.index) and not self._gave_up:
            self._recordings[event.lane] = _Recording(event.index, event.episode_id)
            self._shoot(event.lane, event.render)

    def step_completed(self, event: events.StepCompleted) -> None:
        """Take one frame of each lane that is recorded."""
        if not self._recordings:
            return
        ended = event.terminations | event.truncations
        for lane, over in zip(event.lanes, ended.tolist(), strict=True):
            # Under SAME_STEP an ended lane already shows its next episode.
            if lane in self._recordings and not (over and self._is_settled_late):
                self._shoot(lane, event.render)

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        """Write the recording's file."""
        recording = self._recordings.pop(event.episode.lane, None)
        if recording is not None and len(recording):
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"episode-{recording.index:05d}-{recording.episode_id}.{self._kind}"
            path = self.folder / name
            save = _save_mp4 if self._kind == "mp4" else _save_gif
            save(path, recording, self._fps)
            self.paths.append(path)

    def _shoot(self, lane: int, render: Callable[[int], NDArray[np.uint8] | None]) -> None:
        recording = self._recordings[lane]
        if len(recording) >= self._max_frames:
            return
        try:
            frame = render(lane)
        except EnvError as error:
            if not error.is_recoverable:
                raise
            _logger.warning("lane %d cannot be recorded: %s", lane, error)
            del self._recordings[lane]
            return
        if frame is None:
            _logger.warning(
                "the environment renders nothing, so there is no video; make it with "
                'render_mode="rgb_array"'
            )
            self._gave_up = True
            self._recordings.clear()
            return
        recording.add(as_rgb(frame))


def _save_gif(path: Path, recording: _Recording, fps: int) -> None:
    rest = (Image.fromarray(recording[place]) for place in range(1, len(recording)))
    # The format counts in hundredths of a second; viewers slow down anything below two of them.
    duration = max(20, round(1000 / fps))
    Image.fromarray(recording[0]).save(
        path, save_all=True, append_images=rest, duration=duration, loop=0
    )


def _import_moviepy() -> Any:
    try:
        from moviepy.video.VideoClip import VideoClip  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(
            'mp4 videos need moviepy: pip install "rlmesh-gym[video]", or use kind="gif"'
        ) from error
    return VideoClip


def _save_mp4(path: Path, recording: _Recording, fps: int) -> None:
    last = len(recording) - 1

    def frame_at(seconds: float) -> NDArray[np.uint8]:
        return recording[min(last, round(seconds * fps))]

    clip = _import_moviepy()(frame_at, duration=len(recording) / fps)
    clip.write_videofile(str(path), fps=fps, logger=None)
    clip.close()
