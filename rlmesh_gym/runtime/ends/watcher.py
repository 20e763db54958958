"""What a run hears of its policy at work: events, transforms, timings, frames really executed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlmesh_gym.rpc import InProcessPending
from rlmesh_gym.runtime.ends.rows import Rows
from rlmesh_gym.runtime.hooks import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.policy.planning.plan import Plan
    from rlmesh_gym.rpc import AnyPending
    from rlmesh_gym.runtime.context import RunContext


class RunWatcher:
    """A :class:`~rlmesh_gym.policy.watching.PlanWatcher` of one run.

    Steps of events are the run's own count, which a policy that goes on over several runs does not
    share.
    """

    def __init__(self, context: RunContext, codecs: tuple[SpaceCodec, SpaceCodec]) -> None:
        self.tick: int = 0
        self.calls: int = 0  # Predictions answered,
        self.rows: int = 0  # rows in them,
        self.most_frames: int = 0  # and most frames of one that are executed.
        self._context = context
        listens = context.hooks.listens
        self._transforms: bool = listens("transform_observation")
        self._tells_sent: bool = listens("observation_emitted")
        self._tells_planned: bool = listens("action_received")
        self._observation_codec, self._action_codec = codecs
        self._offset: int | None = None
        # Lanes whose observation of one step is transformed already, and the result.
        self._at = -1
        self._done: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._transformed: Leaves = []

    def begin(self, tick: int) -> None:
        """Note that the run's next step begins."""
        self.tick = tick

    def _run_step(self, step: int) -> int:
        if self._offset is None:
            self._offset = self.tick - step  # The first step that a policy tells of is this one.
        return step + self._offset

    def transform(
        self, step: int, lanes: NDArray[np.intp], episode_ids: Sequence[str], observations: Leaves
    ) -> Leaves:
        """Let ``transform_observation`` change the lanes' observations, each once per step."""
        at = self._run_step(step)
        if not self._transforms:
            return observations
        context = self._context
        if self._at != at:
            self._at = at
            self._done = np.zeros(len(observations[0]) if observations else 0, np.bool_)
            self._transformed = [leaf.copy() for leaf in observations]
        chosen = [row for row, lane in enumerate(lanes) if not self._done[lane]]
        if not chosen:
            return self._transformed
        new = lanes[chosen]
        rows = [leaf[new] for leaf in observations]
        event = events.ObservationTransform(
            *context.identity,
            at,
            tuple(new.tolist()),
            tuple(episode_ids[row] for row in chosen),
            observations=self._observation_codec.unflatten(rows, len(new)),
        )
        batch = context.hooks.transform(
            "transform_observation", event, None, lambda last, now: replace(last, observations=now)
        )
        if batch is not None:
            changed = self._observation_codec.flatten(batch, len(new))
            for leaf, part in zip(self._transformed, changed, strict=True):
                leaf[new] = part
        self._done[new] = True
        return self._transformed

    def sending(
        self,
        step: int,
        lanes: NDArray[np.intp],
        episode_ids: Sequence[str],
        rows: Leaves,
        *,
        is_history: bool,
    ) -> None:
        """Emit ``observation_emitted``."""
        if self._tells_sent:
            self._context.emit(
                events.ObservationEmitted,
                step=self._run_step(step),
                lanes=tuple(lanes.tolist()),
                episode_ids=tuple(episode_ids),
                is_history=is_history,
                rows=Rows(self._observation_codec, rows, len(lanes)),
            )

    def answered(self, pending: AnyPending) -> None:
        """Count and time an answer."""
        self._context.clock.note(pending)
        if isinstance(pending, InProcessPending):
            held = pending.held
            if held is not None:
                self._context.note_held(held.episodes, held.bytes)
            return
        answer = pending.response
        if answer.HasField("held_episodes"):
            told = answer.HasField("held_state_bytes")
            self._context.note_held(answer.held_episodes, answer.held_state_bytes if told else None)

    def planned(self, plan: Plan, chunk: Leaves) -> None:
        """Emit ``action_received``."""
        num_frames = plan.num_frames
        self.calls += plan.num_requests
        self.rows += len(plan.lanes)
        self.most_frames = max(self.most_frames, num_frames)
        if self._tells_planned:
            self._context.emit(
                events.ActionReceived,
                step=self._run_step(plan.step),
                lanes=tuple(plan.lanes.tolist()),
                episode_ids=plan.episode_ids,
                num_frames=num_frames,
                frames=tuple(
                    Rows(self._action_codec, [leaf[:, frame] for leaf in chunk], len(plan.lanes))
                    for frame in range(num_frames)
                ),
            )
