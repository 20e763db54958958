"""The conversion table, cell by cell, against ``SyncVectorEnv``."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym.env.vector_env
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import AutoresetError, ConfigurationError
from tests.env.comparison import compare
from tests.env.local_session import LocalSession, LocalSource
from tests.fake_envs import AllSpacesEnv, BufferReusingEnv, CountingEnv

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
MODES = (NEXT, SAME, DISABLED)


def counting(lanes: range) -> list[Any]:
    return [
        partial(CountingEnv, 1 + lane % 4, base=100.0 * lane, truncate=lane % 2 == 1)
        for lane in lanes
    ]


def all_spaces(lanes: range) -> list[Any]:
    return [partial(AllSpacesEnv, 3 + lane) for lane in lanes]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def connect(*sessions: LocalSession, **options: Any) -> RemoteVectorEnv:
        sources = [LocalSource(lambda session=session: session) for session in sessions]  # type: ignore[misc]
        monkeypatch.setattr(rlmesh_gym.env.vector_env, "find_sources", lambda **_: sources)
        return RemoteVectorEnv(**options)

    return connect


@pytest.mark.parametrize("makers", [counting, all_spaces])
@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("widths", [(3,), (2, 3), (1, 1, 1, 1), (1,)], ids=str)
def test_every_cell_with_lane_operations(
    connect: Any, widths: tuple[int, ...], mode: AutoresetMode, asked: AutoresetMode, makers: Any
) -> None:
    sessions, every, start = [], [], 0
    for width in widths:
        lanes = makers(range(start, start + width))
        sessions.append(LocalSession(lanes, mode))
        every += lanes
        start += width
    with connect(*sessions, autoreset_mode=asked) as envs:
        assert envs.autoreset_mode is asked
        assert envs.metadata["autoreset_mode"] is asked
        compare(envs, every, asked, steps=40, plain_resets=mode is SAME)
    assert all(session.is_closed for session in sessions)


@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
def test_mixed_endpoints(connect: Any, asked: AutoresetMode) -> None:
    lanes = counting(range(7))
    sessions = [
        LocalSession(lanes[0:2], NEXT),
        LocalSession(lanes[2:4], SAME),
        LocalSession(lanes[4:6], DISABLED),
        LocalSession(lanes[6:7], DISABLED, partial_reset=False, subset_step=False),
    ]
    with connect(*sessions, autoreset_mode=asked) as envs:
        compare(envs, lanes, asked, steps=120, plain_resets=True)


def test_differing_modes_need_a_choice(connect: Any) -> None:
    lanes = counting(range(2))
    with pytest.raises(ConfigurationError, match="differ in their autoreset mode"):
        connect(LocalSession(lanes[:1], NEXT), LocalSession(lanes[1:], SAME))


@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_one_lane_needs_no_capabilities(
    connect: Any, mode: AutoresetMode, asked: AutoresetMode
) -> None:
    lanes = counting(range(3, 4))
    session = LocalSession(lanes, mode, partial_reset=False, subset_step=False)
    with connect(session, autoreset_mode=asked) as envs:
        compare(envs, lanes, asked, steps=60, plain_resets=mode is SAME)


WITHOUT = {  # mode of the endpoint -> modes that work without any capability
    NEXT: (NEXT,),
    SAME: (SAME, DISABLED),
    DISABLED: (DISABLED,),
}
WITH_PARTIAL_RESET = {
    NEXT: (NEXT, SAME, DISABLED),
    SAME: (SAME, DISABLED),
    DISABLED: (SAME, DISABLED),
}


@pytest.mark.parametrize("partial_reset", [False, True])
@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_missing_capabilities(
    connect: Any, mode: AutoresetMode, asked: AutoresetMode, partial_reset: bool
) -> None:
    lanes = counting(range(3))
    session = LocalSession(lanes, mode, partial_reset=partial_reset, subset_step=False)
    works = (WITH_PARTIAL_RESET if partial_reset else WITHOUT)[mode]
    if asked in works:
        with connect(session, autoreset_mode=asked) as envs:
            if mode is SAME and asked is DISABLED and not partial_reset:
                return  # See the test below.
            compare(
                envs,
                lanes,
                asked,
                steps=60,
                can_reset_lanes=partial_reset,
                reset_rate=0.05,
                plain_resets=mode is SAME,
            )
        return
    with pytest.raises(AutoresetError) as caught:
        connect(session, autoreset_mode=asked)
    message = str(caught.value)
    assert "subset_step" in message
    assert "local" in message
    assert message.endswith(", ".join(each.value for each in MODES if each in works))
    assert session.is_closed


def test_a_vector_without_lane_operations_takes_whole_masks_only(connect: Any) -> None:
    import numpy as np

    session = LocalSession(counting(range(3)), DISABLED, partial_reset=False, subset_step=False)
    with connect(session) as envs:
        envs.reset(seed=1)
        sent = len(session.requests)
        with pytest.raises(
            AutoresetError, match=r"must name all of its lanes \[0, 1, 2\].*\[0, 2\]"
        ):
            envs.reset(options={"reset_mask": np.array([True, False, True])})
        with pytest.raises(ConfigurationError, match="either all or none"):
            envs.reset(seed=[1, None, 2])
        assert len(session.requests) == sent
        envs.reset(options={"reset_mask": np.ones(3, dtype=np.bool_)})


def test_held_lanes_without_partial_reset(connect: Any) -> None:
    import numpy as np

    session = LocalSession(counting(range(3)), SAME, partial_reset=False, subset_step=False)
    with connect(session, autoreset_mode=DISABLED) as envs:
        envs.reset()
        observations, _, terminations, _, infos = envs.step([0, 0, 0])
        assert observations[:, 0].tolist() == [1.0, 101.0, 201.0]
        assert terminations.tolist() == [True, False, False]
        assert "final_obs" not in infos
        sent = len(session.requests)
        observations, infos = envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert len(session.requests) == sent
        assert observations[:, 0].tolist() == [10.0, 101.0, 201.0]
        assert infos["_kind"].tolist() == [True, False, False]
        with pytest.raises(AutoresetError, match="must name all of its lanes"):
            envs.reset(options={"reset_mask": np.array([False, True, False])})
        envs.reset()


def test_both_requests_are_in_flight_together(connect: Any) -> None:
    session = LocalSession(counting(range(1, 4)), DISABLED)
    with connect(session, autoreset_mode="NextStep") as envs:
        envs.reset()
        for _ in range(2):
            envs.step([0, 0, 0])
        session.requests.clear()
        envs.step([0, 0, 0])
    kinds = [(kind, request[-2]) for kind, request in session.requests]
    assert kinds == [("reset", [0]), ("step", [1, 2])]


def test_ids_go_down_with_the_request_that_begins_the_episode(connect: Any) -> None:
    session = LocalSession(counting(range(1, 3)), NEXT)
    with connect(session) as envs:
        envs.reset()
        first = envs.episode_ids
        assert session.requests[-1][1][3] == list(first)
        envs.step([0, 0])
        envs.step([0, 0])
        assert envs.episode_ids == first
        assert session.requests[-1][1][1] == list(first)
        envs.step([0, 0])
        second = envs.episode_ids
        assert second[0] != first[0]
        assert second[1] == first[1]
        assert session.requests[-1][1][1] == list(second)


def test_same_step_ids_change_on_the_done_step(connect: Any) -> None:
    session = LocalSession(counting(range(1, 3)), SAME)
    with connect(session) as envs:
        envs.reset()
        first = envs.episode_ids
        envs.step([0, 0])
        envs.step([0, 0])
        second = envs.episode_ids
        assert second[0] != first[0]
        assert session.requests[-1][1][1] == list(first)
        envs.step([0, 0])
        assert session.requests[-1][1][1] == list(second)


@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_buffers_that_the_env_uses_again(
    connect: Any, mode: AutoresetMode, asked: AutoresetMode
) -> None:
    session = LocalSession([partial(BufferReusingEnv, 3), partial(BufferReusingEnv, 2)], mode)
    with connect(session, autoreset_mode=asked) as envs:
        envs.reset()
        for _ in range(2):
            observations, _, terminations, _, infos = envs.step([0, 0])
        assert terminations.tolist() == [False, True]
        if asked is SAME:
            assert infos["final_obs"][1].tolist() == [2.0]
            assert infos["final_info"]["t"].tolist() == [0, 2]
            assert infos["final_info"]["inner"][1].tolist() == [2.0, 2.0]
            assert observations[1].tolist() == [10.0]
            assert infos["final_obs"][1] is not observations[1]
        else:
            assert observations.tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize("asked", MODES, ids=lambda mode: f"as_{mode.value}")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_client_side_truncation(connect: Any, mode: AutoresetMode, asked: AutoresetMode) -> None:
    from gymnasium.wrappers import TimeLimit

    lanes = [partial(CountingEnv, length, base=100.0 * length) for length in (2, 3, 9, 8)]
    limited = [lambda lane=lane: TimeLimit(lane(), 3) for lane in lanes]
    session = LocalSession(lanes, mode)
    if mode is SAME and asked is NEXT:
        with pytest.raises(ConfigurationError, match="max_episode_steps under NextStep needs"):
            connect(session, autoreset_mode=asked, max_episode_steps=3)
        return
    with connect(session, autoreset_mode=asked, max_episode_steps=3) as envs:
        compare(envs, limited, asked, steps=60, reset_rate=0.0, plain_resets=mode is SAME)
        assert {record.length for record in envs.episodes if record.truncated} == {3}


def test_client_side_truncation_needs_lane_operations(connect: Any) -> None:
    session = LocalSession(counting(range(2)), NEXT, partial_reset=False, subset_step=False)
    with pytest.raises(ConfigurationError, match="max_episode_steps") as caught:
        connect(session, max_episode_steps=3)
    assert not isinstance(caught.value, AutoresetError)
    with pytest.raises(ConfigurationError, match="1 or more"):
        connect(session, max_episode_steps=0)
    with connect(LocalSession(counting(range(2)), NEXT, subset_step=False), max_episode_steps=-1):
        pass


@pytest.mark.parametrize("value", ["SameStep", "SAME_STEP", SAME])
def test_ways_to_name_a_mode(connect: Any, value: Any) -> None:
    with connect(LocalSession(counting(range(2))), autoreset_mode=value) as envs:
        assert envs.autoreset_mode is SAME


def test_an_unknown_mode(connect: Any) -> None:
    with pytest.raises(ConfigurationError, match="'Never'"):
        connect(LocalSession(counting(range(2))), autoreset_mode="Never")
