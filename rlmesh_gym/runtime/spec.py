"""What a run should do: limits, seeds, horizon. Checked as a whole before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import MAX_EXECUTION_HORIZON
from rlmesh_gym.runtime.seeds import derive_seed

__all__ = ["DEFAULT_SESSION_ID", "RuntimeLimits", "RuntimeSessionSpec"]

DEFAULT_SESSION_ID = "run"
"""One fixed name, so that equal base seeds give equal seeds unless the user says otherwise."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(frozen=True)
class RuntimeLimits:
    """How long a run waits for its ends, in seconds; None waits for ever.

    Attributes:
        env_reset_timeout: For one ``reset`` of every endpoint.
        env_step_timeout: For one ``step`` of every endpoint.
        model_resolve_timeout: For the model to set the environment up.
        model_predict_timeout: For one answer of the model.
        close_timeout: For letting go of the model, and again for the env; always finite.
        telemetry_window: Length of the live telemetry window; 0 for none.
    """

    env_reset_timeout: float | None = 300.0
    env_step_timeout: float | None = 300.0
    model_resolve_timeout: float | None = 300.0
    model_predict_timeout: float | None = 300.0
    close_timeout: float = 5.0
    telemetry_window: float = 5.0

    def validate(self) -> None:
        """Check every number.

        Raises:
            ConfigurationError: One is negative, zero where that makes no sense, or not a number.
        """
        for name in (
            "env_reset_timeout",
            "env_step_timeout",
            "model_resolve_timeout",
            "model_predict_timeout",
        ):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                message = (
                    f"limits.{name} must be a number of seconds above 0 or None, got {value!r}"
                )
                raise ConfigurationError(message)
        value = self.close_timeout
        if not (_is_number(value) and math.isfinite(value) and value > 0):
            message = f"limits.close_timeout must be finite seconds above 0, got {value!r}"
            raise ConfigurationError(message)
        value = self.telemetry_window
        if not (_is_number(value) and math.isfinite(value) and value >= 0):
            message = f"limits.telemetry_window must be finite seconds, 0 for none, got {value!r}"
            raise ConfigurationError(message)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN


