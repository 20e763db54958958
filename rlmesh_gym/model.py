"""What a served model implements, and what it is given. No wire, no threads, no gRPC in here.

A :class:`ModelHandler` is called by a :class:`~rlmesh_gym.server.ModelServer`, or by a local run
loop, one call at a time. Everything batched is in Gymnasium's *vector* form: a ``Dict`` space gives
a dict of arrays whose first axis is the row, a ``Text`` space a tuple of strings.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gymnasium

    from rlmesh_gym.codec import EnvSpec

__all__ = [
    "MAX_EXECUTION_HORIZON",
    "CallableHandler",
    "HeldState",
    "HistoryFrame",
    "HistoryNeeds",
    "ModelHandler",
    "ModelObservation",
    "ModelRoute",
    "ModelRouteSetup",
    "PredictFrames",
    "ResolveOptions",
    "RouteNeeds",
    "as_handler",
    "predict_frames",
]

MAX_EXECUTION_HORIZON = 1024
"""The protocol's bound on the number of frames that one prediction may hold."""


@dataclass(frozen=True)
class ResolveOptions:
    """What the client asks of a route.

    Attributes:
        execution_horizon: Frames that the client replays of one prediction; at least 1.
        delivers_history: The client can send the observations of replayed steps.
    """

    execution_horizon: int = 1
    delivers_history: bool = False


@dataclass(frozen=True)
class HistoryNeeds:
    """A route's wish to see the observations of replayed steps too.

    Attributes:
        keys: The model inputs that look back; empty for the whole observation.
        prunable: Rows may leave out what the keys do not name, which then comes as zeros and empty
            strings. Clients may send full rows anyway.
    """

    keys: tuple[str, ...] = ()
    prunable: bool = False


@dataclass(frozen=True)
class RouteNeeds:
    """What a route answers when it is resolved.

    Attributes:
        native_chunk: Frames that the model gives per prediction; None when it is not fixed. A
            client that asks for a longer horizon is refused.
        history: What the model needs of replayed steps; None for nothing.
    """

    native_chunk: int | None = None
    history: HistoryNeeds | None = None


@dataclass(frozen=True)
class HeldState:
    """How much a handler remembers, for telemetry.

    Attributes:
        episodes: Episodes with state.
        bytes: Size of that state; None when it is not known.
    """

    episodes: int
    bytes: int | None = None


@dataclass(frozen=True)
class ModelRoute:
    """One resolved environment, as every prediction for it sees it.

    Attributes:
        env_id: The client's name for its environment; the key of all state.
        contract: The environment's spaces and metadata, those of one lane.
        options: What the client asked for.
        needs: What the handler answered.
    """

    env_id: str
    contract: EnvSpec
    options: ResolveOptions = field(default_factory=ResolveOptions)
    needs: RouteNeeds = field(default_factory=RouteNeeds)

    @property
    def single_observation_space(self) -> gymnasium.Space[Any] | None:
        """Space of one row of an observation; None when the client named none."""
        return self.contract.single_observation_space

    @property
    def single_action_space(self) -> gymnasium.Space[Any]:
        """Space of one row of the actions."""
        return self.contract.single_action_space

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, as plain Python values."""
        return self.contract.metadata


@dataclass(frozen=True)
class HistoryFrame:
    """The observations of one replayed step, for the rows that replayed it.

    Attributes:
        step: The session's step count at this frame.
        observation: Batched observation, one row per episode id.
        episode_ids: Episode of each row.
        seeds: Seed of each row's episode, None where it is not known.
    """

    step: int
    observation: Any
    episode_ids: tuple[str, ...]
    seeds: tuple[int | None, ...] = ()

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return len(self.episode_ids)


@dataclass(frozen=True)
class ModelObservation:
    """One request for actions.

    The rows are whatever lanes need a plan now: their number and order change from call to call,
    and state belongs to the episode id, never to the row.

    Attributes:
        env_id: The environment that the rows come from.
        observation: Batched observation in vector form. Arrays are fresh and the handler's own.
        episode_ids: Episode of each row, unique within the request.
        seeds: Seed of each row's episode, None where it is not known.
        execution_horizon: Frames that the client replays; at least 1.
        history: Replayed steps since the last prediction, in the order sent, which is ascending for
            each episode and without a gap up to ``step``; empty unless the route asked for them.
            When ``predict`` raises, they count as not delivered and come again with a retry.
        step: The session's step count at this observation; None when it was not sent.
        route: The resolved environment; None only in handlers called without a server.
    """

    env_id: str
    observation: Any
    episode_ids: tuple[str, ...]
    seeds: tuple[int | None, ...] = ()
    execution_horizon: int = 1
    history: tuple[HistoryFrame, ...] = ()
    step: int | None = None
    route: ModelRoute | None = None

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return len(self.episode_ids)


@dataclass(frozen=True)
class PredictFrames:
    """Actions for this step and, for models that plan ahead, for the steps after it.

    Attributes:
        actions: Batch for this step, in vector form, one row per row of the observation.
        replay: ``replay[j]`` is the batch for step ``j + 1``. Frames beyond the execution horizon
            are dropped.
    """

    actions: Any
    replay: Sequence[Any] = ()

    @property
    def num_frames(self) -> int:
        """Number of steps that this covers, this one included."""
        return 1 + len(self.replay)


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
            message = f"{type(self).__name__} overrides neither predict nor predict_chunked"
            raise NotImplementedError(message)
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
            message = f"expected a handler, got the class {function.__name__}; make an instance"
            raise ConfigurationError(message)
        if not callable(function):
            message = (
                f"expected a ModelHandler or a function of the observation, got {function!r}; "
                "subclass ModelHandler and override predict"
            )
            raise ConfigurationError(message)
        _refuse_async(function, getattr(function, "__name__", repr(function)))
        if not inspect.isroutine(function):
            _refuse_async(getattr(function, "__call__", None), f"{function!r}.__call__")  # noqa: B004
        self.function = function

    def predict(self, observation: ModelObservation) -> Any:
        """Call the function."""
        return self.predict_chunked(observation).actions

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
        message = f"{kind.__name__} overrides neither predict nor predict_chunked"
        raise ConfigurationError(message)
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
        message = f"{name} is {kind}, which returns no actions when it is called; {cure}"
        raise ConfigurationError(message)


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
        message = (
            f"{type(handler).__name__}.predict_chunked returned {type(frames).__name__}, expected "
            "PredictFrames; of a chunk of shape (rows, steps, ...) make "
            "PredictFrames(chunk[:, 0], [chunk[:, j] for j in range(1, chunk.shape[1])])"
        )
        raise TypeError(message)
    return frames
