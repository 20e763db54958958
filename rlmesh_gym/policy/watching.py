"""How a run watches a policy at work, and puts its transforms in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.policy.planning.plan import Plan
    from rlmesh_gym.rpc import AnyPending


class PlanWatcher(Protocol):
    """Is told what goes to the model and what comes back."""

    def transform(
        self, step: int, lanes: NDArray[np.intp], episode_ids: Sequence[str], observations: Leaves
    ) -> Leaves:
        """Return the observations of all lanes with those of ``lanes`` as the model gets them.

        May be asked several times about one lane and step, and changes it once.
        """

    def sending(
        self,
        step: int,
        lanes: NDArray[np.intp],
        episode_ids: Sequence[str],
        rows: Leaves,
        *,
        is_history: bool,
    ) -> None:
        """Hear of observations that are about to go to the model, one row per lane."""

    def answered(self, pending: AnyPending) -> None:
        """Hear of an answer that came."""

    def planned(self, plan: Plan, chunk: Leaves) -> None:
        """Hear of chunks: leaves ``(k, plan.num_frames, *shape)``."""
