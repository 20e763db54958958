"""Drives a remote vector and a ``SyncVectorEnv`` side by side and compares all that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from tests.lengths import shortened

EnvMaker = Callable[[], gym.Env[Any, Any]]


def equal(left: Any, right: Any) -> bool:
    """Deep equality with types, dtypes, shapes and key sets; NaN equals NaN."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal(left[key], right[key]) for key in left)
        )
    if isinstance(left, (tuple, list)):
        return (
            type(left) is type(right)
            and len(left) == len(right)
            and all(equal(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(left, np.ndarray):
        if not isinstance(right, np.ndarray) or left.dtype != right.dtype:
            return False
        if left.shape != right.shape:
            return False
        if left.dtype == object:
            return all(equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))
    if isinstance(left, np.generic) or isinstance(right, np.generic):
        # A Discrete observation inside final_obs may be a Python or a numpy integer.
        return bool(left == right)
    return type(left) is type(right) and bool(left == right)


def assert_equal(got: Any, expected: Any, where: str) -> None:
    names: tuple[str, ...] = ("observations", "rewards", "terminations", "truncations", "infos")
    if len(got) == 2:
        names = ("observations", "infos")
    for name, left, right in zip(names, got, expected, strict=True):
        assert equal(left, right), f"{where}: {name}: got {left}, expected {right}"


def assert_fresh(result: Any, earlier: list[Any]) -> None:
    """Check that every array is writable, contiguous and aliases no other, old ones included."""
    arrays: list[np.ndarray] = []
    _collect(result, arrays)
    arrays = [array for array in arrays if array.dtype != object]
    for array in arrays:
        assert array.flags.writeable
        assert array.flags.c_contiguous
    spans = sorted(
        (array.__array_interface__["data"][0], array.nbytes)
        for array in {id(array): array for array in [*arrays, *earlier]}.values()
        if array.nbytes
    )
    for (start, size), (following, _) in pairwise(spans):
        assert start + size <= following, "two arrays share memory"
    earlier[:] = arrays


def _collect(value: Any, arrays: list[np.ndarray]) -> None:
    if isinstance(value, np.ndarray):
        arrays.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, arrays)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, arrays)


def lane_info(infos: dict[str, Any], lane: int) -> dict[str, Any]:
    """Return one lane's own info out of Gymnasium's vector form, by its masks."""
    info: dict[str, Any] = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if isinstance(mask, np.ndarray) and mask[lane]:
            own = lane_info(value, lane) if isinstance(value, dict) else value[lane]
            info[key] = own.item() if isinstance(own, np.bool_) else own
    return info


