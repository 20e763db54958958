"""Requests that make, reset and release a model server's routes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlmesh_gym.codec import decode_env_spec
from rlmesh_gym.errors import CodecError, ModelError
from rlmesh_gym.model import (
    MAX_EXECUTION_HORIZON,
    ModelRoute,
    ResolveOptions,
    RouteNeeds,
)
from rlmesh_gym.rpc import EDITION
from rlmesh_gym.server.model.codec import check_context
from rlmesh_gym.server.model.exchange import Exchange
from rlmesh_gym.server.model.faults import invalid, model_raised, unsupported
from rlmesh_gym.server.model.routes import Route

if TYPE_CHECKING:
    from typing import Any

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.codec import EnvSpec

__all__ = ["Release", "Reset", "Resolve"]


class Resolve(Exchange):
    """ResolveAdapter: an upsert, which also forgets the steps delivered so far."""

    operation = "resolve_adapter"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.keys = (self.envelope.resolve_adapter.context.env_id,)

    def work(self) -> None:
        """Check, set up, and keep the route."""
        request = self.envelope.resolve_adapter
        env_id = check_context(request.context, self.operation)
        edition = request.selected_workflow_edition
        if edition not in ("", EDITION):
            message = f"resolve_adapter: edition {edition!r} is not spoken here, expected {EDITION}"
            raise invalid(message, recoverable=False, env_id=env_id)
        options = ResolveOptions(request.execution_horizon or 1, request.delivers_history)
        if options.execution_horizon > MAX_EXECUTION_HORIZON:
            message = (
                f"resolve_adapter: execution_horizon {options.execution_horizon} is over the "
                f"bound of {MAX_EXECUTION_HORIZON}"
            )
            raise invalid(message, env_id=env_id)
        self.service.make_room(env_id, self.stream)
        contract = _decode_contract(request, env_id)
        needs = self._set_up(env_id, contract, options)
        route = Route(
            ModelRoute(env_id, contract, options, needs),
            owner=self.stream.owner(request.context),
            stream_over=self.stream.over,
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
            return _check_needs(RouteNeeds() if needs is None else needs, options, env_id)
        except ModelError:
            if self.service.routes.find(env_id) is None:
                setup.release_adapter(env_id)  # It has prepared for a route that does not come.
            raise


class Reset(Exchange):
    """ResetAdapter: episodes are over. Environments that are not resolved have none."""

    operation = "reset_adapter"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.keys = (self.envelope.reset_adapter.context.env_id,)
        self.brief = self.service.setup is None

    def work(self) -> None:
        """Reset the route, outside the predict lock."""
        request = self.envelope.reset_adapter
        env_id = check_context(request.context, self.operation)
        self._episode_ids = tuple(request.episode_ids)
        self._failure: BaseException | None = None
        route = self.service.routes.find(env_id)
        if route is None:
            self._done()
            return
        if route.tracker is not None:
            route.tracker.forget(self._episode_ids)
        if self.service.setup is not None:
            try:
                self.service.setup.reset_adapter(env_id, self._episode_ids)
            except BaseException as error:  # The handler must still forget them.
                self._failure = error
        self.on_model(self._call)

    def _call(self) -> None:
        env_id = self.envelope.reset_adapter.context.env_id
        begun_ns = time.perf_counter_ns()
        try:
            self.service.handler.reset_adapter(env_id, self._episode_ids)
        except BaseException as error:  # Answered in-band, a SystemExit too.
            self._failure = error
        self.response.user_ns = time.perf_counter_ns() - begun_ns
        self.service.read_model(self.response)
        self._done()

    def _done(self) -> None:
        if self._failure is not None:
            env_id = self.envelope.reset_adapter.context.env_id
            raise model_raised(
                self._failure, self.operation, env_id=env_id, episode_ids=self._episode_ids
            ) from self._failure
        self.response.reset_adapter.SetInParent()
        self.finish()


class Release(Exchange):
    """ReleaseAdapter: drop an environment, with whatever episodes it still had."""

    operation = "release_adapter"

    def __init__(self, *args: Any, expected: Route | None = None) -> None:
        super().__init__(*args)
        self.keys = (self.envelope.release_adapter.context.env_id,)
        self._expected = expected

    def work(self) -> None:
        """Take the route out; its episodes end with it."""
        self._env_id = check_context(self.envelope.release_adapter.context, self.operation)
        self._failure: BaseException | None = None
        if self.service.routes.remove(self._env_id, self._expected) is None:
            self._done()
        else:
            self.on_model(self._call)

    def _call(self) -> None:
        try:
            self.service.handler.reset_adapter(self._env_id, ())
        except BaseException as error:  # The route must still be released.
            self._failure = error
        self.on_worker(self._tear_down)

    def _tear_down(self) -> None:
        if self.service.setup is not None:
            try:
                self.service.setup.release_adapter(self._env_id)
            except BaseException as error:  # A SystemExit must not end the worker.
                self._failure = error
        self._done()

    def _done(self) -> None:
        if self._failure is not None:
            raise model_raised(
                self._failure, self.operation, env_id=self._env_id
            ) from self._failure
        self.response.release_adapter.SetInParent()
        self.finish()


def _decode_contract(request: interaction_pb2.ResolveAdapterRequest, env_id: str) -> EnvSpec:
    if not request.HasField("env_spec"):
        message = "resolve_adapter: env_spec is missing; it holds the spaces"
        raise invalid(message, recoverable=False, env_id=env_id)
    try:
        return decode_env_spec(request.env_spec)
    except CodecError as error:
        message = f"resolve_adapter: env_spec is malformed: {error}"
        raise invalid(message, recoverable=False, env_id=env_id) from error


def _check_needs(needs: object, options: ResolveOptions, env_id: str) -> RouteNeeds:
    """Check what user code answered, and that the client can live with it."""
    if not isinstance(needs, RouteNeeds):
        message = f"the route's set-up returned {type(needs).__name__}, expected RouteNeeds or None"
        raise model_raised(TypeError(message), "resolve_adapter", env_id=env_id)
    native = needs.native_chunk
    if native is not None:
        if native < 1:
            message = f"native_chunk is {native}, expected at least 1"
            raise model_raised(ValueError(message), "resolve_adapter", env_id=env_id)
        if options.execution_horizon > native:
            message = (
                f"resolve_adapter: execution_horizon {options.execution_horizon} is longer than "
                f"the model's chunk of {native} frames; ask for at most {native}"
            )
            raise invalid(message, env_id=env_id)
    if needs.history is not None and options.execution_horizon > 1 and not options.delivers_history:
        message = (
            "resolve_adapter: the model looks at the observations of replayed steps, which the "
            "client does not deliver; set delivers_history, or ask for execution_horizon 1"
        )
        raise unsupported(message, env_id=env_id)
    return needs
