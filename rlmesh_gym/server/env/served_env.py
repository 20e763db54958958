"""What a session drives: an environment of any kind behind one set of verbs, in arrays.

Knows Gymnasium and the codec's leaves; not the wire's messages, episodes or threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import EnvContract, Leaves, SpaceCodec

    Lanes = Sequence[int] | None
    Options = dict[str, Any] | None


Warnings = list[tuple[int, dict[str, str]]]
"""Row of the answer and what was found there: ``kind``, ``path``, ``detail``."""


def once_per_path(warnings: Warnings) -> list[dict[str, str]]:
    """Return the first warning of each kind and path."""
    first: dict[tuple[str, str], dict[str, str]] = {}
    for _, warning in warnings:
        first.setdefault((warning["kind"], warning["path"]), warning)
    return list(first.values())


_NO_NUMBERS = np.zeros(0, dtype=np.float64)
_NO_FLAGS = np.zeros(0, dtype=np.bool_)


@dataclass(slots=True)
class Outcome:
    """What a reset or a step gave, one row per lane asked for, in the order asked.

    Attributes:
        observation: Rows as leaves of the observation space; valid until the next call.
        infos: A dict per row (scalar envs), or Gymnasium's one dict of arrays (vector envs).
        rewards: Float64 of shape ``(k,)``; empty after a reset.
        terminated: Bool of shape ``(k,)``; empty after a reset.
        truncated: Likewise.
        user_ns: Nanoseconds spent in the environment's own code.
        lane_skew_ns: Slowest lane's time less the fastest's; None where lanes have none of theirs.
    """

    observation: Leaves
    infos: Any
    rewards: NDArray[np.float64] = field(default_factory=lambda: _NO_NUMBERS)
    terminated: NDArray[np.bool_] = field(default_factory=lambda: _NO_FLAGS)
    truncated: NDArray[np.bool_] = field(default_factory=lambda: _NO_FLAGS)
    user_ns: int = 0
    lane_skew_ns: int | None = None


class ServedEnv(ABC):
    """An environment as a server sees it.

    Attributes:
        contract: What the handshake announces.
        has_lane_operations: Lanes can be stepped and reset one by one, also at the same time by
            several threads as long as no lane has two at once.
        has_partial_reset: Some of the lanes can be reset.
        takes_lane_seeds: A reset of all lanes takes one seed for each.
        gives_fresh_arrays: The arrays of an outcome are never written again.
        base: The environment beneath all wrappers, of lane 0 where there are several.
        has_own_processes: The lanes run in processes of their own, so that nothing in this one is
            shared.
    """

    contract: EnvContract
    observation_codec: SpaceCodec
    action_codec: SpaceCodec
    has_lane_operations: bool
    has_partial_reset: bool
    takes_lane_seeds = True
    gives_fresh_arrays = True
    base: Any
    has_own_processes = False

    @cached_property
    def num_envs(self) -> int:
        """Number of lanes."""
        return self.contract.num_envs

    @abstractmethod
    def reset(self, lanes: Lanes, seeds: Sequence[int], options: Options) -> Outcome:
        """Reset ``lanes``, or all if None; a full reset takes any number of seeds."""

    @abstractmethod
    def step(self, lanes: Lanes, action: Leaves) -> Outcome:
        """Step ``lanes``, or all if None; ``action`` holds one row for each."""

    @abstractmethod
    def render(self, lane: int) -> Any:
        """Return one lane's frame as the environment gives it, or None."""

    @abstractmethod
    def wire_infos(self, outcome: Outcome, warnings: Warnings) -> dict[str, Any] | None:
        """Return what goes out as infos; None leaves the field out."""

    @abstractmethod
    def final_info(self, outcome: Outcome, row: int) -> Mapping[str, Any] | None:
        """Return the last info of the episode that ended in ``row``."""

    @abstractmethod
    def close(self) -> None:
        """Close the environment; called once."""
