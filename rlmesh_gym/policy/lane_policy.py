"""A model driven for N lanes on leaves: what a RemotePolicy and a run are built around."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlmesh_gym.codec import filler_action
from rlmesh_gym.errors import Error
from rlmesh_gym.policy.adapter import ModelAdapter
from rlmesh_gym.policy.caller_warning import warn_caller
from rlmesh_gym.policy.planning.ensemble import make_replay
from rlmesh_gym.policy.planning.lane_planner import LanePlanner
from rlmesh_gym.policy.stats import PolicyStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.codec import EnvSpec, Leaves, SpaceCodec
    from rlmesh_gym.policy.adapter import RowGrouping
    from rlmesh_gym.policy.any_session import AnyModelSession
    from rlmesh_gym.policy.episodes import Boundaries
    from rlmesh_gym.policy.planning.ensemble import EnsembleRule
    from rlmesh_gym.policy.planning.schedule import PlanSchedule


class LanePolicy:
    """One model session, its adapter, and every lane's chunk.

    ``codecs`` are those of one observation and of one action; a ``grouping`` of None finds out.
    ``filler`` has one row, the action of lanes that are not running.
    """

    def __init__(
        self,
        session: AnyModelSession,
        *,
        env_id: str,
        env_spec: EnvSpec,
        codecs: tuple[SpaceCodec, SpaceCodec],
        num_envs: int,
        schedule: PlanSchedule,
        ensemble: EnsembleRule = "newest",
        grouping: RowGrouping | None = None,
        warn: Callable[[str], None] = warn_caller,
    ) -> None:
        observation_codec, action_codec = codecs
        self.stats: PolicyStats = PolicyStats()
        self.filler: Leaves = filler_action(action_codec)
        replay = make_replay(num_envs, schedule.horizon, self.filler, ensemble)
        self.adapter: ModelAdapter = ModelAdapter(
            session,
            env_id=env_id,
            env_spec=env_spec,
            observation_codec=observation_codec,
            action_codec=action_codec,
            num_envs=num_envs,
            horizon=schedule.horizon,
            stats=self.stats,
            grouping=grouping,
            warn=warn,
        )
        self.planner: LanePlanner = LanePlanner(
            self.adapter, replay, schedule, self.filler, self.stats
        )
        self._is_torn = False  # A call was broken off halfway, as by Ctrl-C.

    def act(self, observations: Leaves, look: Callable[[], Boundaries]) -> Leaves:
        """Give every lane its action, in fresh leaves; ``observations`` are only read.

        ``look`` says where the lanes' episodes begin and end, and is called once. After an error,
        as when a plan could not be had, the same call may be repeated.
        """
        was_torn, self._is_torn = self._is_torn, True
        try:
            bounds = look()
            if was_torn:
                self.planner.start_over(bounds)
                was_torn = False
            actions = self.planner.step(observations, bounds)
        except Error:  # Nothing was taken; the same call can be repeated.
            self._is_torn = was_torn
            raise
        self._is_torn = False
        return actions
