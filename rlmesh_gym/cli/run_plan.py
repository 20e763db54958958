"""What ``rlmesh-gym run`` was asked for, kept beside its results so that it can be resumed."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.report.files import parse_json, replace_file
from rlmesh_gym.runtime.report.records import remaining_seeds
from rlmesh_gym.runtime.spec import DEFAULT_SESSION_ID, RuntimeSessionSpec, derive_seed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


_PLAN_JSON = "run.json"
_MOST_EPISODES = 1_000_000


class Remaining(NamedTuple):
    """What is left to play: places in the plan, and the seeds there if each episode has one."""

    indices: tuple[int, ...]
    seeds: tuple[int, ...] | None


@dataclass(frozen=True)
class RunPlan:
    """One evaluation; the fields are named as the command line's options are.

    Every episode's seed derives from ``seed`` and from the episode's place in the plan alone, so
    neither the number of lanes nor the shard changes it.
    """

    env: tuple[str, ...]
    model: str
    episodes: int = 100  # In the whole plan, over all shards.
    seed: int | None = None
    horizon: int = 1
    max_episode_steps: int | None = None
    shard: tuple[int, int] = (1, 1)  # (i, n): every n-th episode from the i-th on, i from 1.

    @classmethod
    def from_options(cls, given: Mapping[str, Any], earlier: RunPlan | None) -> RunPlan:
        """Combine what the command line says (None: nothing) with an earlier plan and defaults."""
        known = {} if earlier is None else dataclasses.asdict(earlier)
        said = {name: value for name, value in given.items() if value is not None}
        if earlier is not None:
            for name in ("seed", "shard"):
                if name in said and said[name] != known[name]:
                    raise ConfigurationError(
                        f"--{name} cannot change in a resumed run: it was {known[name]}, "
                        f"now {said[name]}; leave it out, or begin anew with --report"
                    )
        merged = {**known, **said}
        for name in ("env", "model"):
            if not merged.get(name):
                raise ConfigurationError(f"--{name} ADDRESS is missing")
        plan = cls(**{**merged, "env": tuple(merged["env"])})
        if plan.shard[1] > 1 and plan.seed is None:
            raise ConfigurationError(
                "--shard needs --seed, or all shards would play the same unseeded episodes"
            )
        RuntimeSessionSpec(
            max_episodes=plan.episodes,
            max_episode_steps=plan.max_episode_steps,
            base_seed=plan.seed,
            execution_horizon=plan.horizon,
        ).validate()
        if len(plan._part) > _MOST_EPISODES:
            raise ConfigurationError(
                f"{len(plan._part):,} episodes are more than one run keeps, {_MOST_EPISODES:,}; "
                "play parts of them with --shard"
            )
        return plan

    @property
    def _part(self) -> range:
        """Places in the plan of the shard's episodes."""
        return range(self.shard[0] - 1, self.episodes, self.shard[1])

    def remaining(self, rows: Sequence[Mapping[str, Any]], *, per_episode: bool) -> Remaining:
        """What ``rows``, those done, leave to play; with seeds where each episode can have one."""
        part = self._part
        if self.seed is None or not per_episode:
            # By their numbers: lanes finish in any order, so those done may have gaps.
            done = {row.get("index") for row in rows if not row.get("interrupted")}
            return Remaining(tuple(index for index in part if index not in done), None)
        seeds = {derive_seed(self.seed, DEFAULT_SESSION_ID, index, 0): index for index in part}
        left = remaining_seeds(list(seeds), rows)
        return Remaining(tuple(seeds[seed] for seed in left), tuple(left))

    def save(self, directory: Path) -> None:
        """Write the plan into the report directory."""
        path = directory / _PLAN_JSON
        try:
            replace_file(path, json.dumps(dataclasses.asdict(self), indent=1))
        except OSError as error:
            raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, directory: Path) -> RunPlan:
        """Read the plan of a run to resume."""
        path = directory / _PLAN_JSON
        try:
            data = parse_json(path.read_bytes())
            data["env"] = tuple(data["env"])
            data["shard"] = tuple(data["shard"])
            return cls(**data)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{directory} holds no run to resume; begin one with --report {directory}"
            ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"{path} cannot be read as the plan of a run: {error}"
            ) from error