class Ledger:
    """Episodes kept by hand from what ``SyncVectorEnv`` returns."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.mode = mode
        self.running = [False] * num_envs
        self.lengths = [0] * num_envs
        self.returns = [0.0] * num_envs
        self.seeds: list[int | None] = [None] * num_envs
        self.over: list[tuple[Any, ...]] = []
        self.final_infos: list[tuple[int, dict[str, Any]]] = []

    def begin(self, lane: int, seed: int | None = None) -> None:
        if self.running[lane] and self.lengths[lane]:
            self._close(lane, False, False, True)
        self.running[lane] = True
        self.lengths[lane] = 0
        self.returns[lane] = 0.0
        self.seeds[lane] = seed

    def step(self, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> None:
        final = infos.get("final_info", {}) if self.mode is AutoresetMode.SAME_STEP else infos
        for lane in range(len(self.running)):
            if not self.running[lane]:
                self.begin(lane)
                continue
            self.lengths[lane] += 1
            self.returns[lane] += float(rewards[lane])
            if terminations[lane] or truncations[lane]:
                self._close(lane, bool(terminations[lane]), bool(truncations[lane]), False)
                self.final_infos.append((lane, lane_info(final, lane)))
                if self.mode is AutoresetMode.SAME_STEP:
                    self.begin(lane)

    def _close(self, lane: int, terminated: bool, truncated: bool, interrupted: bool) -> None:
        self.over.append(
            (
                lane,
                self.seeds[lane],
                self.lengths[lane],
                self.returns[lane],
                terminated,
                truncated,
                interrupted,
            )
        )
        self.running[lane] = False

    def check(self, log: Any, *, final_infos: bool = True) -> None:
        got = [
            (
                record.lane,
                record.seed,
                record.length,
                record.episode_return,
                record.terminated,
                record.truncated,
                record.interrupted,
            )
            for record in log
        ]
        assert sorted(got, key=repr) == sorted(self.over, key=repr)
        assert len({record.episode_id for record in log}) == len(got)
        if not final_infos:
            return
        completed = [record for record in log if not record.interrupted]
        completed.sort(key=lambda record: record.lane)
        self.final_infos.sort(key=lambda entry: entry[0])
        for record, (lane, info) in zip(completed, self.final_infos, strict=True):
            where = f"lane {lane}: got {record.final_info}, expected {info}"
            assert equal(record.final_info, info), where
            assert record.success is info.get("is_success"), where


def compare(
    envs: Any,
    makers: Sequence[EnvMaker],
    mode: AutoresetMode,
    *,
    steps: int = 100,
    seed: int | None = 7,
    can_reset_lanes: bool = True,
    reset_rate: float = 0.1,
    plain_resets: bool = False,
    bare_options: bool = True,
    final_infos: bool = True,
) -> None:
    """Drive both with the same random actions and resets; everything must be equal.

    ``steps`` counts in full for ``scripts/test-thorough`` only.

    ``plain_resets`` leaves seeds and options out, for endpoints that have reset a lane already when
    the user does: there a seed makes them reset it once more, which such an env can notice.
    ``bare_options=False`` leaves out options without seeds only, for envs that a seed makes forget
    everything. ``final_infos=False`` leaves those of the records unchecked, for envs whose first
    info collides with the last one in what ``SyncVectorEnv`` shows.
    """
    reference = SyncVectorEnv(list(makers), autoreset_mode=mode)
    num_envs = len(makers)
    generator = np.random.default_rng(0)
    reference.action_space.seed(3)
    ledger = Ledger(num_envs, mode)
    earlier: list[Any] = []

    def reset(**arguments: Any) -> None:
        options = arguments.get("options")
        mine = dict(options) if options is not None else None
        got = envs.reset(seed=arguments.get("seed"), options=mine)
        if options is not None:
            assert mine is not None
            assert mine.keys() == options.keys()
        expected = reference.reset(**arguments)
        assert_equal(got, expected, f"reset {arguments}")
        assert_fresh(got, earlier)

    reset(seed=seed)
    for lane in range(num_envs):
        ledger.begin(lane, None if seed is None else seed + lane)
    ended = np.zeros(num_envs, dtype=np.bool_)
    for step in range(shortened(steps)):
        must = mode is AutoresetMode.DISABLED and ended.any()
        if must or generator.random() < reset_rate:
            mask = ended.copy() if must else generator.random(num_envs) < 0.5
            if not mask.any():
                mask[0] = True
            if not can_reset_lanes:
                mask[:] = True
            seeds: Any = None
            if generator.random() < 0.5 and not plain_resets:
                seeds = [int(value) for value in generator.integers(0, 1000, num_envs)]
                if can_reset_lanes and bare_options:
                    seeds[int(generator.integers(num_envs))] = None
            options: dict[str, Any] = {"reset_mask": mask.copy()}
            leveled = generator.random() < 0.3 and not plain_resets
            if leveled and (bare_options or seeds is not None):
                options["level"] = np.float64(2.5)
            reset(seed=seeds, options=None if mask.all() and not leveled else options)
            ended &= ~mask
            for lane in np.flatnonzero(mask).tolist():
                ledger.begin(lane, None if seeds is None else seeds[lane])
            assert envs.episode_ids is not None
        actions = reference.action_space.sample()
        got = envs.step(actions)
        expected = reference.step(actions)
        assert_equal(got, expected, f"step {step}")
        assert_fresh(got, earlier)
        assert got[1].dtype == np.float64
        ended = expected[2] | expected[3]
        ledger.step(*expected[1:])
        phases = [phase.name == "RUNNING" for phase in envs.lane_phases]
        assert phases == ledger.running
        assert list(envs.lane_seeds) == ledger.seeds or not all(ledger.running)
    ledger.check(envs.episodes, final_infos=final_infos)
    reference.close()


def rows(space: gym.Space[Any], batch: Any) -> list[Any]:
    return list(iterate(space, batch))
