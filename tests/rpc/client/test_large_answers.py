"""Large observations in answers and requests: by hand they read and are written as by protobuf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from gymnasium import spaces

from rlmesh_gym._proto.env.v1 import interaction_pb2 as pb
from rlmesh_gym._proto.model.v1 import interaction_pb2 as model_pb
from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.rpc import ModelSession
from rlmesh_gym.rpc.large_answers import (
    LARGE_BYTES,
    LargeRequest,
    RawValue,
    assemble,
    parse_answer,
)

LARGE = bytes(range(251)) * 300


def an_answer(kind: str, leaves: list[bytes]) -> pb.JoinResponse:
    response = pb.JoinResponse(request_id="r1", endpoint_total_ns=2**60, user_ns=3)
    arm = getattr(response, kind)
    arm.infos.entries["x"].integer = -5
    if leaves:
        arm.observation.leaves.extend(leaves)
    if kind == "step":
        arm.rewards.extend([1.0, -2.0])
        arm.terminated_mask = b"\0\1"
        arm.env_indices.extend([3, 200])
    return response


def check_equal(answer: Any, expected: pb.JoinResponse, kind: str) -> None:
    assert answer.WhichOneof("kind") == kind
    assert answer.request_id == expected.request_id
    assert answer.user_ns == expected.user_ns
    assert answer.endpoint_total_ns == expected.endpoint_total_ns
    assert not answer.HasField("error")
    body, wanted = getattr(answer, kind), getattr(expected, kind)
    assert list(map(bytes, body.observation.leaves)) == list(wanted.observation.leaves)
    assert body.infos == wanted.infos
    if kind == "step":
        assert list(body.rewards) == list(wanted.rewards)
        assert body.terminated_mask == wanted.terminated_mask
        assert list(body.env_indices) == list(wanted.env_indices)


@pytest.mark.parametrize("kind", ["reset", "step"])
@pytest.mark.parametrize("leaves", [[LARGE], [b"", LARGE, b"abc"], [LARGE, LARGE]])
def test_a_large_observation_stays_where_it_was_received(kind: str, leaves: list[bytes]) -> None:
    expected = an_answer(kind, leaves)
    data = expected.SerializeToString()
    bare = an_answer(kind, [])
    for encoded in (data, assemble(bare, leaves)):
        answer = parse_answer(encoded)
        body = getattr(answer, kind)
        assert isinstance(body.observation, RawValue)
        assert all(leaf.obj is encoded for leaf in body.observation.leaves)
        check_equal(answer, expected, kind)


@pytest.mark.parametrize("leaves", [[LARGE], [b"", LARGE, b"abc"]])
def test_a_large_request_is_the_message_that_protobuf_encodes(leaves: list[bytes]) -> None:
    request = model_pb.JoinRequest()
    request.predict.context.env_id = "env"
    request.predict.episode_info.add(episode_id="a", seed=3)
    request.predict.step = 7
    expected = model_pb.JoinRequest(request_id="12")
    expected.predict.CopyFrom(request.predict)
    expected.predict.observation.leaves.extend(leaves)
    large = LargeRequest(request, RawValue([memoryview(leaf) for leaf in leaves]))
    large.request_id = "12"
    assert model_pb.JoinRequest.FromString(large.SerializeToString()) == expected


def test_a_large_batch_is_packed_without_a_copy() -> None:
    codec = SpaceCodec(spaces.Box(0, 255, (LARGE_BYTES // 2,), np.uint8))
    rows = codec.empty(2)
    packed = ModelSession.pack(codec, rows, 2)
    assert isinstance(packed, RawValue)
    assert np.shares_memory(np.frombuffer(packed.leaves[0], np.uint8), rows[0])
    small = [rows[0][:1]]
    assert ModelSession.pack(codec, small, 1) == codec.encode(small, 1)


def test_small_answers_and_other_kinds_are_messages() -> None:
    small = an_answer("step", [b"x" * 10])
    assert parse_answer(small.SerializeToString()) == small
    frame = pb.JoinResponse(request_id="1")
    frame.render.frame = bytes(LARGE_BYTES * 2)
    assert parse_answer(frame.SerializeToString()) == frame


def test_an_observation_in_two_pieces_is_left_to_protobuf() -> None:
    first, second = an_answer("step", [LARGE]), an_answer("step", [LARGE])
    data = first.SerializeToString() + second.SerializeToString()
    assert parse_answer(data) == pb.JoinResponse.FromString(data)


@pytest.mark.parametrize("length", [1, 20, 1000, LARGE_BYTES, LARGE_BYTES + 1])
def test_what_is_cut_off_or_no_message_fails_as_in_protobuf(length: int) -> None:
    data = an_answer("step", [LARGE]).SerializeToString()
    with pytest.raises(DecodeError):
        parse_answer(data[:-length])
    with pytest.raises(DecodeError):
        parse_answer(b"\xff" * len(data))


def test_flipped_bytes_never_read_otherwise_than_in_protobuf() -> None:
    random = np.random.default_rng(0)
    data = an_answer("step", [LARGE, b"tail"]).SerializeToString()
    places = [*range(40), *range(len(data) - 60, len(data))]
    for _ in range(500):
        changed = bytearray(data)
        changed[int(random.choice(places))] = int(random.integers(256))
        try:
            expected = pb.JoinResponse.FromString(bytes(changed))
        except DecodeError:
            with pytest.raises(DecodeError):
                parse_answer(bytes(changed))
            continue
        answer = parse_answer(bytes(changed))
        kind = expected.WhichOneof("kind")
        assert answer.WhichOneof("kind") == kind
        if kind == "step":
            leaves = list(map(bytes, answer.step.observation.leaves))
            assert leaves == list(expected.step.observation.leaves)
            assert answer.step.infos == expected.step.infos


def test_a_codec_decodes_views_into_arrays_of_their_own() -> None:
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (90, 90), np.uint8), "text": spaces.Text(9000)}
    )
    codec = SpaceCodec(space)
    space.seed(0)
    leaves = codec.flatten_rows([space.sample() for _ in range(3)])
    response = pb.JoinResponse()
    response.reset.observation.CopyFrom(codec.encode(leaves, 3))
    observation = parse_answer(response.SerializeToString()).reset.observation
    decoded = codec.decode(observation, 3)
    into = codec.empty(3)
    codec.decode_into(observation, into, 0, 3)
    for rows, copied, wanted in zip(decoded, into, leaves, strict=True):
        assert np.array_equal(rows, wanted)
        assert np.array_equal(copied, wanted)
        assert rows.flags.writeable
