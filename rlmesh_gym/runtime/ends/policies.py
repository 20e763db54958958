"""The policy of a run: a model session driven for the run's lanes, or a RemotePolicy as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec import EnvSpec, split_metadata
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.policy.adapter import RowGrouping
from rlmesh_gym.policy.episodes import Episodes
from rlmesh_gym.policy.lane_policy import LanePolicy
from rlmesh_gym.policy.planning.schedule import PlanSchedule
from rlmesh_gym.rpc import LOCAL, ModelSession, Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym.codec import EnvContract, Leaves, SpaceCodec
    from rlmesh_gym.policy.any_session import AnyModelSession
    from rlmesh_gym.policy.episodes import Boundaries
    from rlmesh_gym.rpc import TLSLike
    from rlmesh_gym.runtime.spec import RuntimeLimits, RuntimeSessionSpec


@dataclass(frozen=True)
class PolicySetup:
    """What a policy is told of the run that it plays in."""

    spec: RuntimeSessionSpec
    run_id: str
    contract: EnvContract  # What the first env endpoint serves.
    codecs: tuple[SpaceCodec, SpaceCodec]  # Of one observation and of one action.
    num_lanes: int
    has_single_lanes: bool  # The run resets each lane of every env by itself.
    warn: Callable[[str], None]


class RunPolicy(ABC):
    """The policy's end of a run."""

    endpoint: str
    lanes: LanePolicy  # Valid once set up.
    horizon: int | None = None  # What the policy brings along; None where the run's counts.

    @abstractmethod
    def open(self, limits: RuntimeLimits) -> AnyModelSession:
        """Connect, if that is still to be done, and return the session."""

    @abstractmethod
    def set_up(self, setup: PolicySetup) -> None:
        """Set the model up for the run, or refuse a run that the policy does not go with."""

    def act(self, observations: Leaves, bounds: Boundaries) -> Leaves:
        """Return the actions of all lanes; see ``LanePolicy.act``."""
        return self.lanes.act(observations, lambda: bounds)

    @abstractmethod
    def release(self, reason: str, timeout: float) -> None:
        """Let the model drop the run's environment."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the run opened; never raises."""


class SessionPolicy(RunPolicy):
    """A model behind a session: one that was given and stays open, or one of its own."""

    def __init__(
        self,
        session: AnyModelSession | None = None,
        *,
        address: str = "",
        token: str | None = None,
        tls: TLSLike = None,
    ) -> None:
        self.endpoint = address if session is None else session.endpoint
        self._given = session
        self._address = address
        self._token = token
        self._tls = tls
        self._session: AnyModelSession | None = session

    def open(self, limits: RuntimeLimits) -> AnyModelSession:
        """Open a session, unless one was given."""
        if self._given is not None:
            return self._given
        timeouts = Timeouts(
            predict=limits.model_predict_timeout,
            resolve=limits.model_resolve_timeout,
            close=limits.close_timeout,
        )
        session = ModelSession.open(
            self._address, token=self._token, tls=self._tls, timeouts=timeouts
        )
        self.endpoint: str = session.endpoint
        self._session = session
        return session

    def set_up(self, setup: PolicySetup) -> None:
        """Resolve an adapter of the run's own."""
        session = self._session
        if session is None:
            raise ConfigurationError(f"{self.endpoint}: the model is not connected")
        spec, contract = setup.spec, setup.contract
        if self._given is None:
            # Unique, since a server may drop all adapters of a session together.
            session.session_id = f"{spec.session_id}/{setup.run_id}"
        metadata = contract.metadata
        if self.endpoint != LOCAL:
            metadata, left_out = split_metadata(metadata)
            for key, reason in left_out.items():
                setup.warn(f"metadata[{key!r}] of the env is not told to the model: {reason}")
        self.lanes: LanePolicy = LanePolicy(
            session,
            # New in every run: releasing it must not take another client's adapter away.
            env_id=setup.run_id,
            env_spec=EnvSpec(
                contract.env_id,
                contract.single_observation_space,
                contract.single_action_space,
                dict(metadata),
            ),
            codecs=setup.codecs,
            num_envs=setup.num_lanes,
            schedule=PlanSchedule(spec.execution_horizon),
            grouping=self._choose_grouping(setup, session),
            warn=setup.warn,
        )
        self.lanes.adapter.resolve()

    @staticmethod
    def _choose_grouping(setup: PolicySetup, session: AnyModelSession) -> RowGrouping | None:
        rows = setup.spec.predict_rows
        if rows != "auto":
            return RowGrouping(rows)
        goes_apart = setup.spec.execution_horizon > 1 or setup.has_single_lanes
        return RowGrouping.APART if goes_apart and not session.batches_lanes else None

    def release(self, reason: str, timeout: float) -> None:
        """Release the adapter."""
        self.lanes.adapter.release(reason, timeout)

    def close(self) -> None:
        """Close the session if it was opened here; bounded by its own close timeout."""
        if self._given is None and self._session is not None:
            self._session.close("the run is over")
            self._session = None


