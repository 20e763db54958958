"""An environment of this process as an endpoint without a wire."""

from __future__ import annotations

import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import LeavesValue, as_frame
from rlmesh_gym.errors import EnvError
from rlmesh_gym.rpc import InProcessSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlmesh_gym.codec import EnvContract
    from rlmesh_gym.rpc import InProcessPending
    from rlmesh_gym.server.env.served_env import Outcome, ServedEnv


class InProcessEnvSession(InProcessSession):
    """A session with an environment of this process; what :class:`~rlmesh_gym.rpc.EnvSession` is.

    ``served`` stays open when the session is closed. ``remote_endpoints`` are those of a remote
    vector env under wrappers, and ``lane_addresses`` of its lanes.
    """

    has_arrays = True

    def __init__(self, served: ServedEnv) -> None:
        super().__init__()
        self.served = served
        self.contract: EnvContract = served.contract
        self.takes_lane_seeds: bool = served.takes_lane_seeds
        engine = getattr(served.base, "lane_engine", None)
        self.remote_endpoints: Sequence[Any] = () if engine is None else engine.endpoints
        self.lane_addresses: list[Any] = [
            endpoint.address for endpoint in self.remote_endpoints for _ in endpoint.lanes
        ] or [self.endpoint] * served.num_envs
        self.has_lane_operations: bool = served.has_lane_operations
        self.has_partial_reset: bool = served.has_partial_reset

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.contract.env_id}>"

    def reset(
        self,
        *,
        seeds: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> InProcessPending[Any]:
        """Reset all lanes, or those in ``env_indices``; see ``EnvSession.reset``."""
        del episode_ids
        lanes = list(env_indices) or None
        given = None if options is None else dict(options)
        return self._call(
            "reset",
            lambda: self._answer(self.served.reset(lanes, list(seeds), given)),
            env_indices,
        )

    def step(
        self,
        action: LeavesValue,
        *,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> InProcessPending[Any]:
        """Step all lanes, or those in ``env_indices``; see ``EnvSession.step``."""
        del episode_ids
        lanes = list(env_indices) or None
        return self._call(
            "step", lambda: self._answer(self.served.step(lanes, action.leaves)), env_indices
        )

    def render(self, env_indices: Sequence[int] = ()) -> InProcessPending[Any]:
        """Return the frame of one lane, not encoded; see ``EnvSession.render``."""
        lane = env_indices[0] if env_indices else 0
        return self._call("render", lambda: as_frame(self.served.render(lane)), env_indices)

    def _call(
        self, operation: str, work: Callable[[], Any], lanes: Sequence[int]
    ) -> InProcessPending[Any]:
        def explain(error: Exception) -> EnvError:
            return EnvError(
                f"{operation} failed: {type(error).__name__}: {error}",
                endpoint=self.endpoint,
                operation=operation,
                code="INTERNAL",
                is_recoverable=False,
                debug_info="".join(traceback.format_exception(error)),
                lanes=tuple(lanes),
            )

        return self._do(operation, work, explain, lanes)

    def _answer(self, outcome: Outcome) -> SimpleNamespace:
        """Return the outcome with the fields of a reset's or step's answer."""
        leaves = outcome.observation
        if not self.served.gives_fresh_arrays:
            # Whoever does not promise copies may write its next observation over this one.
            leaves = [leaf.copy() for leaf in leaves]
        return SimpleNamespace(
            observation=LeavesValue(leaves),
            rewards=outcome.rewards,
            terminated_mask=outcome.terminated,
            truncated_mask=outcome.truncated,
            env_indices=(),
            infos=outcome.infos,
        )
