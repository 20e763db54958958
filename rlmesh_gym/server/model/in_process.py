"""A model of this process as an endpoint without a wire."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from rlmesh_gym.codec import EnvSpec, LeavesValue
from rlmesh_gym.errors import ModelError
from rlmesh_gym.model import (
    CallableHandler,
    ModelHandler,
    ModelRoute,
    ResolveOptions,
    predict_frames,
)
from rlmesh_gym.rpc import InProcessSession
from rlmesh_gym.server.model.answers import (
    check_needs,
    make_observation,
    prediction_failed,
    read_frames,
)
from rlmesh_gym.server.model.client import Client
from rlmesh_gym.server.model.faults import model_raised, not_configured
from rlmesh_gym.server.model.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.rpc import HistoryRows, InProcessPending


T = TypeVar("T")
_logger = logging.getLogger(__name__)


class InProcessModelSession(InProcessSession):
    """A session with a handler or function here; what :class:`~rlmesh_gym.rpc.ModelSession` is.

    The model stays open when the session is closed.
    """

    batches_lanes = True
    takes_history = True

    def __init__(self, model: ModelHandler | Callable[[Any], Any]) -> None:
        super().__init__()
        self.session_id = ""
        self.handler: ModelHandler | CallableHandler = (
            model if isinstance(model, ModelHandler) else CallableHandler(model)
        )
        self._setup = self.handler.route_setup()
        self._routes: dict[str, Route] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handler!r}>"

    def resolve_adapter(
        self,
        env_id: str,
        env_spec: EnvSpec,
        *,
        execution_horizon: int = 1,
        delivers_history: bool = False,
    ) -> InProcessPending[Any]:
        """Set the model up for an environment; see ``ModelSession.resolve_adapter``."""
        options = ResolveOptions(execution_horizon, delivers_history)

        def work() -> Any:
            found = None
            if self._setup is not None:
                found = self._setup.resolve_adapter(env_id, env_spec, options)
            needs = check_needs(found, options, env_id)
            route = ModelRoute(env_id, env_spec, options, needs)
            self._routes[env_id] = Route(route, owner=self, client=Client())
            return needs

        return self._call("resolve_adapter", work, env_id)

    def predict(
        self,
        env_id: str,
        observation: LeavesValue,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> InProcessPending[Any]:
        """Call the handler; see ``ModelSession.predict``."""
        pending = self._do(
            "predict",
            lambda: self._predict(env_id, observation, episodes, history, step),
            lambda error: self._explain(error, "predict", env_id, [name for name, _ in episodes]),
        )
        pending.held = self.handler.held_state()
        return pending

    def _predict(
        self,
        env_id: str,
        observation: LeavesValue,
        episodes: Sequence[tuple[str, int | None]],
        history: Sequence[HistoryRows],
        step: int | None,
    ) -> SimpleNamespace:
        route = self._routes.get(env_id)
        if route is None:
            raise not_configured(env_id)
        request = make_observation(route, observation, episodes, history=history, step=step)
        try:
            result = predict_frames(self.handler, request)
        except ModelError:
            raise
        except Exception as error:
            raise prediction_failed(error, route, request) from error
        frames = read_frames(route, request, result)
        route.deliver(request)
        # Copies, since the handler may fill its arrays anew while these wait.
        actions = [LeavesValue([leaf.copy() for leaf in leaves]) for leaves in frames]
        return SimpleNamespace(actions=actions, context=None)

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str] = ()) -> InProcessPending[None]:
        """Tell set-up and handler that episodes are over; see ``ModelSession.reset_adapter``."""

        def work() -> None:
            route = self._routes.get(env_id)
            if route is not None:
                route.forget(episode_ids)
            try:
                if self._setup is not None:
                    self._setup.reset_adapter(env_id, episode_ids)
            finally:
                self.handler.reset_adapter(env_id, episode_ids)

        return self._call("reset_adapter", work, env_id, episode_ids)

    def release_adapter(self, env_id: str, reason: str = "") -> InProcessPending[None]:
        """Let the handler drop its episodes, and the set-up the environment."""

        def work() -> None:
            if self._routes.pop(env_id, None) is None:
                return
            _logger.debug("env %r is released: %s", env_id, reason)
            try:
                self.handler.reset_adapter(env_id, ())
            finally:
                if self._setup is not None:
                    self._setup.release_adapter(env_id)

        return self._call("release_adapter", work, env_id)

    def _call(
        self, operation: str, work: Callable[[], T], env_id: str, episode_ids: Sequence[str] = ()
    ) -> InProcessPending[T]:
        return self._do(
            operation, work, lambda error: self._explain(error, operation, env_id, episode_ids)
        )

    def _explain(
        self, error: Exception, operation: str, env_id: str, episode_ids: Sequence[str]
    ) -> ModelError:
        if not isinstance(error, ModelError):
            error = model_raised(error, operation, env_id=env_id, episode_ids=tuple(episode_ids))
        error.endpoint, error.operation = self.endpoint, operation
        return error
