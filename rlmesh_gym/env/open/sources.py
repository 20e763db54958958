"""Where endpoints come from, and what the lane engine asks of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rlmesh_gym.rpc import EnvSession, Timeouts, TLSConfig, resolve_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym.codec import EnvContract, Leaves, SpaceCodec
    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc import AnyPending, TimeoutsLike, TLSLike


class AnyEnvSession(Protocol):
    """What the lane engine asks of a session, remote or in process; see ``rpc.EnvSession``."""

    endpoint: str
    contract: EnvContract
    timeouts: Timeouts

    @property
    def capabilities(self) -> Mapping[str, str]:
        """What the endpoint announced."""

    @property
    def has_arrays(self) -> bool:
        """Whether arrays in infos keep dtype and shape."""

    @property
    def has_lane_operations(self) -> bool:
        """Whether steps and resets may name lanes."""

    @property
    def has_partial_reset(self) -> bool:
        """Whether resets may name lanes."""

    def pack(self, codec: SpaceCodec, leaves: Leaves, num_rows: int) -> Any:
        """Return actions as ``step`` takes them."""

    def reset(
        self,
        *,
        seeds: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        env_indices: Sequence[int] = (),
        episode_ids: Sequence[str] = (),
    ) -> AnyPending:
        """Ask for a reset."""

    def step(
        self, action: Any, *, env_indices: Sequence[int] = (), episode_ids: Sequence[str] = ()
    ) -> AnyPending:
        """Ask for a step."""

    def render(self, env_indices: Sequence[int] = ()) -> AnyPending:
        """Ask for a frame."""

    def interrupt(self, error: Error) -> None:
        """Fail what is in flight, and what is asked later."""

    def resume(self) -> None:
        """Take requests again."""

    def close(self, reason: str = "") -> None:
        """End the session."""


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect: the token and TLS settings, None for none, and the timeouts."""

    token: str | None = field(default=None, repr=False)
    tls: TLSConfig | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @classmethod
    def from_values(
        cls, token: str | None, tls: TLSLike, timeouts: TimeoutsLike
    ) -> ConnectionOptions:
        """Read what the user typed."""
        return cls(resolve_token(token), TLSConfig.from_value(tls), Timeouts.from_value(timeouts))

    def connect(self, address: str, link: str | None = None) -> EnvSession:
        """Open a session; see ``EnvSession.open``."""
        return EnvSession.open(
            address,
            # An empty token keeps the session from looking for one again.
            token=self.token or "",
            tls=self.tls,
            timeouts=self.timeouts,
            raw_observations=True,
            link=link,
        )


class Source:
    """Something that can be connected to, again and again; ``label`` names it in messages."""

    label: str

    def prepare(self) -> None:
        """Begin what takes time and return at once."""

    def open(self) -> AnyEnvSession:
        """Connect and shake hands."""
        raise NotImplementedError

    def is_hung(self) -> bool:
        """Whether the endpoint answers nobody any more, and would be made anew by ``open``."""
        return False

    def close(self, timeout: float | None) -> None:
        """Give back what is needed beside the session, within ``timeout`` seconds."""


class AddressSource(Source):
    """An endpoint that somebody else runs."""

    def __init__(self, address: str, options: ConnectionOptions) -> None:
        self.label = address
        self._options = options

    def open(self) -> EnvSession:
        """Connect and shake hands."""
        return self._options.connect(self.label)


class GivenSession(Source):
    """A session that somebody else has opened, and closes."""

    def __init__(self, session: AnyEnvSession) -> None:
        self.label: str = session.endpoint
        self._session = session

    def open(self) -> AnyEnvSession:
        """Return the session."""
        return self._session
