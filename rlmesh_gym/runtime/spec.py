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


def _is_int(value: Any, lowest: float, highest: float = math.inf) -> bool:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_whole and lowest <= value <= highest


def _is_time(value: Any, *, zero: bool = False, endless: bool = False) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (value > 0 or (zero and value == 0)) and (endless or value < math.inf)


def _require(is_right: bool, name: str, rule: str, value: Any) -> None:
    if not is_right:
        raise ConfigurationError(f"{name} must be {rule}, got {value!r}")


@dataclass(frozen=True)
class RuntimeLimits:
    """How long a run waits for its ends, in seconds; None waits for ever.

    They hold for ends elsewhere. A call into this process, of a local env or model, cannot be
    interrupted and is waited for; a ``RemotePolicy`` and a remote env under wrappers keep their own
    timeouts.

    Attributes:
        env_reset_timeout: For one ``reset`` of every endpoint.
        env_step_timeout: For one ``step`` of every endpoint.
        model_resolve_timeout: For the model to set the environment up.
        model_predict_timeout: For one answer of the model.
        close_timeout: For letting go of the model, and again for the env; always finite.
        telemetry_window: Length of the live telemetry window; 0 for none. Anything between 0 and
            0.001 is taken as 0.001.
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
        for name, value in vars(self).items():
            if name == "close_timeout":
                _require(_is_time(value), f"limits.{name}", "seconds above 0", value)
            elif name == "telemetry_window":
                is_right = _is_time(value, zero=True)
                _require(is_right, f"limits.{name}", "seconds above 0, or 0 for none", value)
            else:
                is_right = value is None or _is_time(value, endless=True)
                _require(is_right, f"limits.{name}", "seconds above 0 or None", value)


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
        for name in ("max_episodes", "max_steps", "max_episode_steps"):
            value, lowest = getattr(self, name), int(name == "max_episode_steps")
            is_right = value is None or _is_int(value, lowest)
            _require(is_right, name, f"at least {lowest} or None", value)
        seconds = self.max_episode_seconds
        is_right = seconds is None or _is_time(seconds, endless=True)
        _require(is_right, "max_episode_seconds", "above 0 or None", seconds)
        horizon = self.execution_horizon
        is_right = _is_int(horizon, 1, MAX_EXECUTION_HORIZON)
        _require(is_right, "execution_horizon", f"1 to {MAX_EXECUTION_HORIZON}", horizon)
        rows = self.predict_rows
        is_right = rows in {"auto", "together", "apart"}
        _require(is_right, "predict_rows", "'auto', 'together' or 'apart'", rows)
        session: Any = self.session_id
        is_right = isinstance(session, str) and session != ""
        _require(is_right, "session_id", "a text, not empty", session)
        options = self.reset_options
        is_right = options is None or isinstance(options, Mapping)
        _require(is_right, "reset_options", "a dict or None", options)
        _require(isinstance(self.limits, RuntimeLimits), "limits", "RuntimeLimits", self.limits)
        base = self.base_seed
        is_right = base is None or _is_int(base, _INT64_MIN, _INT64_MAX)
        _require(is_right, "base_seed", "an int64 or None", base)
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


def _with_planned_seeds(spec: RuntimeSessionSpec) -> RuntimeSessionSpec:
    if spec.episode_seeds is None:
        return spec
    if spec.base_seed is not None:
        raise ConfigurationError("give base_seed or episode_seeds, not both")
    for position, seed in enumerate(spec.episode_seeds):
        is_right = _is_int(seed, 0, _INT64_MAX)
        _require(is_right, f"episode_seeds[{position}]", "0 to 2**63 - 1", seed)
    seeds = tuple(int(seed) for seed in spec.episode_seeds)
    episodes = len(seeds) if spec.max_episodes is None else spec.max_episodes
    if episodes > len(seeds):
        raise ConfigurationError(
            f"max_episodes is {episodes} but episode_seeds has only {len(seeds)}; give one seed "
            "per episode"
        )
    return replace(spec, episode_seeds=seeds, max_episodes=episodes)
