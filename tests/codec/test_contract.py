"""Contracts of endpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.core.v1 import env_contract_pb2
from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.codec import (
    EnvContract,
    decode_contract,
    decode_env_spec,
    encode_contract,
    encode_env_spec,
)
from rlmesh_gym.errors import CodecError, UnsupportedSpaceError
from tests import strategies
from tests.catalogue import MIXED_SPACE, SPACES

_CARTPOLE = spaces.Box(-np.inf, np.inf, (4,))
_LEFT_RIGHT = spaces.Discrete(2)


def contract(**fields: Any) -> EnvContract:
    values = {
        "env_id": "CartPole-v1",
        "single_observation_space": _CARTPOLE,
        "single_action_space": _LEFT_RIGHT,
        **fields,
    }
    return EnvContract(**values)


def message(**fields: Any) -> env_contract_pb2.EnvContract:
    encoded = encode_contract(contract())
    for name, value in fields.items():
        setattr(encoded, name, value)
    return encoded


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_round_trip(space: spaces.Space[Any], mode: AutoresetMode) -> None:
    whole = contract(
        single_observation_space=space,
        single_action_space=space,
        metadata={"render_fps": 50, "render_modes": ["human"], "autoreset_mode": mode},
        num_envs=3,
        render_mode="rgb_array",
        autoreset_mode=mode,
    )
    encoded = encode_contract(whole)
    assert encoded.spec.metadata.entries["autoreset_mode"].text == mode.value
    parsed = env_contract_pb2.EnvContract.FromString(encoded.SerializeToString())
    assert decode_contract(parsed) == whole


def test_defaults() -> None:
    assert decode_contract(encode_contract(contract())) == contract()
    assert contract().num_envs == 1
    assert contract().autoreset_mode is AutoresetMode.DISABLED


def test_no_lanes_mean_one() -> None:
    assert decode_contract(message(num_envs=0)).num_envs == 1


def test_empty_render_mode_is_none() -> None:
    assert decode_contract(message(render_mode="")).render_mode is None


class TestAutoresetMode:
    """The field wins; metadata speaks only where the field is silent."""

    @pytest.mark.parametrize(
        ("number", "text", "mode"),
        [
            (0, None, AutoresetMode.DISABLED),
            (0, "NextStep", AutoresetMode.NEXT_STEP),
            (0, "SameStep", AutoresetMode.SAME_STEP),
            (0, "Disabled", AutoresetMode.DISABLED),
            (0, "Sometimes", AutoresetMode.DISABLED),
            (0, 3, AutoresetMode.DISABLED),
            (1, None, AutoresetMode.NEXT_STEP),
            (2, "NextStep", AutoresetMode.SAME_STEP),
            (3, "NextStep", AutoresetMode.DISABLED),
        ],
    )
    def test_decode(self, number: int, text: object, mode: AutoresetMode) -> None:
        metadata = {} if text is None else {"autoreset_mode": text}
        encoded = encode_contract(contract(metadata=metadata))
        encoded.autoreset_mode = number  # type: ignore[assignment]
        decoded = decode_contract(encoded)
        assert decoded.autoreset_mode is mode
        assert decoded.metadata == ({} if text is None else {"autoreset_mode": mode})

    def test_unknown(self) -> None:
        with pytest.raises(CodecError, match="9 is not an autoreset mode") as caught:
            decode_contract(message(autoreset_mode=9))
        assert caught.value.path == "autoreset_mode"


class TestMalformed:
    """Each with the path of what is wrong."""

    @pytest.mark.parametrize("name", ["action_space", "observation_space"])
    def test_missing_space(self, name: str) -> None:
        encoded = message()
        encoded.spec.ClearField(name)  # type: ignore[arg-type]
        with pytest.raises(CodecError, match="has no") as caught:
            decode_contract(encoded)
        assert caught.value.path == name

    def test_nothing(self) -> None:
        with pytest.raises(CodecError):
            decode_contract(env_contract_pb2.EnvContract())

    @pytest.mark.parametrize("name", ["action_space", "observation_space"])
    def test_bad_space(self, name: str) -> None:
        encoded = message()
        getattr(encoded.spec, name).Clear()
        getattr(encoded.spec, name).shape.append(1)
        with pytest.raises(CodecError, match="no kind") as caught:
            decode_contract(encoded)
        assert caught.value.path == name

    def test_more_lanes_than_a_message_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for num_envs in (2**32 - 1, 98_305):
            with pytest.raises(CodecError, match=r"98304 are expected; set .*MAX_SPACE_BYTES"):
                decode_contract(message(num_envs=num_envs))
        assert decode_contract(message(num_envs=98_304)).num_envs == 98_304
        monkeypatch.setenv("RLMESH_GYM_MAX_MESSAGE_BYTES", "1000")
        with pytest.raises(CodecError, match=r"63 lanes of 16 bytes do not fit.*MAX_MESSAGE_BYTES"):
            decode_contract(message(num_envs=63))
        observation = spaces.Dict({"text": spaces.Text(3), "p": spaces.Tuple((_CARTPOLE,))})
        encoded = encode_contract(contract(single_observation_space=observation, num_envs=42))
        with pytest.raises(CodecError, match="lanes of 24 bytes do not fit"):
            decode_contract(encoded)

    def test_no_wire_form(self) -> None:
        with pytest.raises(UnsupportedSpaceError) as caught:
            encode_contract(contract(single_action_space=spaces.Sequence(_LEFT_RIGHT)))
        assert caught.value.path == "action_space"
        with pytest.raises(CodecError) as refused:
            encode_contract(contract(metadata={"f": len}))
        assert refused.value.path == "metadata.f"

    @pytest.mark.parametrize("num_envs", [0, -1, 2**32])
    def test_number_of_lanes(self, num_envs: int) -> None:
        with pytest.raises(CodecError, match="expected a number of lanes"):
            encode_contract(contract(num_envs=num_envs))

    def test_texts_that_are_not_unicode(self) -> None:
        with pytest.raises(CodecError, match="not Unicode"):
            encode_contract(contract(env_id="\ud800"))
        with pytest.raises(CodecError, match="not Unicode"):
            encode_contract(contract(render_mode="\ud800"))


def test_env_spec() -> None:
    encoded = encode_env_spec("id", MIXED_SPACE, _LEFT_RIGHT, {"a": [1]})
    decoded = decode_env_spec(encoded)
    assert decoded.env_id == "id"
    assert decoded.single_observation_space == MIXED_SPACE
    assert decoded.single_action_space == _LEFT_RIGHT
    assert decoded.metadata == {"a": [1]}


def test_env_spec_without_observation_space() -> None:
    """A model can be resolved for an environment whose observations it never sees."""
    encoded = encode_env_spec("id", None, _LEFT_RIGHT)
    assert not encoded.HasField("observation_space")
    assert decode_env_spec(encoded).single_observation_space is None
    request = interaction_pb2.ResolveAdapterRequest(env_spec=encoded)
    assert decode_env_spec(request.env_spec).single_action_space == _LEFT_RIGHT


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_arbitrary_contracts(data: st.DataObject) -> None:
    space = data.draw(st.sampled_from(SPACES))
    valid = encode_contract(contract(single_observation_space=space, metadata={"a": [1, "b"]}))
    encoded = data.draw(strategies.mutated(valid) | strategies.parsed(env_contract_pb2.EnvContract))
    try:
        decoded = decode_contract(encoded)
    except CodecError:
        return
    assert decode_contract(encode_contract(decoded)) == decoded
