"""What a policy asks of its connection to a model, wherever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc import AnyPending, HistoryRows, Timeouts


class AnyModelSession(Protocol):
    """What is asked of a session with a model, remote or in process; see ``rpc.ModelSession``."""

    endpoint: str
    session_id: str
    timeouts: Timeouts

    @property
    def is_streaming(self) -> bool:
        """Whether a request reaches the same server as the last one."""

    @property
    def takes_history(self) -> bool:
        """Whether the endpoint takes the observations of replayed steps."""

    @property
    def batches_lanes(self) -> bool:
        """Whether several rows in one request are answered as each of them alone would be."""

    def pack(self, codec: SpaceCodec, leaves: Leaves, num_rows: int) -> Any:
        """Return a batch as ``predict`` takes it."""

    def resolve_adapter(
        self, env_id: str, env_spec: Any, *, execution_horizon: int, delivers_history: bool
    ) -> AnyPending:
        """Ask the model to set itself up."""

    def predict(
        self,
        env_id: str,
        observation: Any,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[HistoryRows] = (),
        step: int | None = None,
    ) -> AnyPending:
        """Ask for actions."""

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> AnyPending:
        """Tell the model that episodes are over."""

    def release_adapter(self, env_id: str, reason: str = "") -> AnyPending:
        """Tell the model that the environment is gone."""

    def interrupt(self, error: Error) -> None:
        """Fail what is in flight, and what is asked later."""

    def resume(self) -> None:
        """Take requests again."""

    def hang_up(self) -> None:
        """Drop the connection's stream."""

    def close(self, reason: str = "", *, env_id: str = "", episode_ids: Sequence[str] = ()) -> None:
        """End the session."""
