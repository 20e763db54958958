"""PPO for discrete actions in one file, on any Gymnasium vector environment.

It knows nothing of rlmesh-gym:

    python ppo.py --env-id CartPole-v1
    RLMESH_GYM_ADDRESS=127.0.0.1:5555 python ppo.py --env-id rlmesh_gym:rlmesh/Remote-v0

Both autoreset modes that reset lanes by themselves are handled; ``--env-kwargs`` can ask for one:
``--env-kwargs '{"autoreset_mode": "SameStep"}'``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

GAMMA = 0.98
GAE_LAMBDA = 0.9
CLIP = 0.2
EPOCHS = 6
MINIBATCH = 256
MAX_GRADIENT_NORM = 0.5


class Agent(nn.Module):
    """An actor and a critic, two tanh layers each."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor = _perceptron(inputs, actions, scale=0.01)
        self.critic = _perceptron(inputs, 1, scale=1.0)

    def policy(self, observations: torch.Tensor) -> torch.distributions.Categorical:
        """Distribution over actions for each row."""
        return torch.distributions.Categorical(logits=self.actor(observations))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """The critic's estimate for each row."""
        values: torch.Tensor = self.critic(observations).squeeze(-1)
        return values


def _perceptron(inputs: int, outputs: int, *, scale: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in ((inputs, 64), (64, 64)):
        layers += [_orthogonal(nn.Linear(*size), 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, _orthogonal(nn.Linear(64, outputs), scale))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass
class Rollout:
    """Transitions, each field of shape ``(steps, num_envs, ...)``.

    Attributes:
        over: The episode ended with this step.
        real: False where the lane's step was its autoreset, whose action the env ignored.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    log_probabilities: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    over: torch.Tensor
    real: torch.Tensor

    @classmethod
    def empty(cls, steps: int, envs: gym.vector.VectorEnv) -> Rollout:
        """Space for ``steps`` steps of all lanes."""
        shape = (steps, envs.num_envs)
        return cls(
            observations=torch.zeros(shape + envs.single_observation_space.shape),
            actions=torch.zeros(shape, dtype=torch.int64),
            log_probabilities=torch.zeros(shape),
            values=torch.zeros(shape),
            rewards=torch.zeros(shape),
            over=torch.zeros(shape, dtype=torch.bool),
            real=torch.zeros(shape, dtype=torch.bool),
        )


class Lanes:
    """The vector environment, what its lanes saw last, and the returns of their episodes."""

    def __init__(self, envs: gym.vector.VectorEnv, seed: int) -> None:
        mode = envs.metadata["autoreset_mode"]
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            raise ValueError(f"this script leaves resets to the lanes, which {mode} does not do")
        self.envs = envs
        self.resets_in_next_step = mode is AutoresetMode.NEXT_STEP
        self.observations = torch.as_tensor(envs.reset(seed=seed)[0])
        self.ended = np.zeros(envs.num_envs, dtype=np.bool_)
        self.returns = np.zeros(envs.num_envs)
        self.finished: list[float] = []

    def collect(self, agent: Agent, steps: int) -> Rollout:
        """Step all lanes and keep what happened."""
        rollout = Rollout.empty(steps, self.envs)
        for step in range(steps):
            with torch.no_grad():
                policy = agent.policy(self.observations)
                actions = policy.sample()
                rollout.log_probabilities[step] = policy.log_prob(actions)
                rollout.values[step] = agent.value(self.observations)
            rollout.observations[step] = self.observations
            rollout.actions[step] = actions
            # Under NEXT_STEP a lane whose episode has just ended only resets now.
            real = ~self.ended if self.resets_in_next_step else np.ones_like(self.ended)
            observations, rewards, terminations, truncations, infos = self.envs.step(
                actions.numpy()
            )
            self.observations = torch.as_tensor(observations)
            self.ended = np.logical_or(terminations, truncations)
            self.returns += rewards
            self.finished += self.returns[self.ended].tolist()
            self.returns[self.ended] = 0.0
            rollout.rewards[step] = torch.as_tensor(rewards)
            rollout.over[step] = torch.as_tensor(self.ended)
            rollout.real[step] = torch.as_tensor(real)
            if truncations.any():
                # A time limit cut the episode off: the value of where it stood stands in for
                # the rest.
                cut = torch.as_tensor(truncations & ~terminations)
                last = self._last_observations(observations, infos)
                with torch.no_grad():
                    rollout.rewards[step] += GAMMA * agent.value(last) * cut
        return rollout

    def _last_observations(self, observations: Any, infos: dict[str, Any]) -> torch.Tensor:
        if self.resets_in_next_step:
            return torch.as_tensor(observations)
        last = np.array(observations)
        for lane in np.flatnonzero(infos["_final_obs"]):
            last[lane] = infos["final_obs"][lane]
        return torch.as_tensor(last)


def advantages_of(rollout: Rollout, last_values: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimates, shape ``(steps, num_envs)``."""
    advantages = torch.zeros_like(rollout.rewards)
    following = torch.zeros_like(last_values)
    values = last_values
    for step in reversed(range(len(advantages))):
        goes_on = ~rollout.over[step]
        error = rollout.rewards[step] + GAMMA * values * goes_on - rollout.values[step]
        following = error + GAMMA * GAE_LAMBDA * following * goes_on
        advantages[step] = following
        values = rollout.values[step]
    return advantages


def learn(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, advantages: torch.Tensor
) -> None:
    """Improve the agent with the real transitions of a rollout."""
    real = rollout.real
    observations, actions = rollout.observations[real], rollout.actions[real]
    old, targets = rollout.log_probabilities[real], (advantages + rollout.values)[real]
    advantages = advantages[real]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            policy = agent.policy(observations[rows])
            ratio = (policy.log_prob(actions[rows]) - old[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std(unbiased=False) + 1e-8)
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            error = (agent.value(observations[rows]) - targets[rows]).square().mean()
            loss = 0.5 * error - surrogate
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def train(
    env_id: str,
    *,
    num_envs: int = 8,
    updates: int = 30,
    steps: int = 64,
    rate: float = 2e-3,
    seed: int = 1,
    env_kwargs: dict[str, Any] | None = None,
) -> list[float]:
    """Train on ``num_envs`` lanes and return the returns of the episodes, in order."""
    torch.manual_seed(seed)
    envs = gym.make_vec(env_id, num_envs=num_envs, **(env_kwargs or {}))
    try:
        agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
        optimizer = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
        lanes = Lanes(envs, seed)
        for update in range(updates):
            optimizer.param_groups[0]["lr"] = rate * (1 - update / updates)
            rollout = lanes.collect(agent, steps)
            with torch.no_grad():
                last_values = agent.value(lanes.observations)
            learn(agent, optimizer, rollout, advantages_of(rollout, last_values))
            if ((update + 1) % 5 == 0 or update + 1 == updates) and lanes.finished:
                done = (update + 1) * steps * envs.num_envs
                print(f"{done:>8} steps   mean return {np.mean(lanes.finished[-20:]):8.1f}")
        return lanes.finished
    finally:
        envs.close()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train PPO on a vector environment.")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--steps", type=int, default=64, help="steps of each lane per update")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-kwargs", type=json.loads, help="for gymnasium.make_vec, as JSON")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
