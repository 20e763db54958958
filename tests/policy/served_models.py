"""Models and lanes for the policy tests: everything tells where it comes from.

An observation is ``[lane, episode, t, chunk]`` and frame ``j`` of the plan made from it is the
action ``[lane, episode, t, j]``, so an action shows by itself which observation it was planned
from. The number of frames that the model gives is the observation's ``chunk``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmesh_gym.lanes import LanePhase, LaneTable
from rlmesh_gym.server import HeldState, ModelHandler, PredictFrames

OBSERVATION_SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)

SPACES: dict[str, Any] = {
    "single_observation_space": OBSERVATION_SPACE,
    "single_action_space": ACTION_SPACE,
}


class TellingModel(ModelHandler):
    """Answers with where each action comes from, and keeps the rows of every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.ended: list[str] = []

    def predict(self, observation: Any) -> Any:
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation: Any) -> PredictFrames:
        rows = observation.observation
        self.calls.append(observation)
        frames = [rows.copy() for _ in range(int(rows[:, 3].min()))]
        for number, frame in enumerate(frames):
            frame[:, 3] = number
        return PredictFrames(frames[0], frames[1:])

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        self.ended += episode_ids


class EpisodeKeepingModel(TellingModel):
    """Keeps state per episode and writes down where episodes begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, int] = {}
        self.events: list[tuple[str, str]] = []
        self.most_held = 0

    def predict_chunked(self, observation: Any) -> PredictFrames:
        for episode_id in observation.episode_ids:
            if episode_id not in self.held:
                self.events.append(("begin", episode_id))
            self.held[episode_id] = self.held.get(episode_id, 0) + 1
        self.most_held = max(self.most_held, len(self.held))
        frames = super().predict_chunked(observation)
        self.calls.clear()
        return frames

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        for episode_id in episode_ids:
            self.events.append(("end", episode_id))
            self.held.pop(episode_id, None)

    def held_state(self) -> HeldState:
        return HeldState(len(self.held), 8 * len(self.held))


class ScriptedLanes:
    """Lanes of random episode lengths in any autoreset mode, with a lane table like a remote env's.

    Under DISABLED an ended lane is reset before :meth:`step` returns, or ``dwell()`` steps later.
    """

    def __init__(
        self,
        lengths: Any,
        mode: AutoresetMode,
        *,
        chunk: int,
        num_envs: int,
        dwell: Any = lambda: 0,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = ACTION_SPACE
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.chunk = chunk
        self.table = LaneTable(num_envs)
        self.episode = np.full(num_envs, -1)
        self.t = np.zeros(num_envs, np.int64)
        self.length = np.ones(num_envs, np.int64)
        self._lengths = lengths
        self._dwell = dwell
        self._dwelling = np.zeros(num_envs, np.int64)

    @property
    def unwrapped(self) -> ScriptedLanes:
        return self

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(self.table.episode_ids)

    @property
    def lane_phases(self) -> tuple[LanePhase, ...]:
        return self.table.phases

    @property
    def lane_seeds(self) -> tuple[int | None, ...]:
        return tuple(self.table.seeds)

    def _begin(self, lanes: Any) -> None:
        for lane in lanes:
            self.episode[lane] += 1
            self.t[lane] = 0
            self.length[lane] = self._lengths()
        self.table.begin([int(lane) for lane in lanes])

    def reset(self) -> Any:
        self._begin(range(self.num_envs))
        return self.observe()

    def observe(self) -> Any:
        return np.stack(
            [np.arange(self.num_envs), self.episode, self.t, np.full(self.num_envs, self.chunk)],
            axis=1,
        ).astype(np.float32)

    def step(self) -> tuple[Any, Any, Any]:
        """Step once; return the observations and both flags."""
        was_ended = self.table.ended.copy()
        if self.mode is AutoresetMode.NEXT_STEP:
            self._begin(np.flatnonzero(was_ended))
        running = ~was_ended
        self.t[running] += 1
        ended = running & (self.t >= self.length)
        self.table.end(np.flatnonzero(ended))
        if self.mode is AutoresetMode.SAME_STEP:
            self._begin(np.flatnonzero(ended))
        if self.mode is AutoresetMode.DISABLED:
            self._dwelling[ended] = [self._dwell() for _ in range(int(ended.sum()))]
            self._begin(np.flatnonzero(self.table.ended & (self._dwelling <= 0)))
            self._dwelling -= 1
        return self.observe(), ended, np.zeros(self.num_envs, np.bool_)


class LocalLanes(ScriptedLanes):
    """The same lanes without what shows that an env is remote."""

    @property
    def unwrapped(self) -> Any:
        return object()


def check_origin(lanes: ScriptedLanes, actions: Any) -> None:
    """Check that every running lane acts on a plan of its own episode, frame by frame."""
    running = ~lanes.table.ended
    assert (actions[running, 0] == np.flatnonzero(running)).all()
    assert (actions[running, 1] == lanes.episode[running]).all()
    assert (actions[running, 2] + actions[running, 3] == lanes.t[running]).all()


class NaiveLane:
    """One lane's chunk in a Python list, around the same function."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.frames: list[Any] = []
        self.plans = 0

    def act(self, observation: Any, *, is_first: bool) -> Any:
        if is_first:
            self.frames = []
        if not self.frames:
            self.plans += 1
            chunk = int(observation[3])
            self.frames = [[*observation[:3], number] for number in range(chunk)][: self.horizon]
        return self.frames.pop(0)
