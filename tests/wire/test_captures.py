"""Our messages against the bytes that the released package sends, one of each kind.

The recordings are made by ``tests/wire/capture.py``. What differs from run to run (ids, clocks,
versions, measured times) is taken over from the recording; all else is written down here, and
spaces, values and maps go through the codec.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from PIL import Image

from rlmesh_gym._proto.core.v1 import handshake_pb2
from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym._proto.env.v1 import service_pb2 as env_service_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb2
from rlmesh_gym._proto.model.v1 import service_pb2 as model_service_pb2
from rlmesh_gym.codec import (
    EnvContract,
    SpaceCodec,
    decode_contract,
    decode_meta_map,
    encode_contract,
    encode_env_spec,
    encode_meta_map,
)
from tests.tagged_env import TaggedEnv
from tests.wire.canonical import canonical
from tests.wire.capture import ACTION, CAPTURES, LANES_ACTION, RESET_OPTIONS
from tests.wire.recorded_env import ALONE, CatalogueEnv, RecordedEnv, fixed_sample, info_of

Builder = Callable[[Any], Any]
_BUILDERS: dict[str, Builder] = {}
_NAMES = sorted(path.stem for path in CAPTURES.glob("*.bin"))

_OBSERVATION = SpaceCodec(RecordedEnv.observation_space)
_ACTION = SpaceCodec(RecordedEnv.action_space)
_CARTPOLE_ACTION = SpaceCodec(spaces.Discrete(2))


def message_type(name: str) -> Any:
    service, kind = name.split(".")[:2]
    if kind.startswith("Join"):
        return getattr({"env": env_pb2, "model": model_pb2}[service], kind)
    return getattr({"env": env_service_pb2, "model": model_service_pb2}[service], kind)


def captured(name: str) -> bytes:
    return CAPTURES.joinpath(f"{name}.bin").read_bytes()


def builds(*names: str) -> Callable[[Builder], Builder]:
    """Register a function from the parsed recording to our own message."""

    def register(build: Builder) -> Builder:
        _BUILDERS.update(dict.fromkeys(names, build))
        return build

    return register


@pytest.mark.parametrize("name", _NAMES)
def test_same_bytes_when_built_here(name: str) -> None:
    data, kind = captured(name), message_type(name)
    built = _BUILDERS[name](kind.FromString(data))
    assert isinstance(built, kind)
    descriptor = kind.DESCRIPTOR
    assert canonical(built.SerializeToString(), descriptor) == canonical(data, descriptor)


@pytest.mark.parametrize("name", _NAMES)
def test_same_bytes_when_passed_on(name: str) -> None:
    data, kind = captured(name), message_type(name)
    again = kind.FromString(data).SerializeToString(deterministic=True)
    assert canonical(again, kind.DESCRIPTOR) == canonical(data, kind.DESCRIPTOR)


def test_every_recording_is_built() -> None:
    assert sorted(_BUILDERS) == _NAMES


def test_every_kind_is_recorded() -> None:
    """All arms of the four Join messages, but for those that nothing ever sends."""
    never_sent = {"model.JoinRequest.close", "model.JoinRequest.grouped_predict"}
    kinds = {
        f"{service}.{message}.{field.name}"
        for service, module in (("env", env_pb2), ("model", model_pb2))
        for message in ("JoinRequest", "JoinResponse")
        for field in getattr(module, message).DESCRIPTOR.oneofs_by_name["kind"].fields
    }
    recorded = {".".join(name.split(".")[:3]) for name in _NAMES}
    assert kinds - never_sent <= recorded


# Handshakes.


def _peer_info(seen: handshake_pb2.PeerInfo, component: str) -> handshake_pb2.PeerInfo:
    return handshake_pb2.PeerInfo(
        component=component,
        package_version="0.1.0",
        language="python",
        language_version=seen.language_version,
        os=seen.os,
        os_version=seen.os_version,
        arch=seen.arch,
        framework_versions=dict(seen.framework_versions),
        extra=dict(seen.extra),
    )


def _handshake_request(seen: Any, component: str) -> handshake_pb2.HandshakeRequest:
    return handshake_pb2.HandshakeRequest(
        protocol_generation="rlmesh-wire-v1",
        peer_info=_peer_info(seen.base.peer_info, component),
        supported_workflow_editions=["2026.06"],
        preferred_workflow_edition="2026.06",
    )


def _handshake_response(seen: Any, component: str, *names: str) -> handshake_pb2.HandshakeResponse:
    return handshake_pb2.HandshakeResponse(
        compatible=True,
        peer_info=_peer_info(seen.base.peer_info, component),
        capabilities=dict.fromkeys(names, "true"),
        supported_workflow_editions=["2026.06"],
        preferred_workflow_edition="2026.06",
    )


def _contract(env: RecordedEnv, **fields: Any) -> EnvContract:
    values: dict[str, Any] = {
        "env_id": "CartPole-v1",
        "single_observation_space": env.observation_space,
        "single_action_space": env.action_space,
        "metadata": env.metadata,
        "render_mode": "rgb_array",
        **fields,
    }
    return EnvContract(**values)


_SINGLE = _contract(RecordedEnv())
_LANES = _contract(RecordedEnv(), num_envs=2)
_VECTOR = _contract(
    RecordedEnv(),
    env_id="UnknownEnv-v1",
    metadata={**RecordedEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP},
    num_envs=2,
    autoreset_mode=AutoresetMode.NEXT_STEP,
)
_CONTRACTS = {
    "env.HandshakeResponse": _SINGLE,
    "env.HandshakeResponse.lanes": _LANES,
    "env.HandshakeResponse.next_step": _VECTOR,
    "env.HandshakeResponse.catalogue": _contract(CatalogueEnv()),
    **{f"env.HandshakeResponse.{name}": _contract(CatalogueEnv(name)) for name in ALONE},
}


@builds("env.HandshakeRequest")
def _(seen: Any) -> Any:
    return env_service_pb2.HandshakeRequest(base=_handshake_request(seen, "rlmesh-env"))


@builds("model.HandshakeRequest")
def _(seen: Any) -> Any:
    return model_service_pb2.HandshakeRequest(base=_handshake_request(seen, "rlmesh-model"))


@builds("model.HandshakeResponse")
def _(seen: Any) -> Any:
    capabilities = ("rlmesh.model.concurrent_predict.v1", "rlmesh.model.observation_history.v1")
    return model_service_pb2.HandshakeResponse(
        base=_handshake_response(seen, "rlmesh-model", *capabilities)
    )


def _build_contract(contract: EnvContract) -> Builder:
    def build(seen: Any) -> Any:
        names = [] if contract is _VECTOR else ["subset_step"]
        return env_service_pb2.HandshakeResponse(
            base=_handshake_response(seen, "rlmesh-env", *names),
            env_contract=encode_contract(contract),
        )

    return build


_BUILDERS.update({name: _build_contract(contract) for name, contract in _CONTRACTS.items()})


@pytest.mark.parametrize("name", _CONTRACTS)
def test_contracts_are_read_as_they_were_declared(name: str) -> None:
    seen = env_service_pb2.HandshakeResponse.FromString(captured(name))
    assert decode_contract(seen.env_contract) == _CONTRACTS[name]


# Requests to an environment.


@builds("env.JoinRequest.configure")
def _(seen: Any) -> Any:
    configure = env_pb2.ConfigureEnvRequest(selected_workflow_edition="2026.06")
    return env_pb2.JoinRequest(configure=configure, request_id="grpc-req-1")


@builds("env.JoinRequest.reset")
def _(seen: Any) -> Any:
    reset = env_pb2.ResetRequest(
        seeds=[7], options=encode_meta_map(RESET_OPTIONS), episode_ids=seen.reset.episode_ids
    )
    return env_pb2.JoinRequest(reset=reset, request_id="grpc-req-2")


@builds("env.JoinRequest.reset.lanes", "env.JoinRequest.reset.next_step")
def _(seen: Any) -> Any:
    reset = env_pb2.ResetRequest(seeds=[7, 8], timeout_ms=30000, episode_ids=seen.reset.episode_ids)
    return env_pb2.JoinRequest(reset=reset, request_id="grpc-req-2")


@builds("env.JoinRequest.reset.one_lane")
def _(seen: Any) -> Any:
    reset = env_pb2.ResetRequest(
        seeds=[2], timeout_ms=300000, env_indices=[1], episode_ids=seen.reset.episode_ids
    )
    return env_pb2.JoinRequest(reset=reset, request_id=seen.request_id)


@builds("env.JoinRequest.step")
def _(seen: Any) -> Any:
    action = _ACTION.encode(_ACTION.flatten_row(ACTION), 1)
    step = env_pb2.StepRequest(action=action, episode_ids=seen.step.episode_ids)
    return env_pb2.JoinRequest(step=step, request_id="grpc-req-3")


@builds("env.JoinRequest.step.lanes", "env.JoinRequest.step.next_step")
def _(seen: Any) -> Any:
    step = env_pb2.StepRequest(
        action=_ACTION.encode(_ACTION.flatten(LANES_ACTION, 2), 2),
        timeout_ms=30000,
        episode_ids=seen.step.episode_ids,
    )
    return env_pb2.JoinRequest(step=step, request_id="grpc-req-4")


@builds("env.JoinRequest.step.one_lane")
def _(seen: Any) -> Any:
    (action,) = _CARTPOLE_ACTION.decode(seen.step.action, 1)
    step = env_pb2.StepRequest(
        action=_CARTPOLE_ACTION.encode([action], 1),
        timeout_ms=300000,
        env_indices=seen.step.env_indices,
        episode_ids=seen.step.episode_ids,
    )
    return env_pb2.JoinRequest(step=step, request_id=seen.request_id)


@builds("env.JoinRequest.render")
def _(seen: Any) -> Any:
    render = env_pb2.RenderRequest(env_indices=[0])
    return env_pb2.JoinRequest(render=render, request_id="grpc-req-4")


@builds("env.JoinRequest.close")
def _(seen: Any) -> Any:
    close = env_pb2.CloseEnvsRequest(reason="client close")
    return env_pb2.JoinRequest(close=close, request_id=seen.request_id)


# Answers of an environment.


def _answer(seen: Any, request_id: str, *timings: str, **kind: Any) -> env_pb2.JoinResponse:
    measured = {name: getattr(seen, name) for name in ("endpoint_total_ns", *timings)}
    return env_pb2.JoinResponse(request_id=request_id, **kind, **measured)


_ALL = ("decode_ns", "user_ns", "encode_ns", "queue_ns")


def _observation(space: spaces.Space[Any], *steps: int) -> Any:
    codec = SpaceCodec(space)
    samples = [fixed_sample(space, step) for step in steps]
    return codec.encode(codec.flatten_rows(samples), len(steps))


@builds("env.JoinResponse.configure")
def _(seen: Any) -> Any:
    return _answer(seen, "grpc-req-1", configure=env_pb2.ConfigureEnvResponse())


@builds("env.JoinResponse.reset")
def _(seen: Any) -> Any:
    reset = env_pb2.ResetResponse(
        observation=_observation(RecordedEnv.observation_space, 0),
        infos=encode_meta_map(info_of(0)),
    )
    return _answer(seen, "grpc-req-2", *_timings(seen), reset=reset)


def _timings(seen: Any) -> list[str]:
    return [name for name in (*_ALL, "lane_skew_ns") if seen.HasField(name)]


def _lane_infos(step: int, *, ended: bool) -> dict[str, Any]:
    return {"final_info": [info_of(step)] * 2, "_final_info": [ended] * 2}


def _vector_infos(step: int) -> dict[str, Any]:
    """What Gymnasium itself makes of two equal infos."""
    infos: dict[str, Any] = {}
    for lane in range(2):
        infos = VectorEnv._add_info(_Two(), infos, info_of(step), lane)  # type: ignore[arg-type]
    return infos


class _Two:
    num_envs = 2
    _add_info = VectorEnv._add_info
    _init_info_arrays = getattr(VectorEnv, "_init_info_arrays", None)


@builds("env.JoinResponse.reset.lanes", "env.JoinResponse.reset.next_step")
def _(seen: Any) -> Any:
    lanes = "final_info" in seen.reset.infos.entries
    infos = _lane_infos(0, ended=True) if lanes else _vector_infos(0)
    reset = env_pb2.ResetResponse(
        observation=_observation(RecordedEnv.observation_space, 0, 0),
        infos=encode_meta_map(infos),
    )
    return _answer(seen, "grpc-req-2", *_timings(seen), reset=reset)


def _build_catalogue_reset(name: str) -> Builder:
    def build(seen: Any) -> Any:
        space = CatalogueEnv(name).observation_space
        reset = env_pb2.ResetResponse(
            observation=_observation(space, 0), infos=encode_meta_map(info_of(0))
        )
        return _answer(seen, "1", *_timings(seen), reset=reset)

    return build


_BUILDERS["env.JoinResponse.reset.catalogue"] = _build_catalogue_reset("")
_BUILDERS.update({f"env.JoinResponse.reset.{name}": _build_catalogue_reset(name) for name in ALONE})


def _episode(seen: Any, lane: int, infos: dict[str, Any], **fields: Any) -> Any:
    return env_pb2.EpisodeMetadata(
        episode_id=seen.episode_id,
        seed=7 + lane,
        env_index=lane,
        step_count=2,
        cumulative_reward=1.5,
        terminated=True,
        start_timestamp_ns=seen.start_timestamp_ns,
        end_timestamp_ns=seen.end_timestamp_ns,
        final_info=encode_meta_map(infos),
        **fields,
    )


@builds("env.JoinResponse.step")
def _(seen: Any) -> Any:
    step = env_pb2.StepResponse(
        observation=_observation(RecordedEnv.observation_space, 1),
        rewards=[0.5],
        terminated_mask=b"\0",
        truncated_mask=b"\0",
        infos=encode_meta_map(info_of(1)),
    )
    return _answer(seen, "grpc-req-3", *_timings(seen), step=step)


@builds("env.JoinResponse.step.ended")
def _(seen: Any) -> Any:
    step = env_pb2.StepResponse(
        observation=_observation(RecordedEnv.observation_space, 2),
        rewards=[1.0],
        terminated_mask=b"\1",
        truncated_mask=b"\0",
        infos=encode_meta_map(info_of(2)),
        completed_episodes=[_episode(seen.step.completed_episodes[0], 0, info_of(2))],
    )
    return _answer(seen, "grpc-req-4", *_timings(seen), step=step)


@builds("env.JoinResponse.step.lanes", "env.JoinResponse.step.next_step")
def _(seen: Any) -> Any:
    lanes = "final_info" in seen.step.infos.entries
    infos = _lane_infos(2, ended=True) if lanes else _vector_infos(2)
    completed = [
        _episode(episode, lane, info_of(2))
        for lane, episode in enumerate(seen.step.completed_episodes)
    ]
    step = env_pb2.StepResponse(
        observation=_observation(RecordedEnv.observation_space, 2, 2),
        rewards=[1.0, 1.0],
        terminated_mask=b"\1\1",
        truncated_mask=b"\0\0",
        infos=encode_meta_map(infos),
        completed_episodes=completed,
    )
    return _answer(seen, "grpc-req-4", *_timings(seen), step=step)


@builds("env.JoinResponse.render")
def _(seen: Any) -> Any:
    # PNG has many encodings of one picture: the pixels are compared, the bytes taken over.
    pixels = np.asarray(Image.open(io.BytesIO(seen.render.frame)))
    np.testing.assert_array_equal(pixels, RecordedEnv().render())
    render = env_pb2.RenderResponse(frame=seen.render.frame, format=env_pb2.RENDER_FORMAT_PNG)
    return _answer(seen, "grpc-req-4", *_timings(seen), render=render)


@builds("env.JoinResponse.close")
def _(seen: Any) -> Any:
    return _answer(seen, seen.request_id, *_timings(seen), close=env_pb2.CloseEnvsResponse())


@builds("env.JoinResponse.close.running")
def _(seen: Any) -> Any:
    (running,) = seen.close.final_episodes
    episode = env_pb2.EpisodeMetadata(
        episode_id="e",
        truncated=True,
        start_timestamp_ns=running.start_timestamp_ns,
        end_timestamp_ns=running.end_timestamp_ns,
    )
    close = env_pb2.CloseEnvsResponse(final_episodes=[episode])
    return _answer(seen, "3", *_timings(seen), close=close)


@builds("env.JoinResponse.error.internal")
def _(seen: Any) -> Any:
    error = env_pb2.EnvError(
        code=env_pb2.ENV_ERROR_CODE_INTERNAL,
        message="step failed: ValueError: broken on purpose",
    )
    return _answer(seen, "grpc-req-3", *_timings(seen), error=error)


@builds("env.JoinResponse.error.recoverable")
def _(seen: Any) -> Any:
    error = env_pb2.EnvError(
        code=env_pb2.ENV_ERROR_CODE_INVALID_ACTION,
        message="expected 1 actions, got 0",
        is_recoverable=True,
    )
    return _answer(seen, "2", *_timings(seen), error=error)


@builds("env.ShutdownRequest")
def _(seen: Any) -> Any:
    base = handshake_pb2.ShutdownRequest(reason="no more")
    return env_service_pb2.ShutdownRequest(base=base)


@builds("env.ShutdownResponse")
def _(seen: Any) -> Any:
    message = "remote shutdown is disabled for this environment endpoint"
    base = handshake_pb2.ShutdownResponse(accepted=False, message=message)
    return env_service_pb2.ShutdownResponse(base=base)


@builds("env.ShutdownResponse.accepted")
def _(seen: Any) -> Any:
    base = handshake_pb2.ShutdownResponse(accepted=True, message="shutdown accepted: done")
    return env_service_pb2.ShutdownResponse(base=base)


@builds("model.ShutdownResponse")
def _(seen: Any) -> Any:
    message = "remote shutdown is disabled for this model endpoint"
    base = handshake_pb2.ShutdownResponse(accepted=False, message=message)
    return model_service_pb2.ShutdownResponse(base=base)


# Requests to a model.


def _context(seen: Any, suffix: str) -> Any:
    env_id = seen.env_id
    return model_pb2.AdapterContext(
        session_id=seen.session_id, env_id=env_id, request_id=f"{env_id}:{suffix}"
    )


def _suffix(seen: Any) -> str:
    return str(seen.request_id.partition(":")[2])


@builds("model.JoinRequest.resolve_adapter", "model.JoinRequest.resolve_adapter.chunk")
def _(seen: Any) -> Any:
    request = seen.resolve_adapter
    observation_space = decode_contract(_cartpole_contract(request)).single_observation_space
    resolve = model_pb2.ResolveAdapterRequest(
        context=model_pb2.AdapterContext(
            session_id=request.context.session_id,
            env_id=request.context.env_id,
            request_id=request.context.request_id,
        ),
        env_spec=encode_env_spec(
            "CartPole-v1",
            observation_space,
            spaces.Discrete(2),
            {"render_fps": 50, "render_modes": ["human", "rgb_array"]},
        ),
        selected_workflow_edition="2026.06",
        execution_horizon=request.execution_horizon,
        delivers_history=True,
    )
    assert request.execution_horizon in (1, 2)
    return model_pb2.JoinRequest(resolve_adapter=resolve, request_id=seen.request_id)


def _cartpole_contract(request: Any) -> Any:
    message = encode_contract(_SINGLE)
    message.spec.CopyFrom(request.env_spec)
    return message


@builds("model.JoinRequest.predict")
def _(seen: Any) -> Any:
    codec = SpaceCodec(spaces.Box(-np.inf, np.inf, (4,)))
    predict = model_pb2.PredictRequest(
        context=_context(seen.predict.context, _suffix(seen)),
        observation=codec.encode(codec.decode(seen.predict.observation, 1), 1),
        episode_info=[
            model_pb2.EpisodeInfo(episode_id=seen.predict.episode_info[0].episode_id, seed=2)
        ],
    )
    return model_pb2.JoinRequest(predict=predict, request_id=seen.request_id)


@builds("model.JoinRequest.predict.stacked")
def _(seen: Any) -> Any:
    env = TaggedEnv()
    codec = SpaceCodec(env.observation_space)
    (frame,) = seen.predict.history
    (info,) = seen.predict.episode_info
    episode = model_pb2.EpisodeInfo(episode_id=info.episode_id, seed=1)
    predict = model_pb2.PredictRequest(
        context=_context(seen.predict.context, _suffix(seen)),
        observation=codec.encode(codec.decode(seen.predict.observation, 1), 1),
        episode_info=[episode],
        history=[
            model_pb2.ObservationHistoryFrame(
                observation=codec.encode(codec.decode(frame.observation, 1), 1),
                episode_info=[episode],
                step=1,
            )
        ],
        step=2,
    )
    return model_pb2.JoinRequest(predict=predict, request_id=seen.request_id)


@builds("model.JoinRequest.reset_adapter")
def _(seen: Any) -> Any:
    reset = model_pb2.ResetAdapterRequest(
        context=_context(seen.reset_adapter.context, _suffix(seen)),
        episode_ids=seen.reset_adapter.episode_ids,
    )
    return model_pb2.JoinRequest(reset_adapter=reset, request_id=seen.request_id)


@builds("model.JoinRequest.release_adapter")
def _(seen: Any) -> Any:
    release = model_pb2.ReleaseAdapterRequest(
        context=_context(seen.release_adapter.context, "release_adapter"),
        reason=seen.release_adapter.reason,
    )
    return model_pb2.JoinRequest(release_adapter=release, request_id=seen.request_id)


# Answers of a model.


def _model_answer(seen: Any, **kind: Any) -> model_pb2.JoinResponse:
    measured = {
        field.name: getattr(seen, field.name)
        for field in seen.DESCRIPTOR.fields
        if field.containing_oneof is not None
        and field.containing_oneof.name != "kind"
        and seen.HasField(field.name)
    }
    return model_pb2.JoinResponse(request_id=seen.request_id, **kind, **measured)


@builds("model.JoinResponse.resolve_adapter")
def _(seen: Any) -> Any:
    return _model_answer(seen, resolve_adapter=model_pb2.ResolveAdapterResponse())


@builds("model.JoinResponse.resolve_adapter.chunk")
def _(seen: Any) -> Any:
    return _model_answer(seen, resolve_adapter=model_pb2.ResolveAdapterResponse(native_chunk=4))


@builds("model.JoinResponse.resolve_adapter.stacked")
def _(seen: Any) -> Any:
    history = model_pb2.ObservationHistoryNeeds(keys=["image"])
    resolved = model_pb2.ResolveAdapterResponse(native_chunk=4, history=history)
    return _model_answer(seen, resolve_adapter=resolved)


def _predicted(seen: Any, num_frames: int) -> model_pb2.PredictResponse:
    assert len(seen.actions) == num_frames
    frames = [_CARTPOLE_ACTION.decode(frame, 1) for frame in seen.actions]
    return model_pb2.PredictResponse(
        context=_context(seen.context, _suffix(seen.context)),
        actions=[_CARTPOLE_ACTION.encode(frame, 1) for frame in frames],
    )


@builds("model.JoinResponse.predict")
def _(seen: Any) -> Any:
    return _model_answer(seen, predict=_predicted(seen.predict, 1))


@builds("model.JoinResponse.predict.chunk")
def _(seen: Any) -> Any:
    return _model_answer(seen, predict=_predicted(seen.predict, 2))


@builds("model.JoinResponse.grouped_predict")
def _(seen: Any) -> Any:
    error = model_pb2.ModelError(
        code=model_pb2.MODEL_ERROR_CODE_INTERNAL,
        message="model error: model env adapter was not resolved",
    )
    results = [
        model_pb2.GroupedPredictResult(
            response=_predicted(seen.grouped_predict.results[0].response, 1)
        ),
        model_pb2.GroupedPredictResult(error=error),
    ]
    grouped = model_pb2.GroupedPredictResponse(results=results)
    return _model_answer(seen, grouped_predict=grouped)


@builds("model.JoinResponse.reset_adapter")
def _(seen: Any) -> Any:
    return _model_answer(seen, reset_adapter=model_pb2.ResetAdapterResponse())


@builds("model.JoinResponse.release_adapter")
def _(seen: Any) -> Any:
    return _model_answer(seen, release_adapter=model_pb2.ReleaseAdapterResponse())


@builds("model.JoinResponse.close")
def _(seen: Any) -> Any:
    return _model_answer(seen, close=model_pb2.CloseParticipantResponse())


@builds("model.JoinResponse.error")
def _(seen: Any) -> Any:
    error = model_pb2.ModelError(
        code=model_pb2.MODEL_ERROR_CODE_UNSUPPORTED,
        message=seen.error.message,
        is_recoverable=True,
    )
    return _model_answer(seen, error=error)


# Values are read as they were written.


def test_infos_are_read_back() -> None:
    seen = env_pb2.JoinResponse.FromString(captured("env.JoinResponse.step"))
    infos = decode_meta_map(seen.step.infos)
    expected = decode_meta_map(encode_meta_map(info_of(1)))
    assert repr(infos) == repr(expected)  # repr: one of them is NaN


def test_observations_are_read_back() -> None:
    seen = env_pb2.JoinResponse.FromString(captured("env.JoinResponse.step.lanes"))
    leaves = _OBSERVATION.decode(seen.step.observation, 2)
    for lane in range(2):
        sample = _OBSERVATION.unflatten_row(leaves, lane)
        assert sample in RecordedEnv.observation_space
        expected = _OBSERVATION.flatten_row(fixed_sample(RecordedEnv.observation_space, 2))
        for rows, same in zip(_OBSERVATION.flatten_row(sample), expected, strict=True):
            np.testing.assert_array_equal(rows, same)
