"""Requests that make, reset and release a model server's routes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.codec import decode_env_spec
from rlmesh_gym.errors import CodecError, ModelError
from rlmesh_gym.model import MAX_EXECUTION_HORIZON, ModelRoute, ResolveOptions, RouteNeeds
from rlmesh_gym.rpc import EDITION
from rlmesh_gym.server.model.answers import check_needs
from rlmesh_gym.server.model.faults import invalid, model_raised
from rlmesh_gym.server.model.routes import Route
from rlmesh_gym.server.model.service import ModelCall, check_context

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rlmesh_gym.codec import EnvSpec
    from rlmesh_gym.server.model.client import Client
    from rlmesh_gym.server.model.service import ModelService


_logger = logging.getLogger(__name__)


class Resolve(ModelCall):
    """ResolveAdapter: an upsert, which also forgets the steps delivered so far."""

    operation = "resolve_adapter"

    def work(self) -> None:
        """Check, set up, and keep the route."""
        request = self.request
        env_id = check_context(request.context, self.operation)
        edition = request.selected_workflow_edition
        if edition not in ("", EDITION):
            message = f"resolve_adapter: edition {edition!r} is not supported, expected {EDITION}"
            raise invalid(message, recoverable=False, env_id=env_id)
        options = ResolveOptions(request.execution_horizon or 1, request.delivers_history)
        if options.execution_horizon > MAX_EXECUTION_HORIZON:
            message = (
                f"resolve_adapter: execution_horizon must be 1 to {MAX_EXECUTION_HORIZON}, got "
                f"{options.execution_horizon}"
            )
            raise invalid(message, env_id=env_id)
        self._make_room(env_id)
        if not request.HasField("env_spec"):
            message = "resolve_adapter: env_spec is missing; it holds the spaces"
            raise invalid(message, recoverable=False, env_id=env_id)
        try:
            contract = decode_env_spec(request.env_spec)
        except CodecError as error:
            message = f"resolve_adapter: env_spec is malformed: {error}"
            raise invalid(message, recoverable=False, env_id=env_id) from error
        needs = self._set_up(env_id, contract, options)
        route = Route(
            ModelRoute(env_id, contract, options, needs),
            owner=self.client.owner(request.context),
            client=self.client,
        )
        self.service.routes.put(route)
        answer = self.response.resolve_adapter
        answer.SetInParent()
        if needs.native_chunk is not None:
            answer.native_chunk = needs.native_chunk
        if route.wants_history and needs.history is not None:
            answer.history.keys.extend(needs.history.keys)
            answer.history.prunable = needs.history.prunable
            answer.history.SetInParent()
        self.finish()

    def _set_up(self, env_id: str, contract: EnvSpec, options: ResolveOptions) -> RouteNeeds:
        setup = self.service.setup
        if setup is None:
            return RouteNeeds()
        try:
            needs = setup.resolve_adapter(env_id, contract, options)
        except BaseException as error:  # A SystemExit must not end the worker.
            raise model_raised(error, self.operation, env_id=env_id) from error
        try:
            return check_needs(needs, options, env_id)
        except ModelError:
            if self.service.routes.find(env_id) is None:
                setup.release_adapter(env_id)  # It has prepared for a route that does not come.
            raise

    def _make_room(self, env_id: str) -> None:
        routes, connection = self.service.routes, self.client.connection
        if routes.share_is_used(env_id, connection):
            orphan = routes.take_orphan(connection)
            full = f"this connection has {routes.max_share} environments resolved already"
        elif not routes.has_room(env_id):
            orphan = routes.take_orphan()
            full = f"{routes.max_routes} environments are resolved already"
        else:
            return
        if orphan is None:
            message = f"resolve_adapter: {full}; release some, or serve with a higher max_adapters"
            raise ModelError(message, code="BUSY", is_recoverable=True, env_id=env_id)
        release(self.service, self.client, orphan, "its client is gone", lambda _: None)


class _Ending(ModelCall):
    """What ends for a model: every part is told, also after one has failed."""

    _failure: BaseException | None = None

    def attempt(self, call: Callable[..., None], *args: Any) -> None:
        """Call user code; what it raises is told in the end."""
        try:
            call(*args)
        except BaseException as error:  # A SystemExit must not end the thread.
            self._failure = error

    def done(self) -> None:
        """Answer."""
        if self._failure is not None:
            raise model_raised(
                self._failure,
                self.operation,
                env_id=self.request.context.env_id,
                episode_ids=getattr(self.request, "episode_ids", ()),
            ) from self._failure
        getattr(self.response, self.operation).SetInParent()
        self.finish()


class Reset(_Ending):
    """ResetAdapter: episodes are over. Environments that are not resolved have none."""

    operation = "reset_adapter"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.brief: bool = self.service.setup is None

    def work(self) -> None:
        """Reset the route, outside the predict lock."""
        env_id = check_context(self.request.context, self.operation)
        self._episode_ids = tuple(self.request.episode_ids)
        route = self.service.routes.find(env_id)
        if route is None:
            self.done()
            return
        route.forget(self._episode_ids)
        if self.service.setup is not None:
            self.attempt(self.service.setup.reset_adapter, env_id, self._episode_ids)
        self.on_model(self._call)

    def _call(self) -> None:
        begun_ns = time.perf_counter_ns()
        handler = self.service.handler
        self.attempt(handler.reset_adapter, self.request.context.env_id, self._episode_ids)
        self.response.user_ns = time.perf_counter_ns() - begun_ns
        self.service.read_model(self.response)
        self.done()


class Release(_Ending):
    """ReleaseAdapter: drop an environment, with whatever episodes it still had.

    The request's reason goes to the log, for whoever looks after the model.
    """

    operation = "release_adapter"

    def __init__(self, *args: Any, expected: Route | None = None) -> None:
        super().__init__(*args)
        self._expected = expected

    def work(self) -> None:
        """Take the route out; its episodes end with it."""
        env_id = check_context(self.request.context, self.operation)
        if self.service.routes.remove(env_id, self._expected) is None:
            self.done()
            return
        if self.request.reason:
            _logger.info("env %r is released: %s", env_id, self.request.reason)
        self.on_model(self._call)

    def _call(self) -> None:
        self.attempt(self.service.handler.reset_adapter, self.request.context.env_id, ())
        self.on_worker(self._tear_down)

    def _tear_down(self) -> None:
        if self.service.setup is not None:
            self.attempt(self.service.setup.release_adapter, self.request.context.env_id)
        self.done()


def release(
    service: ModelService,
    client: Client,
    route: Route,
    reason: str,
    deliver: Callable[[interaction_pb2.JoinResponse], None],
) -> None:
    """Release a route as its client would, unless it has been resolved anew meanwhile."""
    request = interaction_pb2.JoinRequest()
    request.release_adapter.context.env_id = route.env_id
    request.release_adapter.reason = reason
    received_ns = time.perf_counter_ns()
    service.dispatch(Release(service, client, request, received_ns, deliver, expected=route))
