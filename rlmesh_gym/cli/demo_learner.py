"""A small PPO in numpy: enough to learn CartPole from a vector of lanes, and to be read at once.

It sees arrays only and knows nothing of environments; the demo feeds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PPO", "Rollout"]

# Products of this size OpenBLAS computes on one thread; on larger ones it waits for a second one,
# which a busy machine may not run for a while.
_HIDDEN = 32


class Network:
    """A perceptron with two tanh layers and its Adam optimiser."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, scale: float, rng: np.random.Generator
    ) -> None:
        sizes = [(inputs, hidden), (hidden, hidden), (hidden, outputs)]
        gains = [2**0.5, 2**0.5, scale]
        self.parameters: list[NDArray[np.float64]] = []
        for size, gain in zip(sizes, gains, strict=True):
            self.parameters += [_orthogonal(size, gain, rng), np.zeros(size[1])]
        self._first = [np.zeros_like(parameter) for parameter in self.parameters]
        self._second = [np.zeros_like(parameter) for parameter in self.parameters]
        self._updates = 0

    def forward(
        self, x: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """Outputs for a batch ``(n, inputs)``, and the activations that ``step`` needs."""
        w1, b1, w2, b2, w3, b3 = self.parameters
        first = np.tanh(x @ w1 + b1)
        second = np.tanh(first @ w2 + b2)
        return second @ w3 + b3, [x, first, second]

    def step(
        self, gradient: NDArray[np.float64], layers: list[NDArray[np.float64]], rate: float
    ) -> None:
        """One Adam step along the gradient of the loss by the outputs, clipped to norm 0.5."""
        x, first, second = layers
        _, _, w2, _, w3, _ = self.parameters
        at_second = (gradient @ w3.T) * (1 - second**2)
        at_first = (at_second @ w2.T) * (1 - first**2)
        gradients = [
            *(x.T @ at_first, at_first.sum(0)),
            *(first.T @ at_second, at_second.sum(0)),
            *(second.T @ gradient, gradient.sum(0)),
        ]
        norm = np.sqrt(sum(float((part**2).sum()) for part in gradients))
        factor = min(1.0, 0.5 / (norm + 1e-8))
        self._updates += 1
        correction = rate * np.sqrt(1 - 0.999**self._updates) / (1 - 0.9**self._updates)
        for place, part in enumerate(gradients):
            scaled = part * factor
            self._first[place] += 0.1 * (scaled - self._first[place])
            self._second[place] += 0.001 * (scaled**2 - self._second[place])
            self.parameters[place] -= (
                correction * self._first[place] / (np.sqrt(self._second[place]) + 1e-8)
            )


def _orthogonal(
    size: tuple[int, int], gain: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows, columns = max(size), min(size)
    q, r = np.linalg.qr(rng.standard_normal((rows, columns)))
    q *= np.sign(np.diag(r))
    return np.ascontiguousarray(gain * (q if size[0] >= size[1] else q.T))


@dataclass
class Rollout:
    """Transitions in order of time; every list holds one ``(num_envs, ...)`` array per step.

    Attributes:
        is_real: False where the lane's step was its autoreset, which is no transition.
    """

    observations: list[NDArray[np.float64]] = field(default_factory=list)
    actions: list[NDArray[np.int64]] = field(default_factory=list)
    log_probabilities: list[NDArray[np.float64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    rewards: list[NDArray[np.float64]] = field(default_factory=list)
    terminations: list[NDArray[np.bool_]] = field(default_factory=list)
    truncations: list[NDArray[np.bool_]] = field(default_factory=list)
    is_real: list[NDArray[np.bool_]] = field(default_factory=list)


class PPO:
    """Proximal policy optimisation for discrete actions, with an actor and a critic.

    Args:
        inputs: Length of an observation vector.
        actions: Number of actions.
        seed: Of the weights, the actions and the order of the minibatches.
        rate: Adam's step size at the beginning.
    """

    gamma = 0.99
    gae_lambda = 0.95
    reward_scale = 0.1  # Keeps the critic's targets, up to 1 / (1 - gamma) rewards, within reach.
    clip = 0.2
    epochs = 6
    minibatch = 128

    def __init__(self, inputs: int, actions: int, *, seed: int, rate: float = 2e-3) -> None:
        self.rate = rate
        self._rng = np.random.default_rng(seed)
        self._actor = Network(inputs, _HIDDEN, actions, 0.01, self._rng)
        self._critic = Network(inputs, _HIDDEN, 1, 1.0, self._rng)

    def act(
        self, observations: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Sampled actions, their log probabilities and the values, one per row."""
        logits, _ = self._actor.forward(observations)
        # The Gumbel trick: the largest of noisy logits is a sample of the softmax.
        actions = np.argmax(logits + self._rng.gumbel(size=logits.shape), axis=1)
        chosen = _log_softmax(logits)[np.arange(actions.size), actions]
        return actions.astype(np.int64), chosen, self.value(observations)

    def value(self, observations: NDArray[np.float64]) -> NDArray[np.float64]:
        """The critic's value of each row."""
        values: NDArray[np.float64] = self._critic.forward(observations)[0][:, 0]
        return values

    def update(self, rollout: Rollout, last: NDArray[np.float64], progress: float) -> None:
        """Learn from a rollout.

        Args:
            rollout: At least one step.
            last: Observations after its last step, ``(num_envs, inputs)``.
            progress: From 0 at the beginning of the training to 1; the step size falls with it.
        """
        advantages, returns = self._advantages(rollout, last)
        real = np.stack(rollout.is_real).reshape(-1)
        inputs = np.concatenate(rollout.observations)[real]
        actions = np.concatenate(rollout.actions)[real]
        old = np.concatenate(rollout.log_probabilities)[real]
        advantages, returns = advantages.reshape(-1)[real], returns.reshape(-1)[real]
        rate = self.rate * (1 - progress)
        for _ in range(self.epochs):
            order = self._rng.permutation(actions.size)
            for begin in range(0, order.size, self.minibatch):
                part = order[begin : begin + self.minibatch]
                self._improve_actor(inputs[part], actions[part], old[part], advantages[part], rate)
                values, layers = self._critic.forward(inputs[part])
                error = (values[:, 0] - returns[part]) / part.size
                self._critic.step(error[:, None], layers, rate)

    def _improve_actor(
        self,
        inputs: NDArray[np.float64],
        actions: NDArray[np.int64],
        old: NDArray[np.float64],
        advantages: NDArray[np.float64],
        rate: float,
    ) -> None:
        rows = np.arange(actions.size)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        logits, layers = self._actor.forward(inputs)
        log_probabilities = _log_softmax(logits)
        probabilities = np.exp(log_probabilities)
        ratio = np.exp(log_probabilities[rows, actions] - old)
        # Where clipping is active the surrogate is flat, and its gradient zero.
        active = np.where(advantages > 0, ratio < 1 + self.clip, ratio > 1 - self.clip)
        weight = np.where(active, ratio * advantages, 0.0)
        one_hot = np.zeros_like(probabilities)
        one_hot[rows, actions] = 1.0
        gradient = -weight[:, None] * (one_hot - probabilities)
        self._actor.step(gradient / actions.size, layers, rate)

    def _advantages(
        self, rollout: Rollout, last: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Generalised advantage estimates and the critic's targets, each ``(steps, num_envs)``."""
        values = np.stack([*rollout.values, self.value(last)])
        advantages = np.zeros_like(values)
        for step in reversed(range(len(rollout.rewards))):
            # Under NEXT_STEP the observation after a truncated step is the real last one, so its
            # value stands in for the rewards that the time limit cut off.
            goes_on = ~rollout.terminations[step]
            reward = self.reward_scale * rollout.rewards[step]
            error = reward + self.gamma * values[step + 1] * goes_on - values[step]
            same = goes_on & ~rollout.truncations[step]
            decay = self.gamma * self.gae_lambda * same
            advantages[step] = error + decay * advantages[step + 1]
        advantages = advantages[:-1]
        return advantages, advantages + values[:-1]


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
