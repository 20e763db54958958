"""``NumpyToTorch`` on a remote vector gives the tensors that it gives on a local one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NumpyToTorch, RecordEpisodeStatistics

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.server import EnvServer
from tests.fake_envs import CountingEnv, ImageEnv

pytestmark = pytest.mark.training

NEXT, SAME, DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)


class NumericEnv(CountingEnv):
    """Infos of numbers only: tensors hold nothing else."""

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {"rseed": info["rseed"]}

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return (*rest, {"t": info["t"], "both": {"vector": np.arange(2.0) * self.t}})


class ShortImageEnv(ImageEnv):
    def __init__(self) -> None:
        super().__init__(4, shape=(6, 5, 3))


MAKERS: dict[str, list[Any]] = {
    "numbers": [partial(NumericEnv, length, base=100.0 * length) for length in (2, 3, 5)],
    "images": [ShortImageEnv] * 2,
}


@pytest.fixture(params=MAKERS)
def makers(request: pytest.FixtureRequest) -> list[Any]:
    return MAKERS[request.param]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    assert isinstance(left, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    return bool(left.dtype == right.dtype and torch.equal(left, right))


def without_times(infos: Any) -> Any:
    if "episode" in infos:
        infos["episode"].pop("t")
    return infos


@pytest.mark.parametrize("mode", [NEXT, DISABLED], ids=lambda mode: mode.value)
def test_tensors(makers: list[Any], mode: AutoresetMode) -> None:
    with (
        EnvServer([maker() for maker in makers]) as server,
        RemoteVectorEnv(server.address, autoreset_mode=mode) as remote,
    ):
        local = SyncVectorEnv(makers, autoreset_mode=mode)
        left, right = (NumpyToTorch(RecordEpisodeStatistics(envs)) for envs in (remote, local))
        for got, expected in zip(left.reset(seed=1), right.reset(seed=1), strict=True):
            assert same(got, expected)
        for step in range(40):
            action = torch.full((len(makers),), step % 5, dtype=torch.int64)
            got_step, expected_step = left.step(action), right.step(action)
            without_times(got_step[4]), without_times(expected_step[4])
            for got, expected in zip(got_step, expected_step, strict=True):
                assert same(got, expected)
            if mode is DISABLED and bool((got_step[2] | got_step[3]).any()):
                # Whole resets: this wrapper turns the mask into a tensor, which Gymnasium refuses.
                left.reset(seed=step), right.reset(seed=step)
        local.close()


def test_object_arrays_make_no_tensors() -> None:
    # final_obs holds objects; the same wrapper fails over Gymnasium's own vectors under SAME_STEP.
    makers = MAKERS["numbers"]
    with (
        EnvServer([maker() for maker in makers]) as server,
        RemoteVectorEnv(server.address, autoreset_mode=SAME) as remote,
    ):
        envs = NumpyToTorch(remote)
        envs.reset()
        zeros = torch.zeros(len(makers), dtype=torch.int64)
        envs.step(zeros)
        with pytest.raises(BufferError):
            envs.step(zeros)
