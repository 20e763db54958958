"""A remote vector is ``SyncVectorEnv``: every kind of endpoint, every mode, every space.

500 random steps with random partial resets in each cell; observations, rewards, flags, infos, masks
and the episode log must be what ``SyncVectorEnv`` gives and a ledger kept by hand says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import AutoresetError, ConfigurationError
from tests.env.comparison import compare
from tests.env.seeded_env import CATALOGUE, SeededEnv
from tests.env.shared_endpoints import OWN_MODE, EndpointKind, SharedEndpoints

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
MODES = (NEXT, SAME, DISABLED)
TOPOLOGIES: dict[str, tuple[int, ...]] = {"one": (3,), "two": (2, 3), "four": (1, 1, 1, 1)}

# SyncVectorEnv cannot take actions of spaces without leaves apart.
ACTIONS = [name for name in CATALOGUE if name not in ("dict_empty", "tuple_empty", "nested")]
OBSERVATIONS = list(CATALOGUE)
# The released package refuses Text of no characters.
RELEASED = [name for name in OBSERVATIONS if name != "text_maybe_empty"]


@dataclass(frozen=True)
class Cell:
    """One endpoint kind, one mode asked, one way to spread lanes, two spaces."""

    kind: EndpointKind
    released: bool
    asked: AutoresetMode
    topology: str
    observation: str
    action: str

    @property
    def widths(self) -> tuple[int, ...]:
        if self.kind == "single":
            return (1,) * {"one": 1, "two": 2, "four": 4}[self.topology]
        return TOPOLOGIES[self.topology]

    @property
    def own(self) -> AutoresetMode:
        return OWN_MODE[self.kind]

    @property
    def works(self) -> tuple[AutoresetMode, ...]:
        """The modes that such endpoints can serve."""
        if self.kind in ("single", "lanes") or self.topology == "four":
            return MODES  # The only lane of an endpoint is the whole of it.
        if self.released:
            return (self.own,)
        return MODES if self.own is NEXT else (SAME, DISABLED)

    def __str__(self) -> str:
        by = "released" if self.released else "ours"
        where = f"{by}-{self.kind}-{self.topology}-as_{self.asked.value}"
        return f"{where}-{self.observation}-{self.action}"


def cells() -> Iterator[Cell]:
    """Every kind, mode and topology; spaces take turns, so that all come up."""
    turn = count()
    kinds: list[tuple[EndpointKind, bool]] = [(kind, False) for kind in OWN_MODE]
    kinds += [(kind, True) for kind in OWN_MODE if kind != "same_step"]
    for topology in TOPOLOGIES:
        for kind, released in kinds:
            for asked in MODES:
                number = next(turn)
                pool = RELEASED if released else OBSERVATIONS
                observation = pool[7 * number % len(pool)]
                actions = [name for name in ACTIONS if not released or name in RELEASED]
                yield Cell(
                    kind, released, asked, topology, observation, actions[number % len(actions)]
                )


CELLS = list(cells())
POSSIBLE = [cell for cell in CELLS if cell.asked in cell.works]
IMPOSSIBLE = [cell for cell in CELLS if cell.asked not in cell.works]


@pytest.fixture(scope="module")
def endpoints() -> Iterator[SharedEndpoints]:
    with SharedEndpoints() as endpoints:
        yield endpoints


def addresses(endpoints: SharedEndpoints, cell: Cell) -> list[str]:
    return [
        endpoints.address(
            cell.kind,
            width,
            released=cell.released,
            copy=copy,
            space=cell.observation,
            action=cell.action,
        )
        for copy, width in enumerate(cell.widths)
    ]


def play(endpoints: SharedEndpoints, cell: Cell, steps: int) -> None:
    where = addresses(endpoints, cell)
    maker = partial(SeededEnv, cell.observation, cell.action)
    lane_resets = not cell.released or cell.kind in ("single", "lanes") or cell.topology == "four"
    with RemoteVectorEnv(addresses=where, autoreset_mode=cell.asked, episodes_kept=None) as envs:
        assert envs.num_envs == sum(cell.widths)
        assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is cell.asked
        compare(
            envs,
            [maker] * envs.num_envs,
            cell.asked,
            steps=steps,
            reset_rate=0.05,
            can_reset_lanes=lane_resets,
            # What is held for a lane was begun without the options of the reset that asks for it.
            bare_options=cell.own is not SAME or cell.asked is SAME,
        )
        assert {record.endpoint for record in envs.episodes} == {_tcp(address) for address in where}


def _tcp(address: str) -> str:
    return address if "://" in address else f"tcp://{address}"


@pytest.mark.parametrize("cell", POSSIBLE, ids=str)
def test_cell(endpoints: SharedEndpoints, cell: Cell) -> None:
    play(endpoints, cell, steps=500)


@pytest.mark.parametrize("cell", IMPOSSIBLE, ids=str)
def test_impossible_cell(endpoints: SharedEndpoints, cell: Cell) -> None:
    with pytest.raises(AutoresetError) as caught:
        RemoteVectorEnv(addresses=addresses(endpoints, cell), autoreset_mode=cell.asked)
    message = str(caught.value)
    assert "subset_step" in message
    works = [mode.value for mode in MODES if mode in cell.works]
    assert message.endswith(f"Modes that work: {', '.join(works)}")
