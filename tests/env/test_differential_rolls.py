"""The two requests of a roll under NEXT_STEP: together, or one by one where that is faster."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym.env.vector_env
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.env.autoreset.next_step import RollPace
from rlmesh_gym.errors import EnvError
from tests.env.comparison import compare
from tests.env.local_session import LocalSession, LocalSource
from tests.env.seeded_env import SeededEnv
from tests.fake_envs import CountingEnv

NEXT = AutoresetMode.NEXT_STEP


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def connect(session: LocalSession) -> RemoteVectorEnv:
        sources = [LocalSource(lambda: session)]
        monkeypatch.setattr(rlmesh_gym.env.vector_env, "find_sources", lambda **_: sources)
        return RemoteVectorEnv(autoreset_mode=NEXT, episodes_kept=None)

    return connect


def ways(pace: RollPace, count: int, *, together: float, apart: float) -> list[bool]:
    """Which way each of the next rolls goes, when either takes so many seconds."""
    chosen = []
    for _ in range(count):
        chosen.append(pace.choose_together())
        pace.note(together if chosen[-1] else apart, together=chosen[-1])
    return chosen


def test_fast_rolls_go_together_and_nothing_else_is_tried() -> None:
    assert all(ways(RollPace(), 500, together=0.003, apart=0.001))


def test_answers_that_are_held_back_are_asked_for_one_by_one() -> None:
    chosen = ways(RollPace(), 300, together=0.042, apart=0.003)
    assert chosen[:2] == [True, False]
    assert chosen.count(True) == 4  # The first, and another look after every hundred.


def test_slow_environments_stay_side_by_side() -> None:
    chosen = ways(RollPace(), 300, together=0.5, apart=0.8)
    assert chosen.count(False) == 4


def test_a_way_that_has_become_better_is_taken_up() -> None:
    pace = RollPace()
    ways(pace, 50, together=0.042, apart=0.003)
    later = ways(pace, 3000, together=0.001, apart=0.1)
    assert all(later[-100:])


def test_one_after_the_other_gives_the_same(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollPace, "choose_together", lambda _: False)
    makers = [partial(SeededEnv, "mixed", "dict")] * 3
    with connect(LocalSession(makers)) as envs:
        compare(envs, makers, NEXT, steps=200)


def test_a_reset_that_fails_leaves_the_other_lanes_where_they_were(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RollPace, "choose_together", lambda _: False)
    session = LocalSession([partial(CountingEnv, 1), partial(CountingEnv, 9)])
    with connect(session) as envs:
        envs.reset()
        envs.step([0, 0])
        session.requests.clear()
        session.fail_next = EnvError("busy", code="BUSY", is_recoverable=True)
        with pytest.raises(EnvError, match="busy"):
            envs.step([0, 0])
        assert [kind for kind, _ in session.requests] == ["reset"]
        observations = envs.step([0, 0])[0]
        assert observations[:, 0].tolist() == [10.0, 2.0]
