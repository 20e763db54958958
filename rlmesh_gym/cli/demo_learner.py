"""A small PPO in numpy. It sees arrays only and knows nothing of environments."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy arrays, rows first

_GAMMA, _LAMBDA, _CLIP, _EPOCHS, _MINIBATCH, _RATE = 0.99, 0.95, 0.2, 6, 128, 2e-3
_REWARD_SCALE = 0.1  # Keeps the critic's targets, up to 1 / (1 - gamma) rewards, within reach.


class Network:
    """A perceptron with tanh between its layers, and its Adam optimiser."""

    def __init__(self, sizes: tuple[int, ...], last: float, rng: np.random.Generator) -> None:
        scales = [*(size**-0.5 for size in sizes[:-2]), last]
        # The last row of each matrix is the bias.
        self.weights: list[Array] = [
            rng.standard_normal((inputs + 1, outputs)) * scale * ([[1]] * inputs + [[0]])
            for inputs, outputs, scale in zip(sizes[:-1], sizes[1:], scales, strict=True)
        ]
        self.moments: list[Array] = [np.zeros((2, *weight.shape)) for weight in self.weights]
        self.updates: int = 0

    def forward(self, x: Array) -> tuple[Array, list[Array]]:
        """Outputs for a batch, and the layers' inputs, which ``step`` needs."""
        layers: list[Array] = []
        for weight in self.weights:
            layers.append(np.column_stack([np.tanh(x) if layers else x, np.ones(len(x))]))
            x = layers[-1] @ weight
        return x, layers

    def step(self, gradient: Array, layers: list[Array], rate: float) -> None:
        """One Adam step along the gradient of the loss by the outputs, clipped to norm 0.5."""
        gradients: list[Array] = []
        for weight, layer in zip(reversed(self.weights), reversed(layers), strict=True):
            gradients.insert(0, layer.T @ gradient)
            gradient = gradient @ weight[:-1].T * (1 - layer[:, :-1] ** 2)
        norm: float = sum((part**2).sum() for part in gradients) ** 0.5
        self.updates += 1
        rate *= (1 - 0.999**self.updates) ** 0.5 / (1 - 0.9**self.updates)
        for weight, part, moments in zip(self.weights, gradients, self.moments, strict=True):
            clipped = part * min(1.0, 0.5 / (norm + 1e-8))
            moments[0] += 0.1 * (clipped - moments[0])
            moments[1] += 0.001 * (clipped**2 - moments[1])
            np.subtract(weight, rate * moments[0] / (np.sqrt(moments[1]) + 1e-8), out=weight)


class PPO:
    """Proximal policy optimisation for discrete actions."""

    def __init__(self, inputs: int, actions: int, *, seed: int) -> None:
        self.rng: np.random.Generator = np.random.default_rng(seed)
        # Products of larger layers go to a second thread, which a busy machine has no time for.
        self.actor: Network = Network((inputs, 32, 32, actions), 0.01, self.rng)
        self.critic: Network = Network((inputs, 32, 32, 1), 0.2, self.rng)

    def act(self, observations: Array) -> tuple[Array, Array, Array]:
        """Sampled actions, their log probabilities and the values, one per row."""
        logits = _log_softmax(self.actor.forward(observations)[0])
        # The largest of logits with Gumbel noise is a sample of the softmax.
        actions = np.argmax(logits + self.rng.gumbel(size=logits.shape), axis=1)
        values = self.critic.forward(observations)[0][:, 0]
        return actions, logits[np.arange(actions.size), actions], values

    def update(self, rollout: list[tuple[Array, ...]], last: Array, progress: float) -> None:
        """Learn from a rollout, slower as ``progress`` goes from 0 to 1.

        It holds per step the observations, what ``act`` gave for them, rewards, terminations,
        truncations, and False for lanes where it was no step but their autoreset; ``last`` are the
        observations after it.
        """
        inputs, actions, old, values, rewards, terminations, truncations, real = (
            np.stack(column) for column in zip(*rollout, strict=True)
        )
        values = np.concatenate([values, self.critic.forward(last)[0].T])
        advantages = advantages_of(values, rewards * _REWARD_SCALE, terminations, truncations)
        columns = (inputs, actions, old, advantages, advantages + values[:-1])
        data = [column[real] for column in columns]
        rate = _RATE * (1 - progress)
        for _ in range(_EPOCHS):
            order = self.rng.permutation(len(data[0]))
            for part in np.array_split(order, max(1, len(order) // _MINIBATCH)):
                self._improve(*(column[part] for column in data), rate=rate)

    def _improve(self, *columns: Array, rate: float) -> None:
        x, actions, old, gains, targets = columns
        rows = np.arange(actions.size)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        outputs, layers = self.actor.forward(x)
        logits = _log_softmax(outputs)
        ratio = np.exp(logits[rows, actions] - old)
        # Where clipping is active the surrogate is flat, and its gradient zero.
        active = np.where(gains > 0, ratio < 1 + _CLIP, ratio > 1 - _CLIP)
        towards = np.eye(logits.shape[1])[actions] - np.exp(logits)
        self.actor.step(-(active * ratio * gains)[:, None] * towards / rows.size, layers, rate)
        values, layers = self.critic.forward(x)
        self.critic.step((values - targets[:, None]) / rows.size, layers, rate)


def advantages_of(values: Array, rewards: Array, terminations: Array, truncations: Array) -> Array:
    """Generalised advantage estimates ``(steps, num_envs)``; ``values`` has one row more."""
    # Under NEXT_STEP the observation after a truncated step is the real last one, so its value
    # stands in for the rewards that the time limit cut off.
    errors = rewards + _GAMMA * values[1:] * ~terminations - values[:-1]
    keep = _GAMMA * _LAMBDA * ~(terminations | truncations)
    for step in reversed(range(len(errors) - 1)):
        errors[step] += keep[step] * errors[step + 1]
    return errors


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
