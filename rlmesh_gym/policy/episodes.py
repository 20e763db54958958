"""Where one episode ends and the next begins, lane by lane; nobody looks at an observation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.lanes import LanePhase, all_true, mint_episode_id
from rlmesh_gym.policy.caller_warning import warn_caller
from rlmesh_gym.policy.planning.chunks import lane_indices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from rlmesh_gym.policy.planning.chunks import Lanes


_NAMED = 4


def name_few(episode_ids: Sequence[str]) -> str:
    """Name episodes for a message: the first few, and how many more there are."""
    more = len(episode_ids) - _NAMED
    return ", ".join(episode_ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@runtime_checkable
class TrackedEnv(Protocol):
    """What a remote env shows of its lanes; ``RemoteVectorEnv`` and ``RemoteEnv`` do."""

    @property
    def episode_ids(self) -> Sequence[str]:
        """Episode of each lane's last observation; ``""`` before the first reset."""

    @property
    def lane_phases(self) -> Sequence[LanePhase]:
        """Phase of each lane."""

    @property
    def lane_seeds(self) -> Sequence[int | None]:
        """Seed that began each lane's episode, None without one."""


class RowEpisodes(NamedTuple):
    """The episodes of the rows of a request."""

    ids: tuple[str, ...]
    episodes: tuple[tuple[str, int | None], ...]
    """Id and seed of each, as ``predict`` takes them."""


@dataclass(frozen=True)
class Boundaries:
    """What the present observations are, lane by lane.

    An ``active`` lane runs, so its action matters. Where ``begun``, the observation is the first of
    its episode, at most once per episode. The episodes that are ``over`` ended since the last look;
    an id may come again. ``seeds`` are None where they are not known.

    Whoever looks again while no episode has begun or ended may give the same object once more:
    what follows from it is then found once.
    """

    active: NDArray[np.bool_]
    begun: NDArray[np.bool_]
    over: Sequence[str]
    episode_ids: Sequence[str]
    seeds: Sequence[int | None]

    @cached_property
    def running(self) -> NDArray[np.intp]:
        """The active lanes, ascending."""
        return self.active.nonzero()[0]

    @cached_property
    def all_run(self) -> bool:
        """Whether every lane is active."""
        return all_true(self.active)

    def rows(self, lanes: NDArray[np.intp]) -> RowEpisodes:
        """Return the episodes of some lanes."""
        return self._running_rows if lanes is self.running else self._rows(lanes)

    @cached_property
    def _running_rows(self) -> RowEpisodes:
        return self._rows(self.running)

    def _rows(self, lanes: NDArray[np.intp]) -> RowEpisodes:
        chosen = lanes.tolist()
        ids = tuple([self.episode_ids[lane] for lane in chosen])
        return RowEpisodes(ids, tuple(zip(ids, [self.seeds[lane] for lane in chosen], strict=True)))


class Episodes:
    """A source of episode boundaries; one that sees them by itself need not be told of them."""

    def look(self, episode_start: ArrayLike | None) -> Boundaries:
        """Say what the present observations are; called once per set of observations."""
        raise NotImplementedError

    def restart(self, lanes: Lanes) -> None:
        """Take the lanes' next observations for the first of new episodes, if it must be told."""

    def observe_step(self, terminations: ArrayLike, truncations: ArrayLike) -> None:
        """Take in the flags of a step, if it must be told."""


