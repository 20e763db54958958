"""Where endpoints come from: addresses, an embedded server, or ``RLMESH_GYM_ADDRESS``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.open.embedded import EmbeddedServer
from rlmesh_gym.errors import ConfigurationError, UnavailableError
from rlmesh_gym.rpc import EnvSession, Timeouts, TLSConfig, parse_address, resolve_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym.codec import EnvContract, Leaves, SpaceCodec
    from rlmesh_gym.errors import Error
    from rlmesh_gym.rpc import AnyPending, TimeoutsLike, TLSLike

__all__ = [
    "ADDRESS_VARIABLE",
    "AddressSource",
    "AnyEnvSession",
    "ConnectionOptions",
    "EmbeddedSource",
    "EmbeddedSpec",
    "GivenSession",
    "Source",
    "find_sources",
]

ADDRESS_VARIABLE = "RLMESH_GYM_ADDRESS"


class AnyEnvSession(Protocol):
    """What the lane engine asks of a session, remote or in process; see ``rpc.EnvSession``.

    Attributes:
        endpoint: Its address.
        contract: Spaces, lanes, autoreset mode.
        timeouts: For the engine to wait by.
    """

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


class Source(Protocol):
    """Something that can be connected to, again and again."""

    @property
    def label(self) -> str:
        """Name for messages."""
        ...

    def prepare(self) -> None:
        """Begin what takes time and return at once."""
        ...

    def open(self) -> AnyEnvSession:
        """Connect and shake hands."""
        ...

    def close(self, timeout: float | None) -> None:
        """Give back what is needed beside the session, within ``timeout`` seconds."""
        ...


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect.

    Attributes:
        token: Resolved; None for none.
        tls: TLS settings; None for none.
        timeouts: Of every kind of call.
    """

    token: str | None = field(default=None, repr=False)
    tls: TLSConfig | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @classmethod
    def from_values(
        cls, token: str | None, tls: TLSLike, timeouts: TimeoutsLike
    ) -> ConnectionOptions:
        """Read what the user typed.

        Raises:
            ConfigurationError: One of the values is wrong.
        """
        return cls(resolve_token(token), TLSConfig.from_value(tls), Timeouts.from_value(timeouts))


@dataclass(frozen=True)
class AddressSource:
    """An endpoint that somebody else runs."""

    address: str
    options: ConnectionOptions

    @property
    def label(self) -> str:
        """The address."""
        return self.address

    def prepare(self) -> None:
        """Nothing to prepare."""

    def open(self) -> EnvSession:
        """Connect; see ``EnvSession.open``."""
        options = self.options
        return EnvSession.open(
            self.address,
            # An empty token keeps the session from looking for one again.
            token=options.token or "",
            tls=options.tls,
            timeouts=options.timeouts,
            raw_observations=True,
        )

    def close(self, timeout: float | None) -> None:
        """Nothing to give back."""


@dataclass(frozen=True)
class GivenSession:
    """A session that somebody else has opened, and closes."""

    session: AnyEnvSession

    @property
    def label(self) -> str:
        """The session's address."""
        return self.session.endpoint

    def prepare(self) -> None:
        """Nothing to prepare."""

    def open(self) -> AnyEnvSession:
        """Return the session."""
        return self.session

    def close(self, timeout: float | None) -> None:
        """Nothing to give back."""


class EmbeddedSource:
    """A server of our own in a child process.

    Args:
        config: See ``EmbeddedServer``.
        options: How to connect; TLS is not used.
    """

    def __init__(self, config: Mapping[str, Any], options: ConnectionOptions) -> None:
        self.server: EmbeddedServer = EmbeddedServer(config)
        self._options = options
        self._has_served = False

    @property
    def label(self) -> str:
        """Name for messages."""
        return self.server.label

    def prepare(self) -> None:
        """Start the child."""
        self.server.launch()

    def open(self) -> EnvSession:
        """Connect to the child; a dead one is started anew."""
        try:
            return self._connect()
        except UnavailableError:
            # A killed process may answer no more and still count as alive for a moment.
            if not self._has_served or not self.server.has_ended():
                raise
        return self._connect()

    def _connect(self) -> EnvSession:
        options = self._options
        session = EnvSession.open(
            self.server.address(),
            token=options.token or "",
            timeouts=options.timeouts,
            raw_observations=True,
            link=self.server.link,
        )
        self._has_served = True
        return session

    def close(self, timeout: float | None) -> None:
        """End the child."""
        self.server.stop(timeout)


