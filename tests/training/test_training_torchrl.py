"""TorchRL's ``GymWrapper`` takes a remote vector as it is, and sees what it sees locally."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs

from rlmesh_gym.env import RemoteVectorEnv
from rlmesh_gym.testing import serving
from tests.fake_envs import CountingEnv

pytestmark = pytest.mark.training

# The modes that TorchRL takes.
MODES = (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP)


class BareEnv(CountingEnv):
    """No infos: TorchRL makes tensors of them under SAME_STEP."""

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0], {}

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {})


MAKERS: list[Any] = [
    partial(BareEnv, 2 + lane, base=100.0 * lane, truncate=lane == 1) for lane in range(3)
]


def always(actions: list[int], choices: int) -> Any:
    one_hot = torch.nn.functional.one_hot(torch.tensor(actions).squeeze(), choices)
    return TensorDictModule(lambda _: one_hot, in_keys=["observation"], out_keys=["action"])


def assert_same_data(got: Any, expected: Any) -> None:
    keys = sorted(map(str, expected.keys(True, True)))
    assert sorted(map(str, got.keys(True, True))) == keys
    for key in expected.keys(True, True):
        assert torch.equal(got[key], expected[key]), key
        assert got[key].dtype == expected[key].dtype


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_rollouts_are_those_of_a_local_vector(mode: AutoresetMode) -> None:
    policy = always([1, 2, 3], 10)
    rollouts = []
    with serving([make() for make in MAKERS]) as address:
        for envs in (
            SyncVectorEnv(MAKERS, autoreset_mode=mode),
            RemoteVectorEnv(address, autoreset_mode=mode),
        ):
            env = GymWrapper(envs)
            assert env.batch_size == (3,)
            env.set_seed(7)
            rollouts.append(env.rollout(12, policy, break_when_any_done=False))
            env.close()
    expected, got = rollouts
    assert_same_data(got, expected)
    # The step that ends an episode shows the terminal observation, the next begins anew.
    observations, following = got["observation"][0, :, 0], got["next", "observation"][0, :, 0]
    assert (observations[:4] % 10).tolist() == [0.0, 1.0, 0.0, 1.0]
    assert (following[:4] % 10).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert got["next", "terminated"][0, :4, 0].tolist() == [False, True, False, True]
    assert got["next", "truncated"][1, :3, 0].tolist() == [False, False, True]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_specs_and_returns(mode: AutoresetMode) -> None:
    """CartPole from an embedded endpoint, with TorchRL's own transform for statistics."""
    with RemoteVectorEnv(env_id="CartPole-v1", num_envs=2, autoreset_mode=mode) as envs:
        env = TransformedEnv(GymWrapper(envs), RewardSum(), auto_unwrap=True)
        check_env_specs(env)
        env.set_seed(1)
        data = env.rollout(40, break_when_any_done=False)
        ends = data["next", "done"]
        assert ends.any()
        assert (data["next", "episode_reward"][ends] > 1).all()


def test_infos_are_no_trouble_under_disabled() -> None:
    makers = [partial(CountingEnv, 3) for _ in range(2)]  # Text, and keys that come and go.
    with serving([make() for make in makers]) as address:
        env = GymWrapper(RemoteVectorEnv(address, autoreset_mode="Disabled"))
        data = env.rollout(9, always([1, 1], 10), break_when_any_done=False)
        env.close()
    assert data["next", "done"][:, :, 0].tolist() == [[False, False, True] * 3] * 2


def test_next_step_is_refused() -> None:
    with (
        RemoteVectorEnv(env_id="CartPole-v1", num_envs=2) as envs,
        pytest.raises(RuntimeError, match="must be one of SAME_STEP or DISABLED"),
    ):
        GymWrapper(envs)


def test_a_single_environment() -> None:
    rollouts = []
    with serving(gym.make("CartPole-v1")) as address:
        for envs in (
            gym.make("CartPole-v1"),
            gym.make("rlmesh_gym:rlmesh/Remote-v0", address=address),
        ):
            env = GymWrapper(envs)
            env.set_seed(3)
            rollouts.append(env.rollout(30, always([1], 2), break_when_any_done=False))
            env.close()
    assert_same_data(rollouts[1], rollouts[0])
    assert rollouts[1]["next", "done"].any()
