"""A run's model in this process: a handler or a plain function.

Its calls run on the thread of the run and cannot be interrupted; a cancellation takes effect
between them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import EnvSpec
from rlmesh_gym.errors import CodecError, ConfigurationError, ModelError, StateError
from rlmesh_gym.model import (
    CallableHandler,
    HistoryFrame,
    ModelHandler,
    ModelObservation,
    ModelRoute,
    ResolveOptions,
    RouteNeeds,
    predict_frames,
)
from rlmesh_gym.runtime.calls import CompletedCall
from rlmesh_gym.runtime.ends.protocols import LOCAL, ModelNeeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlmesh_gym.runtime.ends.protocols import Episode, HistoryRows, RuntimeEnv
    from rlmesh_gym.runtime.ends.rows import Rows
    from rlmesh_gym.runtime.spec import RuntimeLimits

__all__ = ["LocalRuntimeModel"]


class LocalRuntimeModel:
    """A model of this process. It is not closed when the run is over.

    Args:
        model: A :class:`~rlmesh_gym.ModelHandler`, or a function from batched observations to
            batched actions, both in Gymnasium's vector form. A function that returns
            :class:`~rlmesh_gym.PredictFrames` gives chunks.
    """

    def __init__(self, model: ModelHandler | Callable[[Any], Any]) -> None:
        self.endpoint = LOCAL
        self.handler = model if isinstance(model, ModelHandler) else CallableHandler(model)
        self._setup = self.handler.route_setup()
        self._route: ModelRoute | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handler!r})"

    @property
    def batches_lanes(self) -> bool:
        """A handler is called with whatever rows need a plan."""
        return True

    def connect(self, limits: RuntimeLimits) -> None:
        """Do nothing: it is here."""
        del limits

    def resolve(
        self, env: RuntimeEnv, route: str, session_id: str, execution_horizon: int
    ) -> CompletedCall[ModelNeeds]:
        """Set the environment up.

        Raises:
            ConfigurationError: The horizon is longer than the model's chunks.
        """
        del session_id
        began = time.perf_counter_ns()
        options = ResolveOptions(execution_horizon=execution_horizon, delivers_history=True)
        needs = RouteNeeds()
        contract = env.contract
        spec = EnvSpec(
            contract.env_id,
            contract.single_observation_space,
            contract.single_action_space,
            contract.metadata,
        )
        if self._setup is not None:
            needs = self._setup.resolve_adapter(route, spec, options) or needs
        native = needs.native_chunk
        if native is not None and execution_horizon > native:
            message = (
                f"execution_horizon {execution_horizon} is longer than the model's chunk of "
                f"{native} frames; ask for at most {native}"
            )
            raise ConfigurationError(message)
        self._route = ModelRoute(route, spec, options, needs)
        self._action_format = env.action_format
        answer = ModelNeeds(native_chunk=native, wants_history=needs.history is not None)
        return CompletedCall(answer, time.perf_counter_ns() - began)

    def predict(
        self,
        observations: Rows,
        episodes: Sequence[Episode],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> CompletedCall[list[Rows]]:
        """Call the handler.

        Raises:
            ModelError: Its actions do not fit the action space.
        """
        route = self._resolved()
        horizon = route.options.execution_horizon
        observation = ModelObservation(
            env_id=route.env_id,
            observation=observations.batch(),
            episode_ids=tuple(episode_id for episode_id, _ in episodes),
            seeds=tuple(seed for _, seed in episodes),
            execution_horizon=horizon,
            history=tuple(_history_frame(rows) for rows in history),
            step=step,
            route=route,
        )
        began = time.perf_counter_ns()
        result = predict_frames(self.handler, observation)
        elapsed = time.perf_counter_ns() - began
        batches = [*_frames_of(result), *result.replay][:horizon]
        frames = [self._read(place, batch, observation) for place, batch in enumerate(batches)]
        return CompletedCall(frames, elapsed)

    def _resolved(self) -> ModelRoute:
        if self._route is None:
            raise StateError("the model was not set up for an environment: call resolve first")
        return self._route

    def _read(self, place: int, batch: Any, observation: ModelObservation) -> Rows:
        num_rows = observation.num_envs
        codec = self._action_format.codec
        try:
            leaves = codec.flatten(batch, num_rows)
        except CodecError as error:
            raise self._bad_answer(f"action frame {place}: {error}", observation) from error
        for row, path, detail in codec.out_of_domain(leaves):
            message = f"action frame {place}, row {row}: {path}: {detail}"
            raise self._bad_answer(message, observation)
        # Copied, since the handler may reuse its arrays while these wait for their turn.
        return self._action_format.from_leaves([leaf.copy() for leaf in leaves], num_rows)

    def _bad_answer(self, message: str, observation: ModelObservation) -> ModelError:
        return ModelError(
            f"predict: {message}",
            endpoint=self.endpoint,
            operation="predict",
            code="INTERNAL",
            env_id=observation.env_id,
            episode_ids=observation.episode_ids,
        )

    def forget(self, episode_ids: Sequence[str]) -> CompletedCall[object]:
        """Tell handler and set-up that episodes are over."""
        began = time.perf_counter_ns()
        route = self._resolved()
        if self._setup is not None:
            self._setup.reset_adapter(route.env_id, episode_ids)
        self.handler.reset_adapter(route.env_id, episode_ids)
        return CompletedCall(None, time.perf_counter_ns() - began)

    def release(self, reason: str) -> CompletedCall[object]:
        """Let the set-up drop the environment, and the handler its episodes."""
        del reason
        began = time.perf_counter_ns()
        route, self._route = self._route, None
        if route is not None:
            if self._setup is not None:
                self._setup.release_adapter(route.env_id)
            self.handler.reset_adapter(route.env_id, ())
        return CompletedCall(None, time.perf_counter_ns() - began)

    def close(self, timeout: float) -> None:
        """Leave the handler open: it belongs to whoever made it."""
        del timeout


def _frames_of(result: Any) -> list[Any]:
    # A model that returns None predicted nothing, which the driver refuses by name.
    return [] if result.actions is None else [result.actions]


def _history_frame(rows: HistoryRows) -> HistoryFrame:
    return HistoryFrame(
        step=rows.step,
        observation=rows.observations.batch(),
        episode_ids=tuple(episode_id for episode_id, _ in rows.episodes),
        seeds=tuple(seed for _, seed in rows.episodes),
    )
