"""Telling a model which episodes are over, without ever waiting for its answer."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from rlmesh_gym.errors import Error, ModelError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlmesh_gym.policy.any_session import AnyModelSession
    from rlmesh_gym.policy.stats import PolicyStats
    from rlmesh_gym.rpc import AnyPending


_LOGGER = logging.getLogger(__name__)

_REFUSED_KEPT = 1024
"""Refused evictions that are sent again with the next; older ones are dropped."""


class EpisodeEvictions:
    """The episodes that a model knows of, and what it is told about their ends.

    An end goes out once, before any later request, since a stream keeps its order. What a broken
    connection may have lost waits until the model is set up again; what the model refused goes out
    again with the next end.
    """

    def __init__(
        self, session: AnyModelSession, env_id: str, stats: PolicyStats, warn: Callable[[str], None]
    ) -> None:
        self._session = session
        self._warn = warn
        self._was_refused = False
        self._env_id = env_id
        self._stats = stats
        self._live: dict[str, None] = {}
        self._asked: Iterable[str] = ()  # All of these are live.
        self._pending: deque[tuple[Sequence[str], AnyPending]] = deque()
        self._unsent: list[str] = []
        self._refused: deque[str] = deque(maxlen=_REFUSED_KEPT)

    def note_asked(self, episode_ids: Iterable[str]) -> None:
        """Count episodes as known to the model."""
        if episode_ids is not self._asked:  # Most often the same rows are asked about.
            self._live.update(dict.fromkeys(episode_ids))
            self._asked = episode_ids

    def end(self, episode_ids: Iterable[str]) -> None:
        """Tell the model that episodes are over; those that it does not know are left out."""
        known = [episode_id for episode_id in episode_ids if episode_id in self._live]
        if not known:  # No ids would mean all of the env's episodes.
            return
        self._asked = ()
        for episode_id in known:
            del self._live[episode_id]
        self._stats.evicted_episodes += len(known)
        ids = [*self._refused, *known]
        self._refused.clear()
        self._send(ids)

    def keep(self, episode_ids: Iterable[str]) -> None:
        """End all episodes but these."""
        kept = set(episode_ids)
        self.end([episode_id for episode_id in self._live if episode_id not in kept])

    def forget(self, episode_ids: Iterable[str]) -> None:
        """Make the model drop what it keeps of episodes that go on."""
        known = [episode_id for episode_id in episode_ids if episode_id in self._live]
        if known:
            self._send(known)

    def recall(self) -> None:
        """Take back what a broken connection may not have carried."""
        self.collect()
        for episode_ids, _ in self._pending:
            self._unsent.extend(episode_ids)
        self._pending.clear()

    def resend(self) -> None:
        """Send what was kept back; the model is set up."""
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._send(list(dict.fromkeys(unsent)))

    def end_all(self) -> list[str]:
        """Count every episode as over, and return those that the model has to be told of."""
        ids = [*self._unsent, *self._refused, *self._live]
        self._refused.clear()
        self._stats.evicted_episodes += len(self._live)
        self._unsent, self._live, self._asked = [], {}, ()
        return ids

    def collect(self) -> None:
        """Take in the answers that are there; a refusal becomes a warning."""
        while self._pending and self._pending[0][1].done():
            episode_ids, pending = self._pending.popleft()
            try:
                pending.result(0)
            except ModelError as error:  # The model only keeps more than it should.
                self._refused.extend(episode_ids)
                if not self._was_refused:
                    self._was_refused = True
                    self._warn(
                        "the model could not forget episodes that are over; they are sent again, "
                        f"and this is said once: {error}"
                    )
            except Error as error:  # The connection was lost or given up.
                _LOGGER.debug("%s: evicting episodes: %s", self._session.endpoint, error)
                self._unsent.extend(episode_ids)

    def _send(self, episode_ids: Sequence[str]) -> None:
        # On a new stream the model must be set up first, which only the next plan does.
        if not self._session.is_streaming:
            self._unsent.extend(episode_ids)
            return
        try:
            pending = self._session.reset_adapter(self._env_id, episode_ids)
        except RemoteError as error:
            # The connection is gone, which the next plan says as an error.
            _LOGGER.debug("%s: evicting episodes: %s", self._session.endpoint, error)
            self._unsent.extend(episode_ids)
        else:
            self._pending.append((episode_ids, pending))
