"""Which step of each episode a model has seen, so that no observation is missed or taken twice.

A check changes nothing: a request is refused whole, and its steps are committed only once the model
has answered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.server.model.faults import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MAX_TRACKED_EPISODES", "StepTracker"]

MAX_TRACKED_EPISODES = 4096
"""Episodes kept per environment when the client never says that they are over."""


class StepTracker:
    """The last step delivered for each episode of one environment.

    The first step of an episode may have any number; every later one must follow on directly, steps
    in history rows included. Calls are serialised by the caller.

    Args:
        max_episodes: Bound on the episodes remembered. The one that was silent for longest is
            forgotten first, and counts as new if it comes back.
    """

    def __init__(self, max_episodes: int = MAX_TRACKED_EPISODES) -> None:
        self._max_episodes = max_episodes
        self._last: dict[str, int] = {}  # In order of their last request, oldest first.

    def __len__(self) -> int:
        return len(self._last)

    def check(
        self,
        rows: Iterable[tuple[int, Sequence[str]]],
        *,
        staged: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Check one request's steps.

        Args:
            rows: ``(step, episode ids)`` of each history frame in the order sent, and last of the
                request's own rows.
            staged: Steps checked earlier but not committed, as within one grouped request.

        Returns:
            The last step of every episode in the request, for :meth:`commit`.

        Raises:
            ModelError: INVALID_REQUEST for a gap, a repeat or rows out of order; it names the
                episode, the step that came and the one expected. Nothing has changed.
        """
        steps: dict[str, int] = {}
        last = self._last
        staged = staged or {}
        for step, episode_ids in rows:
            for episode_id in episode_ids:
                before = steps.get(episode_id)
                if before is None:
                    before = staged.get(episode_id, last.get(episode_id))
                if before is not None and step != before + 1:
                    message = (
                        f"episode {episode_id!r}: step {step} came after step {before}, "
                        f"expected {before + 1}; send every replayed step once and in order, or "
                        "resolve the adapter again to start over"
                    )
                    raise invalid(message, episode_ids=(episode_id,))
                steps[episode_id] = step
        return steps

    def commit(self, steps: Mapping[str, int]) -> None:
        """Take checked steps for delivered."""
        for episode_id, step in steps.items():
            self._last.pop(episode_id, None)
            self._last[episode_id] = step
        excess = len(self._last) - max(self._max_episodes, len(steps))
        if excess > 0:
            for episode_id in list(self._last)[:excess]:
                del self._last[episode_id]

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop episodes that are over; no ids mean all."""
        if not episode_ids:
            self._last.clear()
        for episode_id in episode_ids:
            self._last.pop(episode_id, None)