class TrackedEpisodes(Episodes):
    """Boundaries as a remote env's lane table has them. It alone decides."""

    def __init__(self, env: TrackedEnv, num_envs: int) -> None:
        self._env = env
        self._ids: tuple[str, ...] = ("",) * num_envs
        self._phases: tuple[LanePhase, ...] = ()
        self._none = np.zeros(num_envs, np.bool_)
        self._last = Boundaries(self._none, self._none, (), self._ids, (None,) * num_envs)

    def look(self, episode_start: ArrayLike | None) -> Boundaries:
        """Compare the table with the last look; ``episode_start`` says nothing that it lacks."""
        del episode_start
        ids = tuple(self._env.episode_ids)
        phases = tuple(self._env.lane_phases)
        seeds = tuple(self._env.lane_seeds)
        last = self._last
        if ids != self._ids or phases != self._phases:
            active = np.array([phase is LanePhase.RUNNING for phase in phases], np.bool_)
            changed = np.array([new != old for new, old in zip(ids, self._ids, strict=True)])
            over = [self._ids[lane] for lane in np.flatnonzero(changed | ~active)]
            self._ids, self._phases = ids, phases
            self._last = Boundaries(active, changed & active, over, ids, seeds)
        elif last.begun is not self._none or last.over or seeds != last.seeds:
            self._last = Boundaries(last.active, self._none, (), ids, seeds)
        return self._last


class LocalEpisodes(Episodes):
    """Boundaries as the user tells them, with ids minted here.

    A lane begins an episode with the first observation ever, where ``episode_start`` says so, after
    :meth:`restart`, and, when :meth:`observe_step` is used, by the env's autoreset mode: under
    SAME_STEP with the observations of the step that ended the last episode, under NEXT_STEP with
    those of the step after it. The step between, and the time until a reset under DISABLED, are
    idle. With ``warns``, whoever goes on without telling where episodes begin is warned once.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode, *, warns: bool = True) -> None:
        self.autoreset_mode = autoreset_mode
        self._num_envs = num_envs
        self._ids = [""] * num_envs
        self._seeds: tuple[None, ...] = (None,) * num_envs
        self._is_fresh = np.ones(num_envs, np.bool_)
        self._is_idle = np.zeros(num_envs, np.bool_)
        self._was_told = not warns
        self._looks = 0

    def look(self, episode_start: ArrayLike | None) -> Boundaries:
        """Begin episodes where they are due, as where the mask ``episode_start`` says so."""
        if episode_start is not None:
            self._is_fresh |= self._mask(episode_start, "episode_start")
            self._was_told = True
        self._looks += 1
        if self._looks > 1 and not self._was_told:
            self._was_told = True
            warn_caller(
                "the policy cannot see where the episodes of a local env end: pass episode_start "
                "to predict, or call observe_step(terminations, truncations) after each step, or "
                "reset() when one begins"
            )
        begun = self._is_fresh.copy()
        over = [self._ids[lane] for lane in np.flatnonzero(begun | self._is_idle)]
        for lane in np.flatnonzero(begun):
            self._ids[lane] = mint_episode_id()
        self._is_fresh[:] = False
        self._is_idle &= ~begun
        return Boundaries(~self._is_idle, begun, over, tuple(self._ids), self._seeds)

    def restart(self, lanes: Lanes) -> None:
        """Take the lanes' next observations for the first of new episodes."""
        self._is_fresh[lane_indices(lanes, self._num_envs)] = True
        # One lane is reset by hand; several go on by themselves after a first reset.
        self._was_told = self._was_told or self._looks > 0 or self._num_envs == 1

    def observe_step(self, terminations: ArrayLike, truncations: ArrayLike) -> None:
        """Take in the flags of a step, in the env's autoreset mode."""
        ended = self._mask(terminations, "terminations") | self._mask(truncations, "truncations")
        self._was_told = True
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._is_fresh |= ended
            return
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._is_fresh |= self._is_idle
            self._is_idle[:] = False
        self._is_idle |= ended & ~self._is_fresh

    def _mask(self, flags: ArrayLike, name: str) -> NDArray[np.bool_]:
        mask: NDArray[Any] = np.asarray(flags)
        if mask.shape == () and self._num_envs == 1:
            mask = mask.reshape(1)
        if mask.shape != (self._num_envs,):
            raise ConfigurationError(
                f"{name} must have shape ({self._num_envs},), got {mask.shape}"
            )
        if mask.dtype.kind not in "biuf":
            raise ConfigurationError(f"{name} must be a mask of bools, got dtype {mask.dtype}")
        return mask.astype(np.bool_)
