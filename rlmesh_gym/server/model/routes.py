"""The environments that a model server has resolved, and what it keeps for each."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.server.model.faults import invalid, not_configured

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from rlmesh_gym.model import ModelObservation, ModelRoute
    from rlmesh_gym.server.model.client import Client


_SHARES, _LEAST_SHARE = 8, 16
"""How many connections can fill a table, and how many routes any one may have."""

MAX_TRACKED_EPISODES = 4096
"""Episodes kept per environment when the client never says that they are over."""


class StepTracker:
    """The last step delivered for each episode of one environment, so that none is missed or twice.

    The first step of an episode may have any number; every later one must follow on directly, steps
    in history rows included. A check changes nothing: steps are committed only once the model has
    answered. Calls are serialised by the caller. Of more than ``max_episodes``, the one that was
    silent for longest is forgotten first, and counts as new if it comes back.
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
        """Return the last step of every episode in a request, for :meth:`commit`.

        ``rows`` are step and episode ids of each history frame in the order sent, and last of the
        request's own rows; ``staged`` are steps checked earlier but not committed, as within one
        grouped request. A gap, a repeat or rows out of order are refused.
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


class Route:
    """A resolved environment with its compiled codecs and the steps delivered so far.

    ``owner`` is the session that resolved it, by id or token; its close releases it.
    ``client`` is the one that used it last.
    """

    def __init__(self, model_route: ModelRoute, *, owner: object, client: Client) -> None:
        self.env_id: str = model_route.env_id
        self.model_route = model_route
        self.owner = owner
        self.client = client
        self.last_used = 0
        self.given_up = False
        space = model_route.single_observation_space
        self.observation_codec: SpaceCodec | None = (
            None if space is None else SpaceCodec(space, "observation")
        )
        self.action_codec: SpaceCodec = SpaceCodec(model_route.single_action_space, "action")
        self.tracker: StepTracker | None = StepTracker() if self.wants_history else None

    @property
    def wants_history(self) -> bool:
        """History was asked for by the model and offered by the client."""
        route = self.model_route
        return route.needs.history is not None and route.options.delivers_history

    def check_steps(
        self, observation: ModelObservation, staged: dict[str, int] | None = None
    ) -> None:
        """Check a request's steps, where the route follows them, and add them to those staged."""
        if self.tracker is None:
            return
        if observation.step is None:
            message = "predict: step is missing; a route with observation history needs it"
            raise invalid(message, env_id=self.env_id, episode_ids=observation.episode_ids)
        steps = self.tracker.check(_steps(observation), staged=staged)
        if staged is not None:
            staged.update(steps)

    def deliver(self, observation: ModelObservation) -> None:
        """Take an observation for delivered: the handler has answered it."""
        if self.tracker is not None:
            rows = _steps(observation)
            self.tracker.commit({name: step for step, names in rows for name in names})

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop what is known of episodes that are over; no ids mean all."""
        if self.tracker is not None:
            self.tracker.forget(episode_ids)


def _steps(observation: ModelObservation) -> list[tuple[int, tuple[str, ...]]]:
    rows = [(frame.step, frame.episode_ids) for frame in observation.history]
    return [*rows, (observation.step or 0, observation.episode_ids)]


class RouteTable:
    """All resolved environments of a server, whatever stream they came from.

    Routes survive the stream that made them, so that a client can go on after a lost connection.
    Those whose stream is gone are the ones to give up when the table is full.
    """

    def __init__(self, max_routes: int) -> None:
        self.max_routes = max_routes
        # So that one client does not keep everybody else out; small tables are not divided.
        self.max_share: int = min(max_routes, max(_LEAST_SHARE, max_routes // _SHARES))
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}
        self._clock = itertools.count(1)

    def __len__(self) -> int:
        return len(self._routes)

    def use(self, env_id: str, client: Client) -> Route:
        """Look up a route for a request of this client."""
        route = self._routes.get(env_id)
        if route is None:
            raise not_configured(env_id)
        route.client = client
        route.last_used = next(self._clock)
        return route

    def find(self, env_id: str) -> Route | None:
        """Look up a route without using it."""
        return self._routes.get(env_id)

    def put(self, route: Route) -> None:
        """Add or replace a route."""
        with self._lock:
            route.last_used = next(self._clock)
            self._routes[route.env_id] = route

    def has_room(self, env_id: str) -> bool:
        """The route is there already, or there is space for one more."""
        with self._lock:
            return env_id in self._routes or len(self._routes) < self.max_routes

    def share_is_used(self, env_id: str, connection: str) -> bool:
        """One connection has as many routes as it may, and this would be another."""
        with self._lock:
            own = sum(route.client.connection == connection for route in self._routes.values())
            return env_id not in self._routes and own >= self.max_share

    def remove(self, env_id: str, expected: Route | None = None) -> Route | None:
        """Take a route out, if it is there and, when given, still the expected one."""
        with self._lock:
            route = self._routes.get(env_id)
            if route is None or (expected is not None and route is not expected):
                return None
            return self._routes.pop(env_id)

    def owned_by(self, owners: Collection[object]) -> list[Route]:
        """List the routes that these sessions resolved."""
        with self._lock:
            return [route for route in self._routes.values() if route.owner in owners]

    def take_orphan(self, connection: str | None = None) -> Route | None:
        """Mark the route longest unused among those whose stream is gone, each only once.

        With ``connection`` only among those that came over that one.
        """
        with self._lock:
            orphans = [
                route
                for route in self._routes.values()
                if route.client.over.is_set()
                and not route.given_up
                and connection in (None, route.client.connection)
            ]
            orphan = min(orphans, key=lambda route: route.last_used, default=None)
            if orphan is not None:
                orphan.given_up = True
        return orphan
