"""Requests to what a handler is given, and what it returns to responses. No scheduling in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import CodecError, ModelError
from rlmesh_gym.model import HistoryFrame, ModelObservation, PredictFrames
from rlmesh_gym.server.model.faults import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rlmesh_gym._proto.model.v1 import interaction_pb2
    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.server.model.routes import Route

__all__ = [
    "check_context",
    "check_steps",
    "decode_predict",
    "detached",
    "encode_frames",
    "signature",
]

_MAX_SIGNATURE_LEAVES = 16


def check_context(context: interaction_pb2.AdapterContext, operation: str) -> str:
    """Return the env id of a request.

    Raises:
        ModelError: INVALID_REQUEST, not recoverable: there is none.
    """
    if not context.env_id:
        message = f"{operation}: context.env_id is empty; it names the environment"
        raise invalid(message, recoverable=False)
    return context.env_id


def decode_predict(
    route: Route, request: interaction_pb2.PredictRequest
) -> tuple[ModelObservation, Leaves]:
    """Decode a predict request.

    Args:
        route: Its environment.
        request: The request; its context has been checked.

    Returns:
        What the handler is given, and the leaves that it was made from.

    Raises:
        ModelError: INVALID_REQUEST, recoverable: rows, ids or values that do not fit.
    """
    env_id = route.env_id
    if not request.context.request_id:
        raise invalid("predict: context.request_id is empty", env_id=env_id)
    if not request.HasField("observation"):
        raise invalid("predict: the request has no observation", env_id=env_id)
    codec = route.observation_codec
    if codec is None:
        message = "predict: the env was resolved without an observation space"
        raise invalid(message, env_id=env_id)
    episode_ids, seeds = _episodes(request.episode_info, env_id, "predict")
    leaves = _decode_rows(codec, request.observation, episode_ids, env_id, "predict")
    history: tuple[HistoryFrame, ...] = ()
    if request.history:
        if not route.wants_history:
            message = "predict: history rows on a route that did not ask for them"
            raise invalid(message, env_id=env_id, episode_ids=episode_ids)
        history = tuple(_decode_frame(route, codec, frame) for frame in request.history)
    observation = ModelObservation(
        env_id=env_id,
        observation=codec.unflatten(leaves, len(episode_ids)),
        episode_ids=episode_ids,
        seeds=seeds,
        execution_horizon=route.model_route.options.execution_horizon,
        history=history,
        step=request.step if request.HasField("step") else None,
        route=route.model_route,
    )
    return observation, leaves


def check_steps(
    route: Route, observation: ModelObservation, staged: dict[str, int] | None = None
) -> dict[str, int]:
    """Check a request's steps where the route follows them; nothing to check gives no steps.

    Raises:
        ModelError: INVALID_REQUEST, recoverable: no step, a gap, a repeat, rows out of order.
    """
    if route.tracker is None:
        return {}
    if observation.step is None:
        message = "predict: step is missing; a route with observation history needs it"
        raise invalid(message, env_id=route.env_id, episode_ids=observation.episode_ids)
    rows = [(frame.step, frame.episode_ids) for frame in observation.history]
    return route.tracker.check(rows, observation.step, observation.episode_ids, staged=staged)


def encode_frames(
    route: Route, observation: ModelObservation, frames: PredictFrames
) -> list[value_pb2.SpaceValue]:
    """Check and encode what the handler returned, at most as many frames as the horizon.

    Raises:
        ModelError: INTERNAL, recoverable: the handler's answer does not fit the action space, the
            number of rows, or its own declaration.
    """
    horizon = observation.execution_horizon
    native = route.model_route.needs.native_chunk
    if horizon > 1 and native is not None and frames.num_frames < horizon:
        message = (
            f"the model returned {frames.num_frames} frames, expected at least {horizon} "
            f"since its route declares chunks of {native}"
        )
        raise _bad_answer(message, observation)
    values = []
    for index, batch in enumerate((frames.actions, *frames.replay[: horizon - 1])):
        what = f"action frame {index}"
        try:
            leaves = route.action_codec.flatten(batch, observation.num_envs)
        except CodecError as error:
            raise _bad_answer(f"{what}: {error}", observation) from error
        for row, path, detail in route.action_codec.out_of_domain(leaves):
            episode_id = observation.episode_ids[row]
            message = f"{what}, row {row} (episode {episode_id}): {path}: {detail}"
            raise _bad_answer(message, observation)
        values.append(route.action_codec.encode(leaves, observation.num_envs))
    return values


def detached(result: Any) -> Any:
    """Copy the arrays of a handler's answer, so that it may fill its buffers anew.

    Args:
        result: Frames or a batch; arrays may be of any library that numpy can read.
    """
    if isinstance(result, PredictFrames):
        return PredictFrames(detached(result.actions), [detached(batch) for batch in result.replay])
    if isinstance(result, Mapping):
        return {key: detached(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        values = [detached(value) for value in result]
        return tuple(values) if isinstance(result, tuple) else values
    if isinstance(result, np.generic) or not hasattr(result, "__array__"):
        return result
    return np.array(result)


def signature(codec: SpaceCodec | None, leaves: Leaves) -> str:
    """Describe a batch by shape and dtype, as in ``{observation.image: uint8 (2, 84, 84, 3)}``."""
    if codec is None:
        return ""
    parts = [
        f"{path}: {'str' if leaf.dtype == object else leaf.dtype} {leaf.shape}"
        for path, leaf in zip(codec.paths[:_MAX_SIGNATURE_LEAVES], leaves, strict=False)
    ]
    if len(leaves) > _MAX_SIGNATURE_LEAVES:
        parts.append("…")
    return "{" + ", ".join(parts) + "}"


def _episodes(
    infos: Sequence[interaction_pb2.EpisodeInfo], env_id: str, what: str
) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    episode_ids = tuple(info.episode_id for info in infos)
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
    return episode_ids, tuple(info.seed if info.HasField("seed") else None for info in infos)


def _decode_frame(
    route: Route, codec: SpaceCodec, frame: interaction_pb2.ObservationHistoryFrame
) -> HistoryFrame:
    env_id = route.env_id
    what = f"predict: history row of step {frame.step}"
    if not frame.HasField("observation"):
        raise invalid(f"{what} has no observation", env_id=env_id)
    episode_ids, seeds = _episodes(frame.episode_info, env_id, what)
    value = frame.observation
    needs = route.model_route.needs.history
    if needs is not None and needs.prunable and len(value.leaves) == len(codec.paths):
        value = _fill(codec, value, len(episode_ids))
    leaves = _decode_rows(codec, value, episode_ids, env_id, what)
    return HistoryFrame(frame.step, codec.unflatten(leaves, len(episode_ids)), episode_ids, seeds)


def _fill(codec: SpaceCodec, value: value_pb2.SpaceValue, num_rows: int) -> value_pb2.SpaceValue:
    """Put zeros and empty strings where a client has left leaves out."""
    if all(value.leaves):
        return value
    blank = codec.encode(codec.empty(num_rows), num_rows)
    pairs = zip(value.leaves, blank.leaves, strict=True)
    return value_pb2.SpaceValue(leaves=[given or empty for given, empty in pairs])


def _decode_rows(
    codec: SpaceCodec,
    value: value_pb2.SpaceValue,
    episode_ids: tuple[str, ...],
    env_id: str,
    what: str,
) -> Leaves:
    try:
        leaves = codec.decode(value, len(episode_ids))
    except CodecError as error:
        message = f"{what}: {len(episode_ids)} rows do not fit the observation space: {error}"
        raise invalid(message, env_id=env_id, episode_ids=episode_ids) from error
    for row, path, detail in codec.out_of_domain(leaves):
        message = f"{what}: observation row {row}, episode {episode_ids[row]!r}: {path}: {detail}"
        raise invalid(message, env_id=env_id, episode_ids=episode_ids)
    return leaves


def _bad_answer(message: str, observation: ModelObservation) -> ModelError:
    return ModelError(
        f"predict: {message} (env {observation.env_id!r}, {observation.num_envs} rows)",
        code="INTERNAL",
        is_recoverable=True,
        env_id=observation.env_id,
        episode_ids=observation.episode_ids,
    )
