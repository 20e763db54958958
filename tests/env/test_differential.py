"""A remote vector is ``SyncVectorEnv``: every kind of endpoint, every mode, every space.

500 random steps with random partial resets in a cell, a quarter of them in CI, and fewer where four
endpoints repeat what one showed. Observations, rewards, flags, infos, masks and the episode log
must be what ``SyncVectorEnv`` gives and a ledger kept by hand says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym.env.vector_env
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import AutoresetError
from tests.env.comparison import compare
from tests.env.local_session import LocalSession, LocalSource
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

    @property
    def can_reset_lanes(self) -> bool:
        if self.kind in ("single", "lanes") or self.topology == "four":
            return True
        return not self.released

    @property
    def steps(self) -> int:
        # What one endpoint showed, neither several of its kind nor the released package's need show
        # at the same length.
        at_length = {"one": tuple(OWN_MODE), "two": ("lanes",), "four": ("single",)}
        return 500 if self.kind in at_length[self.topology] and not self.released else 120

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


def play(
    where: list[str],
    asked: AutoresetMode,
    observation: str,
    action: str,
    *,
    steps: int = 500,
    can_reset_lanes: bool = True,
    is_held: bool = False,
) -> None:
    with RemoteVectorEnv(addresses=where, autoreset_mode=asked, episodes_kept=None) as envs:
        assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is asked
        compare(
            envs,
            [partial(SeededEnv, observation, action)] * envs.num_envs,
            asked,
            steps=steps,
            reset_rate=0.05,
            can_reset_lanes=can_reset_lanes,
            # What is held for a lane was begun without the options of the reset that asks for it.
            bare_options=not is_held,
        )
        assert {record.endpoint for record in envs.episodes} <= {
            address if "://" in address else f"tcp://{address}" for address in where
        }


@pytest.mark.parametrize("cell", POSSIBLE, ids=str)
def test_cell(endpoints: SharedEndpoints, cell: Cell) -> None:
    play(
        addresses(endpoints, cell),
        cell.asked,
        cell.observation,
        cell.action,
        steps=cell.steps,
        can_reset_lanes=cell.can_reset_lanes,
        is_held=cell.own is SAME is not cell.asked,
    )


@pytest.mark.parametrize("cell", IMPOSSIBLE, ids=str)
def test_impossible_cell(endpoints: SharedEndpoints, cell: Cell) -> None:
    with pytest.raises(AutoresetError) as caught:
        RemoteVectorEnv(addresses=addresses(endpoints, cell), autoreset_mode=cell.asked)
    message = str(caught.value)
    assert "subset_step" in message
    works = [mode.value for mode in MODES if mode in cell.works]
    assert message.endswith(f"Modes that work: {', '.join(works)}")


MIXED: dict[AutoresetMode, list[tuple[EndpointKind, int, bool]]] = {
    NEXT: [
        ("next_step", 2, False),
        ("next_step", 1, True),
        ("lanes", 3, True),
        ("single", 1, False),
    ],
    SAME: [
        ("same_step", 3, False),
        ("disabled", 2, False),
        ("lanes", 2, True),
        ("single", 1, True),
    ],
    DISABLED: [("same_step", 2, False), ("next_step", 3, False), ("single", 1, True)],
}


@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
def test_endpoints_of_all_kinds_in_one_vector(
    endpoints: SharedEndpoints, asked: AutoresetMode
) -> None:
    kwargs = {"space": "mixed", "action": "dict"}
    where = [
        endpoints.address(kind, width, released=released, copy=9, **kwargs)
        for kind, width, released in MIXED[asked]
    ]
    play(where, asked, "mixed", "dict", steps=200, is_held=asked is DISABLED)


def test_held_observations_need_subset_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # No server here resets within the step and steps some lanes too; the wire allows one that does.
    maker = partial(SeededEnv, "mixed", "tuple")
    sessions = [LocalSession([maker] * width, SAME, name=f"local{width}") for width in (2, 3)]
    sources = [LocalSource(lambda session=session: session) for session in sessions]  # type: ignore[misc]
    monkeypatch.setattr(rlmesh_gym.env.vector_env, "find_sources", lambda **_: sources)
    with RemoteVectorEnv(autoreset_mode=NEXT, episodes_kept=None) as envs:
        compare(envs, [maker] * 5, NEXT, steps=200, bare_options=False)


CONVERSIONS: list[tuple[EndpointKind, AutoresetMode]] = [
    ("lanes", NEXT),
    ("lanes", SAME),
    ("next_step", SAME),
    ("next_step", DISABLED),
    ("same_step", DISABLED),
    ("disabled", SAME),
]


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled", "converted"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_space(endpoints: SharedEndpoints, name: str, way: str) -> None:
    natively: dict[str, tuple[EndpointKind, AutoresetMode]] = {
        "NextStep": ("next_step", NEXT),
        "SameStep": ("same_step", SAME),
        "Disabled": ("lanes", DISABLED),
    }
    turn = OBSERVATIONS.index(name)
    kind, asked = natively.get(way) or CONVERSIONS[turn % len(CONVERSIONS)]
    action = name if name in ACTIONS else "discrete"
    where = [endpoints.address(kind, 2, space=name, action=action)]
    play(where, asked, name, action, steps=30, is_held=kind == "same_step" and asked is not SAME)


@pytest.mark.parametrize("name", RELEASED)
def test_every_space_of_the_released_package(endpoints: SharedEndpoints, name: str) -> None:
    action = name if name in ACTIONS else "discrete"
    where = [endpoints.address("lanes", 2, released=True, space=name, action=action)]
    play(where, MODES[RELEASED.index(name) % 3], name, action, steps=30)
