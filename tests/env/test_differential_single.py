"""A remote single env is the local one: values, infos, episodes, Gymnasium's own checker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.server import EnvServer
from tests.env.comparison import equal
from tests.env.seeded_env import CATALOGUE, SeededEnv
from tests.env.shared_endpoints import SharedEndpoints
from tests.lengths import shortened

ID = "rlmesh_gym:rlmesh/Remote-v0"

ENDPOINTS: list[tuple[Any, bool]] = [
    ("single", False),
    ("lanes", False),
    ("next_step", False),
    ("same_step", False),
    ("disabled", False),
    ("single", True),
    ("lanes", True),
    ("disabled", True),
]
SPACES = [("mixed", "dict"), ("discrete_start", "discrete_negative_start"), ("box_float16", "text")]


@pytest.fixture(scope="module")
def endpoints() -> Iterator[SharedEndpoints]:
    with SharedEndpoints() as endpoints:
        yield endpoints


def as_sampled(space: gym.Space[Any], value: Any) -> bool:
    """Whether ``value`` has the types that the space's own samples have."""
    if isinstance(space, gym.spaces.Dict):
        return all(as_sampled(child, value[key]) for key, child in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return all(as_sampled(*pair) for pair in zip(space.spaces, value, strict=True))
    return type(value) is type(space.sample()) and space.contains(value)


@pytest.mark.parametrize(("observation", "action"), SPACES)
@pytest.mark.parametrize(("kind", "released"), ENDPOINTS, ids={True: "released", False: "ours"}.get)
def test_every_kind_of_endpoint(
    endpoints: SharedEndpoints, kind: Any, released: bool, observation: str, action: str
) -> None:
    address = endpoints.address(kind, 1, released=released, space=observation, action=action)
    local = SeededEnv(observation, action)
    generator = np.random.default_rng(2)
    seeds: list[int | None] = []
    with RemoteEnv(address) as env:
        assert env.observation_space == local.observation_space
        assert env.action_space == local.action_space
        env.action_space.seed(1)

        def reset(seed: int | None) -> None:
            # Options only along with a seed: where the endpoint resets by itself, it was without.
            options = {"level": 2} if seed is not None else None
            seeds.append(seed)
            got = env.reset(seed=seed, options=options)
            expected = local.reset(seed=seed, options=options)
            assert equal(got[0], expected[0])
            assert as_sampled(local.observation_space, got[0])
            assert equal(got[1], expected[1])

        reset(11)
        for step in range(shortened(200)):
            chosen = env.action_space.sample()
            got, expected = env.step(chosen), local.step(chosen)
            assert equal(got[0], expected[0]), step
            assert got[1:4] == expected[1:4]
            assert [type(value) for value in got[1:4]] == [float, bool, bool]
            assert equal(got[4], expected[4]), step
            if got[2] or got[3] or generator.random() < 0.05:
                reset(None if generator.random() < 0.7 else int(generator.integers(1000)))
        assert {record.lane for record in env.episodes} == {0}
        assert {record.seed for record in env.episodes} <= set(seeds)


@pytest.mark.filterwarnings("ignore:.*(symmetric|normalized|infinity|spec)")
@pytest.mark.parametrize("released", [False, True], ids=["ours", "released"])
@pytest.mark.parametrize("observation", ["box_float32", "mixed", "discrete"])
def test_check_env(endpoints: SharedEndpoints, released: bool, observation: str) -> None:
    address = endpoints.address("single", released=released, space=observation)
    env = gym.make(ID, address=address)
    try:
        check_env(env.unwrapped)
    finally:
        env.close()


def test_check_env_with_frames() -> None:
    # The checker makes a second one beside the first, so the endpoint must take two sessions.
    make = partial(SeededEnv, "box_float32", render_mode="rgb_array")
    with EnvServer(make, max_sessions=2) as server:
        env = gym.make(ID, address=server.address, render_mode="rgb_array")
        try:
            check_env(env.unwrapped)
        finally:
            env.close()


@pytest.mark.parametrize("released", [False, True], ids=["ours", "released"])
@pytest.mark.parametrize("kind", ["single", "lanes"])
def test_infos_are_a_function_of_the_seed(
    endpoints: SharedEndpoints, kind: Any, released: bool
) -> None:
    lanes = 1 if kind == "single" else 3
    address = endpoints.address(kind, lanes, released=released, space="mixed", action="mixed")
    runs = []
    for _ in range(2):
        with RemoteVectorEnv(address, autoreset_mode="SameStep") as envs:
            envs.action_space.seed(4)
            seen = [envs.reset(seed=9)[1]]
            seen += [envs.step(envs.action_space.sample())[4] for _ in range(60)]
            runs.append(seen)
    assert equal(runs[0], runs[1])


def test_every_space_can_be_made_anew() -> None:
    # The catalogue is shared by all envs of a process; a seed set in one must not show in others.
    for name in CATALOGUE:
        first, second = SeededEnv(name), SeededEnv(name)
        assert equal(first.reset(seed=1), second.reset(seed=1))
