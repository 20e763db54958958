from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmesh_gym.codec.reset_arguments import expand_seeds, split_options, warn_of_mask
from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.errors import CodecError, ConfigurationError, ResetNeededError
from rlmesh_gym.lanes import LanePhase
from rlmesh_gym.server import EnvServer
from tests.env.comparison import compare
from tests.fake_envs import CountingEnv, counting_vector


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (None, [None, None, None]),
        (5, [5, 6, 7]),
        (np.int64(5), [5, 6, 7]),
        ([1, None, 3], [1, None, 3]),
        ((np.int32(1), np.uint8(2), None), [1, 2, None]),
        (np.array([4, 5, 6]), [4, 5, 6]),
        (0, [0, 1, 2]),
    ],
)
def test_seeds(seed: Any, expected: list[int | None]) -> None:
    seeds = expand_seeds(seed, 3)
    assert seeds == expected
    assert all(value is None or type(value) is int for value in seeds)


@pytest.mark.parametrize(
    ("seed", "error", "match"),
    [
        ([1, 2], ValueError, "length must match num_envs=3 but got length=2"),
        ([1, 2, 3, 4], ValueError, "length must match"),
        (1.5, TypeError, "seed must be"),
        ("abc", TypeError, "seed must be"),
        ([1, 2.5, 3], TypeError, "lane 1 must be an integer"),
        ([1, -2, 3], ConfigurationError, "lane 1 must be between 0"),
        (2**63 - 2, ConfigurationError, "lane 2 must be between 0"),
    ],
)
def test_wrong_seeds(seed: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        expand_seeds(seed, 3)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False, False], TypeError),
        (np.array([True]), ValueError),
        (np.array([1, 0, 1]), TypeError),
        (np.zeros(3, dtype=np.bool_), ValueError),
    ],
)
def test_wrong_masks_as_in_gymnasium(mask: Any, error: type[Exception]) -> None:
    reference = SyncVectorEnv([CountingEnv] * 3)
    reference.reset()
    # Older versions of Gymnasium assert.
    with pytest.raises((error, AssertionError)) as expected:
        reference.reset(options={"reset_mask": mask})
    with pytest.raises(error) as got:
        split_options({"reset_mask": mask}, 3)
    if isinstance(expected.value, error):
        assert str(got.value) == str(expected.value)


def test_options_are_left_alone() -> None:
    mask = np.array([True, False])
    options = {"reset_mask": mask, "level": 3}
    rest, copied = split_options(options, 2)
    assert rest == {"level": 3}
    assert options == {"reset_mask": mask, "level": 3}
    assert copied is not None
    assert copied is not mask
    assert split_options({"reset_mask": mask}, 2)[0] == {}
    assert split_options({}, 2) == ({}, None)
    assert split_options(None, 2) == (None, None)
    with pytest.raises(TypeError, match="a mapping, got"):
        split_options([1], 2)  # type: ignore[arg-type]


def test_the_option_mask_is_a_slip() -> None:
    with pytest.warns(UserWarning, match="reset_mask"):
        warn_of_mask({"mask": [True, False]})
    assert split_options({"mask": [True, False]}, 2) == ({"mask": [True, False]}, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mask({"reset_mask": np.array([True])})


def lanes(count: int = 3) -> list[Any]:
    return [CountingEnv(2 + lane, base=100.0 * lane) for lane in range(count)]


@pytest.mark.parametrize("kind", ["lanes", "vector"])
def test_seeds_reach_every_lane(kind: str) -> None:
    served: Any = lanes() if kind == "lanes" else counting_vector(3)
    with EnvServer(served) as server, RemoteVectorEnv(server.address) as envs:
        assert envs.np_random_seed == (-1, -1, -1)
        infos = envs.reset(seed=5)[1]
        assert infos["rseed"].tolist() == [5, 6, 7]
        assert envs.np_random_seed == (5, 6, 7)
        assert list(envs.lane_seeds) == [5, 6, 7]
        infos = envs.reset()[1]
        assert infos["rseed"].tolist() == [-1, -1, -1]
        assert envs.np_random_seed == (5, 6, 7)
        assert list(envs.lane_seeds) == [None, None, None]
        infos = envs.reset(seed=[1, None, 3])[1]
        assert infos["rseed"].tolist() == [1, -1, 3]
        assert envs.np_random_seed == (1, 6, 3)
        mask = np.array([False, True, True])
        infos = envs.reset(seed=np.array([7, 8, 9]), options={"reset_mask": mask})[1]
        assert infos["rseed"].tolist() == [0, 8, 9]
        assert infos["_rseed"].tolist() == [False, True, True]
        assert envs.np_random_seed == (1, 8, 9)


def test_options_reach_the_lanes() -> None:
    served = lanes(2)
    with EnvServer(served) as server, RemoteVectorEnv(server.address) as envs:
        envs.reset()
        assert served[0].last_options is None
        envs.reset(options={})
        assert served[0].last_options == {}
        envs.reset(options={"reset_mask": np.array([False, True]), "level": 3})
        assert [env.last_options for env in served] == [{}, {"level": 3}]
        envs.reset(options={"reset_mask": np.array([True, False])})
        assert served[0].last_options == {}
        with pytest.raises(CodecError, match=r"\$\.options\.what"):
            envs.reset(options={"what": object()})
        envs.step([0, 0])


def test_the_first_partial_reset_names_the_lanes_without_observation() -> None:
    with (
        EnvServer(lanes(2)) as first,
        EnvServer(lanes(2)) as second,
        RemoteVectorEnv(addresses=[first.address, second.address]) as envs,
    ):
        with pytest.raises(ResetNeededError, match=r"lanes \[0, 3\] have no observation"):
            envs.reset(options={"reset_mask": np.array([False, True, True, False])})
        with pytest.raises(ResetNeededError, match="never reset"):
            envs.step([0] * 4)
        envs.reset(options={"reset_mask": np.ones(4, dtype=np.bool_)})
        envs.step([0] * 4)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_partial_resets_over_two_servers(mode: AutoresetMode) -> None:
    makers = [partial(CountingEnv, 2 + lane, base=100.0 * lane) for lane in range(5)]
    with (
        EnvServer([maker() for maker in makers[:2]]) as first,
        EnvServer(SyncVectorEnv(makers[2:], autoreset_mode=mode)) as second,
        RemoteVectorEnv(
            addresses=[first.address, second.address], autoreset_mode=mode, num_envs=5
        ) as envs,
    ):
        compare(envs, makers, mode, steps=60, reset_rate=0.3)


def test_ended_lanes_are_never_stepped_under_disabled() -> None:
    served = lanes(3)
    with EnvServer(served) as server, RemoteVectorEnv(server.address) as envs:
        assert envs.autoreset_mode is AutoresetMode.DISABLED
        assert envs.lane_phases == (LanePhase.ENDED,) * 3
        envs.reset()
        envs.step([0, 0, 0])
        envs.step([0, 0, 0])
        assert envs.lane_phases == (LanePhase.ENDED, LanePhase.RUNNING, LanePhase.RUNNING)
        with pytest.raises(ResetNeededError, match=r"lanes \[0\] are over"):
            envs.step([0, 0, 0])
        assert [env.steps_taken for env in served] == [2, 2, 2]
        envs.reset(options={"reset_mask": np.array([True, False, False])})
        envs.step([0, 0, 0])