@dataclass(frozen=True)
class RuntimeSessionSpec:
    """What one run does.

    Episodes are planned before the run: episode number ``k`` belongs to lane ``k % num_envs`` and
    is that lane's episode ``k // num_envs``. A lane that has done its share waits for the others,
    so which episodes are counted depends neither on their length nor on the machines' speed.

    Attributes:
        max_episodes: Episodes to complete over all lanes; None for no limit. Defaults to the number
            of ``episode_seeds`` where those are given.
        max_steps: Lane steps to make over all lanes, after which running episodes are cut off and
            reported as interrupted; None for no limit. Looked at after each vector step.
        max_episode_steps: Steps after which an episode is ended as truncated; None for no limit.
        max_episode_seconds: Wall time after which an episode is ended as truncated, looked at
            after each step; None for no limit. Results then depend on speed.
        base_seed: Seeds derive from it per lane and reset (:mod:`rlmesh_gym.runtime.seeds`); None
            leaves the env unseeded. Where an env resets itself, only each lane's first reset is
            seeded, and the env's own generator carries on.
        episode_seeds: Seed of episode ``k`` of the plan. Takes the place of ``base_seed``, and
            makes the driver reset a lane at every episode, also where the env would by itself.
        execution_horizon: Frames of each predicted chunk that are executed; at least 1.
        predict_rows: How the rows that need a plan at one step go to the model: ``"together"`` in
            one request, ``"apart"`` in one each, all in flight at a time. ``"auto"`` goes apart
            where a released ``rlmesh`` model would otherwise be called differently than by its own
            run loop: with chunks, or in environments of single lanes.
        session_id: Name of the session. Part of the derivation of seeds, so that two runs of one
            base seed are equal under one name and different under two.
        reset_options: ``options`` of every reset; plain data.
        limits: How long to wait.
    """

    max_episodes: int | None = None
    max_steps: int | None = None
    max_episode_steps: int | None = None
    max_episode_seconds: float | None = None
    base_seed: int | None = None
    episode_seeds: tuple[int, ...] | None = None
    execution_horizon: int = 1
    predict_rows: Literal["auto", "together", "apart"] = "auto"
    session_id: str = DEFAULT_SESSION_ID
    reset_options: Mapping[str, Any] | None = None
    limits: RuntimeLimits = field(default_factory=RuntimeLimits)

    def validate(self) -> RuntimeSessionSpec:
        """Check the spec by itself, without asking anyone.

        Returns:
            The same spec with ``max_episodes`` filled in from ``episode_seeds``, and all numbers as
            plain Python ones.

        Raises:
            ConfigurationError: What is wrong, with the value that came.
        """
        for name in ("max_episodes", "max_steps"):
            _check_count(name, getattr(self, name), lowest=0)
        _check_count("max_episode_steps", self.max_episode_steps, lowest=1)
        seconds = self.max_episode_seconds
        if seconds is not None and not (_is_number(seconds) and seconds > 0):
            message = f"max_episode_seconds must be seconds above 0 or None, got {seconds!r}"
            raise ConfigurationError(message)
        horizon = self.execution_horizon
        if not _is_int(horizon) or not 1 <= horizon <= MAX_EXECUTION_HORIZON:
            message = (
                f"execution_horizon must be an int in [1, {MAX_EXECUTION_HORIZON}], got {horizon!r}"
            )
            raise ConfigurationError(message)
        if self.predict_rows not in {"auto", "together", "apart"}:
            message = f"predict_rows is 'auto', 'together' or 'apart', got {self.predict_rows!r}"
            raise ConfigurationError(message)
        if not _is_text(self.session_id):
            message = f"session_id must be a text that is not empty, got {self.session_id!r}"
            raise ConfigurationError(message)
        options = self.reset_options
        if options is not None and not isinstance(options, Mapping):
            message = f"reset_options must be a dict or None, got {options!r}"
            raise ConfigurationError(message)
        if not isinstance(self.limits, RuntimeLimits):
            message = f"limits must be RuntimeLimits, got {self.limits!r}"
            raise ConfigurationError(message)
        base = self.base_seed
        if base is not None and not (_is_int(base) and _INT64_MIN <= base <= _INT64_MAX):
            message = f"base_seed must be an int64 or None, got {base!r}"
            raise ConfigurationError(message)
        self.limits.validate()
        numbers: dict[str, Any] = {
            name: int(value)
            for name in ("max_episodes", "max_steps", "max_episode_steps", "base_seed")
            if (value := getattr(self, name)) is not None
        }
        return _with_planned_seeds(replace(self, execution_horizon=int(horizon), **numbers))

    @property
    def cuts_episodes(self) -> bool:
        """Whether the driver may end an episode that the env would go on with."""
        return self.max_episode_steps is not None or self.max_episode_seconds is not None

    def quota(self, lane: int, num_envs: int) -> int | None:
        """Return how many episodes this lane plays; None without a limit."""
        if self.max_episodes is None:
            return None
        return max(0, -(-(self.max_episodes - lane) // num_envs))

    def seed_for(self, lane: int, generation: int, num_envs: int) -> int | None:
        """Return the seed of this lane's reset number ``generation``; None when unseeded.

        Args:
            lane: Lane of the run.
            generation: Episodes that the lane was given before.
            num_envs: Lanes of the run.
        """
        if self.base_seed is not None:
            return derive_seed(self.base_seed, self.session_id, generation, lane)
        if self.episode_seeds:
            index = generation * num_envs + lane
            # A lane beyond its share is reset along with others; any seed will do.
            return self.episode_seeds[min(index, len(self.episode_seeds) - 1)]
        return None


def _check_count(name: str, value: Any, *, lowest: int) -> None:
    if value is not None and not (_is_int(value) and value >= lowest):
        message = f"{name} must be an int of at least {lowest} or None, got {value!r}"
        raise ConfigurationError(message)


def _with_planned_seeds(spec: RuntimeSessionSpec) -> RuntimeSessionSpec:
    if spec.episode_seeds is None:
        return spec
    if spec.base_seed is not None:
        message = "give base_seed or episode_seeds, not both"
        raise ConfigurationError(message)
    for position, seed in enumerate(spec.episode_seeds):
        if not _is_int(seed) or not 0 <= seed <= _INT64_MAX:
            message = f"episode_seeds[{position}] must be an int in [0, 2**63), got {seed!r}"
            raise ConfigurationError(message)
    seeds = tuple(int(seed) for seed in spec.episode_seeds)
    episodes = len(seeds) if spec.max_episodes is None else spec.max_episodes
    if episodes > len(seeds):
        message = (
            f"max_episodes is {episodes} but episode_seeds has only {len(seeds)}; "
            "give one seed per episode"
        )
        raise ConfigurationError(message)
    return replace(spec, episode_seeds=seeds, max_episodes=episodes)
