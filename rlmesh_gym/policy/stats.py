"""What a policy has done so far, in counts and milliseconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_PHASES = ("encode", "wait", "endpoint", "model", "decode", "replay")


@dataclass
class PolicyStats:
    """Counts since the policy was made.

    Every row of every step is one of four: planned by a request of this very step, replayed,
    idle, or (with ``prefetch``) the first of a chunk that was asked for earlier, which counts as
    replayed.

    Attributes:
        steps: Calls of the policy that returned actions.
        calls: Predict requests sent, one-row requests each by itself.
        rows: Rows in them: one per lane and plan.
        replayed_rows: Actions given out without a request for them in the same step.
        idle_rows: Filler actions for lanes without a running episode.
        prefetch_calls: Requests among ``calls`` that were sent ahead.
        dropped_frames: Frames of prefetched chunks that came too late to be used.
        dropped_rows: Prefetched rows thrown away because their episode had ended.
        history_rows: Observations of replayed steps handed over.
        evicted_episodes: Ended episodes that the model was told to forget.
        milliseconds: Time by phase: ``encode`` and ``decode`` of messages, ``wait`` for answers
            with nothing else to do, ``replay`` (picking rows and frames), and as reported by
            the endpoint ``endpoint`` (its whole time) and ``model`` (the model's own); the latter
            two go on while this side does not wait.
    """

    steps: int = 0
    calls: int = 0
    rows: int = 0
    replayed_rows: int = 0
    idle_rows: int = 0
    prefetch_calls: int = 0
    dropped_frames: int = 0
    dropped_rows: int = 0
    history_rows: int = 0
    evicted_episodes: int = 0
    milliseconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain numbers in dicts, a copy."""
        return asdict(self)
