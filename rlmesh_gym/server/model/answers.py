"""The core of a model server without a wire: what a handler is given, and what it may return.

Knows routes, arrays and handlers; no messages, streams or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.errors import CodecError, ModelError
from rlmesh_gym.model import HistoryFrame, ModelObservation, PredictFrames, RouteNeeds
from rlmesh_gym.server.model.actions import read_batch
from rlmesh_gym.server.model.faults import invalid, model_raised, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rlmesh_gym._proto.spaces.v1.value_pb2 import SpaceValue
    from rlmesh_gym.codec import Leaves, LeavesValue, SpaceCodec
    from rlmesh_gym.model import ResolveOptions
    from rlmesh_gym.rpc import HistoryRows
    from rlmesh_gym.server.model.routes import Route

    Episodes = Sequence[tuple[str, int | None]]


_MAX_SIGNATURE_LEAVES = 16


def check_needs(needs: object, options: ResolveOptions, env_id: str) -> RouteNeeds:
    """Check what a route's set-up answered, and that the client can live with it.

    Raises:
        ModelError: INTERNAL: no answer that a set-up may give. INVALID_REQUEST: a horizon longer
            than the chunk. UNSUPPORTED: history that the client does not deliver.
    """
    if needs is None:
        return RouteNeeds()
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


def make_observation(
    route: Route,
    value: SpaceValue | LeavesValue | None,
    episodes: Episodes,
    *,
    history: Sequence[HistoryRows] = (),
    step: int | None = None,
    staged: dict[str, int] | None = None,
) -> ModelObservation:
    """Decode and check what the handler is given; the arrays are its own.

    ``route.deliver`` takes the steps for delivered, when the handler has answered. ``staged`` holds
    the steps of requests that go to the handler together with this one, and is updated.

    Raises:
        ModelError: INVALID_REQUEST, recoverable: rows, ids, values or steps that do not fit.
    """
    batch, ids, seeds = _rows(route, value, episodes, "predict")
    if history and not route.wants_history:
        message = "predict: history rows on a route that did not ask for them"
        raise invalid(message, env_id=route.env_id, episode_ids=ids)
    frames = []
    for rows in history:
        what = f"predict: history row of step {rows.step}"
        frames.append(HistoryFrame(rows.step, *_rows(route, rows.observation, rows.episodes, what)))
    observation = ModelObservation(
        env_id=route.env_id,
        observation=batch,
        episode_ids=ids,
        seeds=seeds,
        execution_horizon=route.model_route.options.execution_horizon,
        history=tuple(frames),
        step=step,
        route=route.model_route,
    )
    route.check_steps(observation, staged)
    return observation


def _rows(
    route: Route, value: SpaceValue | LeavesValue | None, episodes: Episodes, what: str
) -> tuple[Any, tuple[str, ...], tuple[int | None, ...]]:
    """Return a batch in vector form, and the id and seed of each of its rows."""
    codec = route.observation_codec
    if value is None:
        raise invalid(f"{what} has no observation", env_id=route.env_id)
    if codec is None:
        message = "predict: the env was resolved without an observation space"
        raise invalid(message, env_id=route.env_id)
    ids, seeds = zip(*episodes, strict=True) if episodes else ((), ())
    _check_episodes(ids, route.env_id, what)
    try:
        leaves = codec.decode(value, len(ids))
        batch = codec.unflatten(leaves, len(ids))
    except CodecError as error:
        message = f"{what}: {len(ids)} rows do not fit the observation space: {error}"
        raise invalid(message, env_id=route.env_id, episode_ids=ids) from error
    for row, path, detail in codec.out_of_domain(leaves):
        message = f"{what}: observation row {row}, episode {ids[row]!r}: {path}: {detail}"
        raise invalid(message, env_id=route.env_id, episode_ids=ids)
    return batch, ids, seeds


def _check_episodes(episode_ids: Sequence[str], env_id: str, what: str) -> None:
    """Refuse rows that do not each name an episode of their own."""
    if not episode_ids:
        message = f"{what}: episode_info is empty; it names the episode of every row"
        raise invalid(message, env_id=env_id)
    if not all(episode_ids):
        message = f"{what}: row {episode_ids.index('')} has an empty episode id"
        raise invalid(message, env_id=env_id, episode_ids=episode_ids)
    if len(set(episode_ids)) != len(episode_ids):
        twice = next(name for name in episode_ids if episode_ids.count(name) > 1)
        message = f"{what}: episode {twice!r} has more than one row; an episode is one lane's"
        raise invalid(message, env_id=env_id, episode_ids=episode_ids)


def read_frames(route: Route, observation: ModelObservation, frames: Any) -> list[Leaves]:
    """Check what the handler returned and flatten it, at most as many frames as the horizon.

    The leaves of each frame may share memory with what the handler returned.

    Raises:
        ModelError: INTERNAL, recoverable: the answer does not fit the action space, the number of
            rows, or the route's own declaration; or it cannot be read.
    """
    if not isinstance(frames, PredictFrames):
        frames = PredictFrames(frames)
    horizon, native = observation.execution_horizon, route.model_route.needs.native_chunk
    try:
        if horizon > 1 and native is not None and frames.num_frames < horizon:
            message = (
                f"the model returned {frames.num_frames} frames, expected at least {horizon} "
                f"since its route declares chunks of {native}"
            )
            raise _bad_answer(message, observation)  # noqa: TRY301 - one place reads frames
        batches = (frames.actions, *frames.replay[: horizon - 1])
        return [_read(route, index, batch, observation) for index, batch in enumerate(batches)]
    except ModelError:
        raise
    except Exception as error:
        # A batch whose own methods fail, such as a lazy array that cannot be converted.
        raise prediction_failed(error, route, observation) from error


def prediction_failed(
    error: BaseException, route: Route, observation: ModelObservation
) -> ModelError:
    """Turn what a handler raised into an error that names it and its input."""
    codec = route.observation_codec
    return model_raised(
        error,
        "predict",
        env_id=route.env_id,
        episode_ids=observation.episode_ids,
        signature="" if codec is None else _signature(codec, observation),
    )


def _read(route: Route, index: int, batch: Any, observation: ModelObservation) -> Leaves:
    codec = route.action_codec
    try:
        leaves = read_batch(codec, batch, len(observation.episode_ids))
    except CodecError as error:
        raise _bad_answer(f"action frame {index}: {error}", observation) from error
    for row, path, detail in codec.out_of_domain(leaves):
        who = f"row {row} (episode {observation.episode_ids[row]})"
        raise _bad_answer(f"action frame {index}, {who}: {path}: {detail}", observation)
    return leaves


def _bad_answer(message: str, observation: ModelObservation) -> ModelError:
    return ModelError(
        f"predict: {message} (env {observation.env_id!r}, {observation.num_envs} rows)",
        operation="predict",
        code="INTERNAL",
        is_recoverable=True,
        env_id=observation.env_id,
        episode_ids=observation.episode_ids,
    )


def _signature(codec: SpaceCodec, observation: ModelObservation) -> str:
    """Describe a batch by shape and dtype, as in ``{observation.image: uint8 (2, 84, 84, 3)}``."""
    try:
        leaves = codec.flatten(observation.observation, observation.num_envs)
    except CodecError:  # The handler has changed it.
        return ""
    parts = [
        f"{path}: {'str' if leaf.dtype == object else leaf.dtype} {leaf.shape}"
        for path, leaf in zip(codec.paths[:_MAX_SIGNATURE_LEAVES], leaves, strict=False)
    ]
    if len(leaves) > _MAX_SIGNATURE_LEAVES:
        parts.append("…")
    return "{" + ", ".join(parts) + "}"
