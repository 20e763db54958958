"""Seeds of a run: one per lane and reset, from a base seed, the same on every machine.

A pure function of names and numbers, so that a run can be repeated, or split over machines,
without keeping a generator's state.
"""

from __future__ import annotations

__all__ = ["derive_seed"]

# FNV-1a, 64 bit: the published offset basis and prime.
_OFFSET_BASIS = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK_U64 = 0xFFFF_FFFF_FFFF_FFFF
# A reset seed crosses the wire as int64 and Gymnasium refuses negative ones.
_MASK_I63 = 0x7FFF_FFFF_FFFF_FFFF


def derive_seed(base_seed: int, session_id: str, generation: int, lane: int) -> int:
    """Derive the seed of one lane's reset.

    The env id is left out on purpose: two environments under one base seed and session get the
    same seeds, which pairs their episodes.

    Args:
        base_seed: Any int64.
        session_id: Name of the session.
        generation: How many resets this lane had before; at least 0.
        lane: Index of the lane; at least 0.

    Returns:
        A seed in ``[0, 2**63)``.

    Raises:
        OverflowError: A number does not fit 64 bits, or generation or lane is negative.
    """
    words = (
        base_seed.to_bytes(8, "little", signed=True),
        b"\xff",
        session_id.encode(),
        b"\xfd",
        generation.to_bytes(8, "little"),
        b"\xfc",
        lane.to_bytes(8, "little"),
    )
    state = _OFFSET_BASIS
    for byte in b"".join(words):
        state = ((state ^ byte) * _PRIME) & _MASK_U64
    return state & _MASK_I63
