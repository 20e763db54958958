"""What a served model implements: the handler, its routes' set-up, and how a handler is called.

A :class:`ModelHandler` is called by a :class:`~rlmesh_gym.server.ModelServer`, or by a local run
loop, one call at a time.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model.observation import ModelObservation, PredictFrames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.codec import EnvSpec
    from rlmesh_gym.model.observation import HeldState, ResolveOptions, RouteNeeds


class ModelRouteSetup:
    """Sets up and tears down what one environment needs.

    All methods run outside the predict lock, so that a slow set-up never delays another
    environment's predictions; they must therefore be thread-safe against ``predict``.
    """

    def resolve_adapter(
        self, env_id: str, contract: EnvSpec, options: ResolveOptions
    ) -> RouteNeeds | None:
        """Prepare for an environment. Idempotent: the same env id may be resolved again.

        Args:
            env_id: The client's name for its environment.
            contract: Spaces and metadata.
            options: What the client asks for.

        Returns:
            What the route needs; None for nothing.

        Raises:
            Exception: Anything raised is answered as an error, and the route is not resolved.
        """
        del env_id, contract, options
        return None

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        """Forget what the route keeps of these episodes; no ids mean all of the environment's."""

    def release_adapter(self, env_id: str) -> None:
        """Drop the environment. Called once per release of a resolved environment."""


class ModelHandler:
    """A model as it is served. Override ``predict`` or ``predict_chunked``; the rest is optional.

    No method is ever called while another one runs, ``route_setup``'s excepted. Calls for one
    environment keep the client's order. An exception becomes an error answer for that request
    alone, and the handler is called again.

    Example:
        >>> import numpy as np
        >>> class Still(ModelHandler):
        ...     def predict(self, observation):
        ...         return np.zeros((observation.num_envs, 2), np.float32)
        >>> observation = ModelObservation("env", np.ones((3, 4)), ("a", "b", "c"))
        >>> Still().predict_chunked(observation).actions.shape
        (3, 2)
    """

    def predict(self, observation: ModelObservation) -> Any:
        """Choose actions for this step.

        Args:
            observation: The rows that need actions.

        Returns:
            A batch of ``observation.num_envs`` actions in vector form; lists will do. The arrays
            may be filled anew in the next call.
        """
        if type(self).predict_chunked is ModelHandler.predict_chunked:
            raise NotImplementedError(
                f"{type(self).__name__} overrides neither predict nor predict_chunked"
            )
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation: ModelObservation) -> PredictFrames:
        """Choose actions for this step and the ones after it.

        Called instead of ``predict`` when ``observation.execution_horizon`` is above 1.

        Args:
            observation: The rows that need actions.

        Returns:
            This step's batch and those that follow. The default follows with none.
        """
        return PredictFrames(self.predict(observation))

    def predict_grouped(
        self, observations: Sequence[ModelObservation]
    ) -> Sequence[PredictFrames | Exception]:
        """Answer several requests that came together, such as one per environment.

        The default answers them one after another. Override it to fuse them into one call.

        Args:
            observations: The requests.

        Returns:
            One result per request, in the same order: frames, or the exception that this request
            alone met.
        """
        results: list[PredictFrames | Exception] = []
        for observation in observations:
            try:
                results.append(predict_frames(self, observation))
            except Exception as error:  # noqa: PERF203 - one group must not sink the others
                results.append(error)
        return results

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        """Forget episodes that are over.

        Args:
            env_id: Their environment.
            episode_ids: The episodes, possibly never seen here; none mean all of the environment's.
        """

    def held_state(self) -> HeldState | None:
        """Say how much is remembered now; None when the handler does not keep count."""
        return None

    def take_adapter_ns(self) -> int | None:
        """Read and clear the nanoseconds spent in adapters since the last call; None for none."""
        return None

    def route_setup(self) -> ModelRouteSetup | None:
        """Give the object that sets up environments; asked once, None for no set-up."""
        return None

    def on_close(self) -> None:
        """Let go of resources. Called once, after the last other call."""


