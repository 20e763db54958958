"""Faults that people reported of other vector and remote envs, each with the right outcome here.

More of them stand with the part that they concern: late answers and rewards of one element with the
calls, wrong action shapes with the actions, the option ``mask`` with the resets, forks and pickles
with the embedded endpoints, statistics after partial resets with the wrappers, float16 and 0-d
observations with the differential suite.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.errors import AutoresetError
from rlmesh_gym.server import EnvServer
from tests.env.comparison import compare, equal, lane_info
from tests.env.odd_envs import IndexingEnv, OrderedEnv, OwnKeysEnv, UnsteadyInfoEnv
from tests.fake_envs import BufferReusingEnv, CountingEnv
from tests.peers import env_endpoint

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
MODES = (NEXT, SAME, DISABLED)
SERVED = ("lanes", "NextStep", "SameStep", "Disabled")

in_every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"as_{mode.value}")
over_everything = pytest.mark.parametrize("served", SERVED)


@contextmanager
def remote(makers: list[Any], served: str, mode: AutoresetMode) -> Iterator[RemoteVectorEnv]:
    """Serve lanes, or a SyncVectorEnv in that mode, and show them in ``mode``."""
    env: Any = (
        [make() for make in makers]
        if served == "lanes"
        else SyncVectorEnv(makers, autoreset_mode=served)
    )
    with EnvServer(env) as server, RemoteVectorEnv(server.address, autoreset_mode=mode) as envs:
        yield envs


def possible(served: str, mode: AutoresetMode) -> bool:
    return not (served in ("SameStep", "Disabled") and mode is NEXT)


def cells() -> list[Any]:
    return [
        pytest.param(served, mode, id=f"{served}-as_{mode.value}")
        for served in SERVED
        for mode in MODES
        if possible(served, mode)
    ]


over_all_cells = pytest.mark.parametrize(("served", "mode"), cells())


def drive(envs: Any, steps: int, mode: AutoresetMode) -> list[Any]:
    """Step with zeros, reset what ended where nobody else does; return all that came."""
    results = [envs.reset(seed=3)]
    for _ in range(steps):
        results.append(envs.step(np.zeros(envs.num_envs, dtype=np.int64)))
        ended = results[-1][2] | results[-1][3]
        if mode is DISABLED and ended.any():
            results.append(envs.reset(options={"reset_mask": ended}))
    return results


# Terminal observations that the reset overwrites, since the env changes one array in place.


@over_all_cells
def test_an_env_that_reuses_its_buffers(served: str, mode: AutoresetMode) -> None:
    makers = [partial(BufferReusingEnv, 2), partial(BufferReusingEnv, 3, base=100.0)]
    with remote(makers, served, mode) as envs:
        _, first, second, *_ = results = drive(envs, 3, mode)
    assert first[0][:, 0].tolist() == [1.0, 101.0]
    # What was returned before is not touched by what came after.
    assert results[0][0][:, 0].tolist() == [0.0, 100.0]
    if mode is SAME:
        infos = second[4]
        assert infos["final_obs"][0].tolist() == [2.0]
        assert infos["final_info"]["t"].tolist() == [2, 0]
        assert infos["final_info"]["inner"][0].tolist() == [2.0, 2.0]
        assert second[0][:, 0].tolist() == [10.0, 102.0]
        assert not np.shares_memory(infos["final_obs"][0], second[0])
    else:
        assert second[0][:, 0].tolist() == [2.0, 102.0]
        assert second[4]["inner"][0].tolist() == [2.0, 2.0]


@pytest.mark.interop
def test_such_an_env_on_the_released_server() -> None:
    with (
        env_endpoint("lanes", "tests.fake_envs:BufferReusingEnv", num_envs=2) as peer,
        RemoteVectorEnv(peer.address, autoreset_mode=SAME) as envs,
    ):
        envs.reset()
        envs.reset(options={"reset_mask": np.array([False, True])})
        for _ in range(3):
            observations, *_, infos = envs.step([0, 0])
        assert [row.tolist() for row in infos["final_obs"]] == [[3.0], [13.0]]
        assert infos["final_info"]["inner"].tolist() == [[3.0, 3.0], [13.0, 13.0]]
        assert observations[:, 0].tolist() == [10.0, 20.0]


# Statistics of episodes.


@over_all_cells
def test_statistics_of_episodes_of_three_steps(served: str, mode: AutoresetMode) -> None:
    version = tuple(int(part) for part in gym.__version__.split(".")[:2])
    makers = [partial(CountingEnv, 3), partial(CountingEnv, 3)]
    with remote(makers, served, mode) as vector:
        envs = RecordEpisodeStatistics(vector)
        envs.reset()
        for _ in range(12):
            ended = envs.step(np.array([1, 2]))[2]
            if mode is DISABLED and ended.any():
                envs.reset(options={"reset_mask": ended})
        count = 6 if mode is NEXT else 8
        if mode is SAME and version < (1, 4):
            # The wrapper itself forgets the first step of every episode but the first.
            assert [record.length for record in vector.episodes] == [3] * count
            return
        assert list(envs.length_queue) == [3] * count
        assert sorted(envs.return_queue) == [3.0] * (count // 2) + [6.0] * (count // 2)


# Keys of Dict observations.


@over_everything
def test_dict_keys_keep_their_order(served: str) -> None:
    mode = NEXT if served == "lanes" else AutoresetMode(served)
    local = OrderedEnv()
    with remote([OrderedEnv, OrderedEnv], served, mode) as envs:
        space = envs.single_observation_space
        assert isinstance(space, gym.spaces.Dict)
        assert list(space.spaces) == ["z", "a", "m"]
        batch, _ = envs.reset(seed=0)
        assert list(batch) == ["z", "a", "m"]
        expected = gym.spaces.flatten(local.observation_space, local.reset(seed=0)[0])
        lane = {key: values[0] for key, values in batch.items()}
        assert equal(gym.spaces.flatten(space, lane), expected)


def test_flattened_observations_have_the_same_order() -> None:
    with remote([OrderedEnv, OrderedEnv], "lanes", DISABLED) as envs:
        flat = FlattenObservation(envs)
        local = FlattenObservation(SyncVectorEnv([OrderedEnv, OrderedEnv]))
        assert equal(flat.reset(seed=0)[0], local.reset(seed=0)[0])
        local.close()


# Infos.


@over_all_cells
def test_infos_of_changing_type(served: str, mode: AutoresetMode) -> None:
    makers = [partial(UnsteadyInfoEnv, 4), partial(UnsteadyInfoEnv, 6, phase=3)]
    locals_ = [make() for make in makers]
    with remote(makers, served, mode) as envs:
        envs.reset(seed=3)
        for env in locals_:
            env.reset(seed=3)
        for _ in range(3):  # Before any episode ends.
            infos = envs.step([0, 0])[4]
            for lane, env in enumerate(locals_):
                expected = env.step(0)[4]
                assert loosely(lane_info(infos, lane)) == loosely(expected)
        results = drive(envs, 24, mode)
    for result in results:
        for key, value in result[-1].items():
            if not key.startswith("_") and not isinstance(value, dict):
                assert isinstance(value, np.ndarray), key
                assert len(value) == 2
                assert result[-1][f"_{key}"].dtype == np.bool_


def loosely(value: Any) -> Any:
    """Equal numbers are equal, whatever array of the vector they had to fit in."""
    if isinstance(value, dict):
        return {key: loosely(item) for key, item in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [loosely(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("own", ["final_info", "_x", "episode", "final_info _x episode"])
@over_all_cells
def test_infos_with_reserved_keys(served: str, mode: AutoresetMode, own: str) -> None:
    makers = [partial(OwnKeysEnv, 2 + lane, base=100.0 * lane, own=own) for lane in range(3)]
    with remote(makers, served, mode) as envs:
        held = served == "SameStep" and mode is DISABLED
        compare(envs, makers, mode, steps=60, plain_resets=held)


@over_all_cells
def test_infos_with_reserved_keys_at_resets_too(served: str, mode: AutoresetMode) -> None:
    # Under SAME_STEP a reset's own final_info is mixed with the last episode's, in Gymnasium and so
    # in what crosses the wire. No conversion can part them.
    own = "_x episode" if served == "SameStep" else "_x episode final_info"
    makers = [partial(OwnKeysEnv, 2 + lane, own=own, at_reset=True) for lane in range(3)]
    with remote(makers, served, mode) as envs:
        held = served == "SameStep" and mode is DISABLED
        compare(envs, makers, mode, steps=60, plain_resets=held, final_infos=mode is not SAME)
        for record in envs.episodes:
            if not record.interrupted:
                assert record.final_info["_x"] == record.length


@pytest.mark.interop
@in_every_mode
def test_infos_with_reserved_keys_on_the_released_server(mode: AutoresetMode) -> None:
    own = "final_info _x episode"
    factory = "tests.env.odd_envs:OwnKeysEnv"
    with (
        env_endpoint("lanes", factory, num_envs=2, kwargs={"own": own}) as peer,
        RemoteVectorEnv(peer.address, autoreset_mode=mode) as envs,
    ):
        compare(envs, [partial(OwnKeysEnv, own=own)] * 2, mode, steps=60)


# Actions for envs that want an int.


@pytest.mark.parametrize(
    "actions",
    [
        [3, 4],
        (3, 4),
        [np.int64(3), np.int32(4)],
        np.array([3, 4]),
        np.array([3, 4], dtype=np.int32),
        np.array([3, 4], dtype=np.uint8),
    ],
    ids=["list", "tuple", "numpy scalars", "int64", "int32", "uint8"],
)
@over_everything
def test_an_env_that_indexes_with_its_action(served: str, actions: Any) -> None:
    mode = NEXT if served == "lanes" else AutoresetMode(served)
    with remote([IndexingEnv, IndexingEnv], served, mode) as envs:
        envs.reset()
        _, rewards, _, _, infos = envs.step(actions)
        assert rewards.tolist() == [30.0, 40.0]
        assert infos["type"].tolist() == ["int64", "int64"]  # As single_action_space samples.


@pytest.mark.parametrize("action", [3, np.int64(3), np.int32(3), np.array(3), np.uint8(3)])
def test_single_actions(action: Any) -> None:
    with EnvServer(IndexingEnv()) as server, RemoteEnv(server.address) as env:
        env.reset()
        _, reward, _, _, info = env.step(action)
        assert (reward, info["type"]) == (30.0, "int64")


@pytest.mark.interop
def test_actions_on_the_released_server() -> None:
    with (
        env_endpoint("lanes", "tests.env.odd_envs:IndexingEnv", num_envs=2) as peer,
        RemoteVectorEnv(peer.address) as envs,
    ):
        envs.reset()
        _, rewards, _, _, infos = envs.step(np.array([3, 4], dtype=np.int32))
        assert rewards.tolist() == [30.0, 40.0]
        assert infos["type"].tolist() == ["int", "int"]


def test_what_cannot_be_shown_is_told_with_what_can() -> None:
    makers = [CountingEnv, CountingEnv]
    for served in SERVED:
        for mode in MODES:
            if possible(served, mode):
                continue
            with (
                pytest.raises(AutoresetError, match="Modes that work: SameStep, Disabled"),
                remote(makers, served, mode),
            ):
                pass


# The end of the process.


def test_a_close_after_the_finalizers_is_quiet() -> None:
    # Gymnasium before 1.3 closes in __del__, which at the interpreter's end comes after them.
    script = """
import weakref, rlmesh_gym
envs = rlmesh_gym.RemoteVectorEnv(env_id="CartPole-v1", num_envs=2)
envs.reset()
weakref.finalize._exitfunc()
envs.close()
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