class WholePolicy(RunPolicy, Episodes):
    """A :class:`~rlmesh_gym.RemotePolicy`, played exactly as a loop of the user's own would.

    Its schedule, its ensemble, its connection and its timeouts count, and a subclass's ``predict``
    is called. Only where episodes begin and end is told by the run. It stays open.
    """

    def __init__(self, policy: RemotePolicy) -> None:
        self.endpoint: str = policy.endpoint
        self.policy = policy
        self.lanes: LanePolicy = policy.lane_policy
        self.horizon: int = policy.execution_horizon
        self._overrides = any(
            getattr(type(policy), name) is not getattr(RemotePolicy, name)
            for name in ("predict", "__call__")
        )
        self._bounds: Boundaries | None = None

    def open(self, limits: RuntimeLimits) -> AnyModelSession:
        """Return the policy's session."""
        del limits
        return self.lanes.adapter.session

    def set_up(self, setup: PolicySetup) -> None:
        """Check that the policy was made for such a run, and take over its episodes."""
        policy, spec, contract = self.policy, setup.spec, setup.contract
        if policy.closed:
            raise ConfigurationError(f"{self.endpoint}: the policy was closed")
        asked = {
            "num_envs": (policy.num_envs, setup.num_lanes),
            "execution_horizon": (policy.execution_horizon, spec.execution_horizon),
            "single_observation_space": (
                policy.single_observation_space,
                contract.single_observation_space,
            ),
            "single_action_space": (policy.single_action_space, contract.single_action_space),
        }
        for name, (own, needed) in asked.items():
            if own != needed:
                raise ConfigurationError(
                    f"{self.endpoint}: the policy has {name}={own}, and the run needs {needed}; "
                    "make the policy with envs= or these values, or give the model's address"
                )
        if spec.predict_rows != "auto":
            raise ConfigurationError(
                f"{self.endpoint}: predict_rows={spec.predict_rows!r} goes with a model's address; "
                "a RemotePolicy finds out by itself how its rows go out"
            )
        policy.lend(self)
        self.lanes.adapter.resolve()

    def act(self, observations: Leaves, bounds: Boundaries) -> Leaves:
        """Return the actions of all lanes, through the policy's own call in a subclass."""
        if not self._overrides:
            return super().act(observations, bounds)
        self._bounds = bounds
        observation_codec, action_codec = self.policy.codecs
        count = self.policy.num_envs
        batch = observation_codec.unflatten([leaf.copy() for leaf in observations], count)
        return action_codec.flatten(self.policy(batch), count)

    def look(self, episode_start: Any) -> Boundaries:
        """Say where the lanes' episodes begin and end; called by the policy's own ``predict``."""
        del episode_start
        if self._bounds is None:
            raise ConfigurationError("predict: the policy plays in a run now, and only there")
        return self._bounds

    def release(self, reason: str, timeout: float) -> None:
        """Give the policy back; its adapter stays."""
        del reason, timeout
        self.policy.take_back(self)

    def close(self) -> None:
        """Leave the policy open: it belongs to whoever made it."""