class CallableHandler(ModelHandler):
    """A plain function ``observation -> actions`` on batched arrays, as a handler.

    Args:
        function: Takes the batched observation in vector form and returns a batch of actions.
            Returning :class:`PredictFrames` gives chunks.

    Raises:
        ConfigurationError: Not a function, or one whose calls return no actions: a class, an
            ``async def``, a generator.
    """

    def __init__(self, function: Any) -> None:
        if isinstance(function, type):
            raise ConfigurationError(
                f"expected a handler, got the class {function.__name__}; make an instance"
            )
        if not callable(function):
            raise ConfigurationError(
                f"expected a ModelHandler or a function of the observation, got {function!r}; "
                "subclass ModelHandler and override predict"
            )
        _refuse_async(function, getattr(function, "__name__", repr(function)))
        if not inspect.isroutine(function):
            _refuse_async(getattr(function, "__call__", None), f"{function!r}.__call__")  # noqa: B004
        self.function = function

    def predict(self, observation: ModelObservation) -> Any:
        """Call the function."""
        result = self.function(observation.observation)
        return result.actions if isinstance(result, PredictFrames) else result

    def predict_chunked(self, observation: ModelObservation) -> PredictFrames:
        """Call the function, and take what it returns for frames or for a single batch."""
        result = self.function(observation.observation)
        return result if isinstance(result, PredictFrames) else PredictFrames(result)

    def __repr__(self) -> str:
        return f"CallableHandler({self.function!r})"


def as_handler(model: object) -> ModelHandler:
    """Return a model as a handler: a :class:`ModelHandler` itself, a function in a handler.

    Raises:
        ConfigurationError: It is neither, overrides no predict, or is asynchronous.
    """
    if not isinstance(model, ModelHandler):
        return CallableHandler(model)
    kind = type(model)
    if (
        kind.predict is ModelHandler.predict
        and kind.predict_chunked is ModelHandler.predict_chunked
    ):
        raise ConfigurationError(f"{kind.__name__} overrides neither predict nor predict_chunked")
    for name in ("predict", "predict_chunked", "predict_grouped", "reset_adapter"):
        _refuse_async(getattr(model, name), f"{kind.__name__}.{name}")
    return model


def _refuse_async(function: object, name: str) -> None:
    cure = ""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        cure = "write a plain def; it may run asyncio.run inside"
    elif inspect.isgeneratorfunction(function):
        cure = "return the actions instead of yielding them"
    if cure:
        kind = "a generator" if inspect.isgeneratorfunction(function) else "an async def"
        raise ConfigurationError(
            f"{name} is {kind}, which returns no actions when it is called; {cure}"
        )


def predict_frames(handler: ModelHandler, observation: ModelObservation) -> PredictFrames:
    """Call a handler for one request: ``predict`` at horizon 1, else ``predict_chunked``.

    Args:
        handler: The model.
        observation: The request.

    Returns:
        The frames as the handler gave them, not yet cut to the horizon.

    Raises:
        TypeError: ``predict_chunked`` returned something else than :class:`PredictFrames`.
    """
    if observation.execution_horizon <= 1:
        actions = handler.predict(observation)
        return actions if isinstance(actions, PredictFrames) else PredictFrames(actions)
    frames = handler.predict_chunked(observation)
    if not isinstance(frames, PredictFrames):
        if inspect.iscoroutine(frames):
            frames.close()  # Else Python complains of one that nobody awaited.
        raise TypeError(
            f"{type(handler).__name__}.predict_chunked returned {type(frames).__name__}, expected "
            "PredictFrames; of a chunk of shape (rows, steps, ...) make "
            "PredictFrames(chunk[:, 0], [chunk[:, j] for j in range(1, chunk.shape[1])])"
        )
    return frames
