"""Seeds against a second implementation of the same rule, written from its text."""

from __future__ import annotations

import struct
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmesh_gym.runtime import RuntimeSessionSpec, derive_seed

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)


def fnv1a(data: bytes) -> int:
    prime, basis = 1099511628211, 14695981039346656037
    return reduce(lambda state, byte: ((state ^ byte) * prime) % 2**64, data, basis)


def expected_seed(base: int, session: str, generation: int, lane: int) -> int:
    text = session.encode("utf-8")
    data = struct.pack(f"<qB{len(text)}sBQBQ", base, 255, text, 253, generation, 252, lane)
    return fnv1a(data) % 2**63


def test_the_second_implementation_knows_the_published_vectors() -> None:
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a(b"foobar") == 0x85944171F73967E8


@given(INT64, st.text(max_size=20), UINT64, UINT64)
def test_any_seed_is_what_the_rule_gives(
    base: int, session: str, generation: int, lane: int
) -> None:
    seed = derive_seed(base, session, generation, lane)
    assert seed == expected_seed(base, session, generation, lane)
    assert 0 <= seed < 2**63


def test_fixed_vectors() -> None:
    # Written down once, so that a change of the rule cannot pass unseen.
    assert [derive_seed(7, "run", 0, lane) for lane in range(3)] == [
        9109197373386229057,
        6876881966418639648,
        4350456150466632067,
    ]
    assert derive_seed(-1, "", 2**64 - 1, 0) == expected_seed(-1, "", 2**64 - 1, 0)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        derive_seed(2**63, "run", 0, 0)
    with pytest.raises(OverflowError):
        derive_seed(0, "run", -1, 0)


def test_the_spec_seeds_by_lane_and_generation() -> None:
    spec = RuntimeSessionSpec(base_seed=7, session_id="s")
    assert spec.seed_for(2, 5, 4) == expected_seed(7, "s", 5, 2)
    planned = RuntimeSessionSpec(episode_seeds=(10, 11, 12, 13, 14)).validate()
    assert [planned.seed_for(lane, 0, 3) for lane in range(3)] == [10, 11, 12]
    assert [planned.seed_for(lane, 1, 3) for lane in range(2)] == [13, 14]
    assert RuntimeSessionSpec().seed_for(0, 0, 1) is None
