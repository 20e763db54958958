"""What a run should do: limits, seeds, horizon. Checked as a whole before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import MAX_EXECUTION_HORIZON
from rlmesh_gym.restarts import (
    MAX_RESTARTS,
    RESTART_PATIENCE,
    OnFailure,
    check_max_restarts,
    check_on_failure,
    check_patience,
)

DEFAULT_SESSION_ID = "run"
"""One fixed name, so that equal base seeds give equal seeds unless the user says otherwise."""

# A reset seed crosses the wire as int64 and Gymnasium refuses negative ones.
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
# FNV-1a, 64 bit: the published offset basis and prime.
_OFFSET_BASIS = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK_U64 = 0xFFFF_FFFF_FFFF_FFFF


def derive_seed(base_seed: int, session_id: str, generation: int, lane: int) -> int:
    """Derive the seed of one lane's reset.

    The env id is left out on purpose: two environments under one base seed and session get the
    same seeds, which pairs their episodes.

    Args:
        base_seed: Any int64.
        session_id: Name of the session.
        generation: How many resets this lane had before; at least 0.
        lane: Index of the lane; at least 0.

    Returns:
        A seed in ``[0, 2**63)``.

    Raises:
        OverflowError: A number does not fit 64 bits, or generation or lane is negative.
    """
    words = (
        base_seed.to_bytes(8, "little", signed=True),
        b"\xff",
        session_id.encode(),
        b"\xfd",
        generation.to_bytes(8, "little"),
        b"\xfc",
        lane.to_bytes(8, "little"),
    )
    state = _OFFSET_BASIS
    for byte in b"".join(words):
        state = ((state ^ byte) * _PRIME) & _MASK_U64
    return state & _INT64_MAX


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
        restart_patience: How long ``on_failure="restart"`` waits for an end that was lost.
        max_restarts: How often it takes one back that gets nothing done in between; a count, None
            for ever.
    """

    env_reset_timeout: float | None = 300.0
    env_step_timeout: float | None = 300.0
    model_resolve_timeout: float | None = 300.0
    model_predict_timeout: float | None = 300.0
    close_timeout: float = 5.0
    telemetry_window: float = 5.0
    restart_patience: float = RESTART_PATIENCE
    max_restarts: int | None = MAX_RESTARTS

    def validate(self) -> None:
        """Check every number.

        Raises:
            ConfigurationError: One is negative, zero where that makes no sense, or not a number.
        """
        check_patience(self.restart_patience)
        check_max_restarts(self.max_restarts)
        for name, value in vars(self).items():
            if name in {"restart_patience", "max_restarts"}:
                continue
            if name == "close_timeout":
                is_right, rule = _is_time(value), "seconds above 0"
            elif name == "telemetry_window":
                is_right, rule = _is_time(value, zero=True), "seconds above 0, or 0 for none"
            else:
                is_right = value is None or _is_time(value, endless=True)
                rule = "seconds above 0 or None"
            _require(is_right, f"limits.{name}", rule, value)


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
        base_seed: Seeds derive from it per lane and reset (:func:`derive_seed`); None leaves the
            env unseeded. Where an env resets itself, only each lane's first reset is seeded, and
            the env's own generator carries on.
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
        on_failure: ``"raise"``, or ``"restart"``: endpoints at addresses, and the model, are waited
            for when they are lost. Episodes that a lost env cut off are reported as interrupted and
            played again; a model goes on with the next observations, and what it kept of episodes
            is lost. A ``RemoteVectorEnv`` that is given has its own ``on_failure``.
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
    on_failure: OnFailure = "raise"

    def validate(self) -> RuntimeSessionSpec:
        """Check the spec by itself, without asking anyone.

        Returns:
            The same spec with ``max_episodes`` filled in from ``episode_seeds``, and all numbers as
            plain Python ones.

        Raises:
            ConfigurationError: What is wrong, with the value that came.
        """
        integers = {
            "max_episodes": (0, math.inf, "at least 0 or None"),
            "max_steps": (0, math.inf, "at least 0 or None"),
            "max_episode_steps": (1, math.inf, "at least 1 or None"),
            "base_seed": (_INT64_MIN, _INT64_MAX, "an int64 or None"),
        }
        numbers: dict[str, Any] = {}
        for name, (lowest, highest, rule) in integers.items():
            if (value := getattr(self, name)) is not None:
                _require(_is_int(value, lowest, highest), name, rule, value)
                numbers[name] = int(value)
        horizon, options = self.execution_horizon, self.reset_options
        session: Any = self.session_id
        is_horizon = _is_int(horizon, 1, MAX_EXECUTION_HORIZON)
        _require(is_horizon, "execution_horizon", f"1 to {MAX_EXECUTION_HORIZON}", horizon)
        seconds = self.max_episode_seconds
        is_limit = seconds is None or _is_time(seconds, endless=True)
        _require(is_limit, "max_episode_seconds", "above 0 or None", seconds)
        is_known = self.predict_rows in {"auto", "together", "apart"}
        _require(is_known, "predict_rows", "'auto', 'together' or 'apart'", self.predict_rows)
        check_on_failure(self.on_failure)
        is_name = isinstance(session, str) and session != ""
        _require(is_name, "session_id", "a text, not empty", session)
        is_dict = options is None or isinstance(options, Mapping)
        _require(is_dict, "reset_options", "a dict or None", options)
        _require(isinstance(self.limits, RuntimeLimits), "limits", "RuntimeLimits", self.limits)
        self.limits.validate()
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
        """Return the seed of this lane's reset number ``generation``; None when unseeded."""
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
