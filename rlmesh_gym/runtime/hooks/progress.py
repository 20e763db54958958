"""A hook that shows how far a run is, in a terminal or in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from rlmesh_gym.runtime.hooks.table import RuntimeHooks
from rlmesh_gym.runtime.report.formatting import one_line

if TYPE_CHECKING:
    from rlmesh_gym.runtime.hooks import events
    from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot


class ProgressBar(RuntimeHooks):
    """A tqdm bar over episodes, or over steps where the run has no number of episodes.

    Beside it stand the mean return, the share of successes where the env tells them, the median
    latencies of the last window, and a call that hangs.

    Args:
        **options: For ``tqdm``, such as ``disable``, ``file`` or ``leave``.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._bar: Any = None

    def session_started(self, event: events.SessionStarted) -> None:
        """Open the bar."""
        self._counts_steps = event.max_episodes is None
        self._count = self._successes = self._judged = 0
        self._return = 0.0
        self._latency = ""
        total, unit = event.max_episodes, "ep"
        if self._counts_steps:
            total, unit = event.max_steps, "step"
        shown = {
            "total": total,
            "unit": unit,
            "desc": one_line(event.env_id),
            "dynamic_ncols": True,
        }
        self._bar = tqdm(**{**shown, **self._options})

    def step_completed(self, event: events.StepCompleted) -> None:
        """Move on where steps are counted."""
        if self._bar is not None and self._counts_steps:
            self._bar.update(len(event.lanes))

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        """Move on, and take the episode into the means."""
        episode = event.episode
        if self._bar is None or episode.interrupted:
            return
        self._count += 1
        self._return += episode.episode_return
        if episode.success is not None:
            self._judged += 1
            self._successes += episode.success
        self._show()
        if not self._counts_steps:
            self._bar.update()

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        """Show the latencies of the window, and what hangs."""
        if self._bar is None or snapshot.horizon != "window":
            return
        parts = []
        for operation, name in (("env.step", "env"), ("model.predict", "model")):
            row = snapshot.row(operation, "rpc.total")
            if row is not None:
                parts.append(f"{name} {row.p50 * 1e3:.1f} ms")
        if snapshot.pending is not None and snapshot.pending[1] >= snapshot.duration:
            operation, seconds = snapshot.pending
            parts.append(f"waiting {seconds:.0f} s for {operation}")
        self._latency = ", ".join(parts)
        self._show()
        self._bar.refresh()

    def _show(self) -> None:
        parts = [f"return {self._return / self._count:.4g}"] if self._count else []
        if self._judged:
            parts.append(f"success {self._successes / self._judged:.0%}")
        if self._latency:
            parts.append(self._latency)
        self._bar.set_postfix_str(", ".join(parts), refresh=False)

    def session_ended(self, event: events.SessionEnded | events.SessionFailed) -> None:
        """Close the bar."""
        del event
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def session_failed(self, event: events.SessionFailed) -> None:
        """Close the bar."""
        self.session_ended(event)
