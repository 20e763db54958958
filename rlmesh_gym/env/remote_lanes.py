"""What both remote environments show of their lanes, and how they are made again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.envs.registration import EnvSpec

    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.env.drive.group import EndpointGroup
    from rlmesh_gym.episodes import EpisodeLog
    from rlmesh_gym.lanes import LanePhase


class RemoteLanes:
    """The lanes of one or several endpoints; each tuple has one entry per lane."""

    _group: EndpointGroup
    _config: Mapping[str, Any]
    """Arguments without the token."""
    _spec: EnvSpec | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Address of each endpoint, in lane order."""
        return tuple(endpoint.address for endpoint in self._group.endpoints)

    @property
    def lane_phases(self) -> tuple[LanePhase, ...]:
        """What each lane is doing."""
        return self._group.table.phases

    @property
    def episode_ids(self) -> tuple[str, ...]:
        """Id of the episode that each lane's last returned observation belongs to."""
        return tuple(self._group.table.episode_ids)

    @property
    def lane_seeds(self) -> tuple[int | None, ...]:
        """Seed that began each lane's episode; None for one that began without."""
        return tuple(self._group.table.seeds)

    @property
    def lane_engine(self) -> EndpointGroup:
        """What drives the lanes, in leaves; a run over this object drives it too."""
        return self._group

    @property
    def episodes(self) -> EpisodeLog:
        """Episodes that are over, oldest first, up to ``episodes_kept``."""
        return self._group.log

    @property
    def contract(self) -> EnvContract:
        """What the first endpoint promises: env id, spaces and metadata, as a policy is told."""
        return self._group.endpoints[0].session.contract

    @property
    def spec(self) -> EnvSpec | None:
        """What Gymnasium made it from; settable. Never holds a token."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        # ``gymnasium.make`` writes every argument into the spec, which is printed, logged and saved
        # as JSON. What is made again from such a spec reads ``RLMESH_GYM_TOKEN``.
        if spec is not None and "token" in spec.kwargs:
            spec = copy.deepcopy(spec)
            del spec.kwargs["token"]
        self._spec = spec

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, without the token; what is unpickled connects anew."""
        return _rebuild, (type(self), self._config, self._spec)


def _rebuild(cls: type[RemoteLanes], config: Mapping[str, Any], spec: EnvSpec | None) -> Any:
    env = cls(**config)
    env.spec = spec
    return env