@dataclass(frozen=True)
class EmbeddedSpec:
    """What an embedded endpoint is to serve.

    Attributes:
        env_id: Gymnasium id, ``module:Name-v0`` included.
        num_envs: Lanes in total.
        workers: Processes to spread them over.
        autoreset_mode: Mode to serve in; None for bare lanes, reset and stepped one by one.
        render_mode: Passed to ``gym.make``.
        env_kwargs: Passed to ``gym.make``.
    """

    env_id: str
    num_envs: int = 1
    workers: int = 1
    autoreset_mode: AutoresetMode | None = AutoresetMode.NEXT_STEP
    render_mode: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def configs(self) -> list[dict[str, Any]]:
        """Return one configuration per worker; their lanes add up to ``num_envs``.

        Raises:
            ConfigurationError: More workers than lanes, or not a positive number of either.
        """
        try:
            num_envs, workers = index(self.num_envs), index(self.workers)
        except TypeError:
            raise ConfigurationError(
                "num_envs and workers must be whole numbers, got "
                f"{self.num_envs!r} and {self.workers!r}"
            ) from None
        if num_envs < 1:
            raise ConfigurationError(f"num_envs must be 1 or more, got {num_envs}")
        if not 1 <= workers <= num_envs:
            raise ConfigurationError(
                f"workers must be between 1 and num_envs={num_envs}, got {workers}"
            )
        share, extra = divmod(num_envs, workers)
        mode = self.autoreset_mode
        return [
            {
                "env_id": self.env_id,
                "num_envs": share + (worker < extra),
                "autoreset_mode": None if mode is None else mode.value,
                "render_mode": self.render_mode,
                "env_kwargs": dict(self.env_kwargs),
            }
            for worker in range(workers)
        ]


def find_sources(
    *,
    address: str | None,
    addresses: Sequence[str] | None,
    embedded: EmbeddedSpec | None,
    env_kwargs: Mapping[str, Any],
    options: ConnectionOptions,
) -> list[Source]:
    """Return the endpoints meant, in the order: addresses, ``env_id``, the variable.

    Args:
        address: One address.
        addresses: Several.
        embedded: From ``env_id``.
        env_kwargs: Arguments for the environment; only an embedded one can take them.
        options: How to connect.

    Raises:
        ConfigurationError: None is given, two are that exclude each other, or an address is wrong.
    """
    if address is not None and addresses is not None:
        raise ConfigurationError("give either address or addresses, not both")
    found: Sequence[str] | None = None
    if address is not None:
        found = [address]
    elif addresses is not None:
        if isinstance(addresses, str) or not isinstance(addresses, Iterable):
            raise ConfigurationError(
                f"addresses must be a sequence of addresses, got {addresses!r}; one address goes "
                "to address"
            )
        found = list(addresses)
        if not found:
            raise ConfigurationError("addresses is empty")
    elif embedded is None:
        text = os.environ.get(ADDRESS_VARIABLE, "")
        found = [part.strip() for part in text.split(",") if part.strip()]
        if not found:
            unknown = f" (unknown: {', '.join(sorted(env_kwargs))})" if env_kwargs else ""
            raise ConfigurationError(
                "no endpoint: give address= or addresses=, or env_id= for an embedded one, or set "
                f"the environment variable {ADDRESS_VARIABLE}{unknown}"
            )
    if found is None:
        if embedded is None:
            raise ConfigurationError("no endpoint")
        return [EmbeddedSource(config, options) for config in embedded.configs()]
    if embedded is None and env_kwargs:
        names = ", ".join(sorted(env_kwargs))
        raise ConfigurationError(
            f"unknown arguments: {names}. Arguments for the environment itself go with env_id=; a "
            "running endpoint has made its environment already"
        )
    for each in found:
        if not isinstance(each, str):
            several = "; several go to addresses=" if isinstance(each, (list, tuple)) else ""
            raise ConfigurationError(f"an address must be text, got {each!r}{several}")
        parse_address(each)
    return [AddressSource(each, options) for each in found]
