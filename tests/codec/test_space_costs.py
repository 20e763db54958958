"""What a description of a space may cost whoever reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym.codec import decode_space, encode_space
from rlmesh_gym.errors import CodecError, ConfigurationError


def reshaped(space: spaces.Box, *shape: int) -> Any:
    """The same few bytes for another shape."""
    spec = encode_space(space)
    del spec.shape[:]
    spec.shape.extend(shape)
    return spec


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 1, (2,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)]
)
def test_a_shape_that_nobody_paid_for(space: spaces.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodecError, match="raise RLMESH_GYM_MAX_SPACE_BYTES"):
        decode_space(reshaped(space, 64, 1024, 1024))
    several = encode_space(spaces.Tuple([spaces.Discrete(2)] * 3))
    for member in several.tuple.spaces:
        member.CopyFrom(reshaped(space, 2, 1024, 1024))
    with pytest.raises(CodecError, match=r"\$\[2\].*RLMESH_GYM_MAX_SPACE_BYTES"):
        decode_space(several)
    assert decode_space(reshaped(space, 4, 1024, 1024)).shape == (4, 1024, 1024)
    monkeypatch.setenv("RLMESH_GYM_MAX_SPACE_BYTES", "100")
    assert decode_space(reshaped(space, 10)).shape == (10,)
    with pytest.raises(CodecError, match="more than 100 bytes"):
        decode_space(reshaped(space, 11))
    monkeypatch.setenv("RLMESH_GYM_MAX_SPACE_BYTES", "none")
    with pytest.raises(ConfigurationError, match="RLMESH_GYM_MAX_SPACE_BYTES"):
        decode_space(reshaped(space, 10))


def test_bounds_that_came_one_by_one_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLMESH_GYM_MAX_SPACE_BYTES", "100")
    space = spaces.Box(np.arange(50, dtype=np.float32), np.full(50, 99, np.float32))
    assert decode_space(encode_space(space)) == space


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_members_are_counted(kind: str) -> None:
    member = spaces.Discrete(2)
    most = {f"key{number}": member for number in range(4095)}
    as_kind: Any = spaces.Dict if kind == "dict" else lambda each: spaces.Tuple(list(each.values()))
    assert decode_space(encode_space(as_kind(most))) == as_kind(most)
    with pytest.raises(CodecError, match="more than 4096 spaces"):
        decode_space(encode_space(as_kind({**most, "one more": member})))


def test_a_key_that_comes_twice_among_very_many() -> None:
    spec = encode_space(spaces.Dict({"key": spaces.Discrete(2)}))
    member = spec.dict.spaces[0]
    for number in range(60_000):
        spec.dict.keys.append(f"key{number}")
        spec.dict.spaces.append(member)
    spec.dict.keys[-1] = "key"
    with pytest.raises(CodecError, match="duplicate key 'key'"):
        decode_space(spec)
