"""Whatever users have for an environment or a model, as an end of a run; and the envs connected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from rlmesh_gym.codec import find_env_id
from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.env.drive.group import EndpointGroup
from rlmesh_gym.env.drive.recovery import recovery_for
from rlmesh_gym.env.open.connect import check_alike
from rlmesh_gym.env.open.sources import AddressSource, ConnectionOptions, GivenSession
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.model import ModelHandler
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.runtime.ends.policies import RunPolicy, SessionPolicy, WholePolicy
from rlmesh_gym.server.env.in_process import InProcessEnvSession
from rlmesh_gym.server.env.served_lanes import ServedLanes
from rlmesh_gym.server.env.served_vector import ServedVector
from rlmesh_gym.server.model.in_process import InProcessModelSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlmesh_gym.env.open.sources import AnyEnvSession
    from rlmesh_gym.restarts import OnFailure
    from rlmesh_gym.rpc import TimeoutsLike, TLSLike
    from rlmesh_gym.runtime.cancellation import CancellationWatch
    from rlmesh_gym.runtime.spec import RuntimeLimits, RuntimeSessionSpec


@dataclass(frozen=True)
class RunEnv:
    """One env of a run; ``open`` connects, if that is still to be done."""

    endpoints: tuple[str, ...]  # As far as they are known before it is open.
    open: Callable[[RuntimeLimits, OnFailure], EndpointGroup]
    is_owner: bool = False  # The run closes what it opened.

    def opened(self, group: EndpointGroup) -> RunEnv:
        """Return the same env with what its ``open`` has returned."""
        return replace(self, open=lambda *_: group)


def find_envs(
    env: Any,
    *,
    token: str | None = None,
    tls: TLSLike = None,
    timeouts: TimeoutsLike = None,
) -> tuple[RunEnv, ...]:
    """Return the envs of a run for one env, or for a list or tuple of them.

    The rest is for those at addresses; of the timeouts, those that the run's limits say nothing of.
    """
    several = env if isinstance(env, (list, tuple)) else [env]
    objects = [one for one in several if not isinstance(one, str)]
    if len({id(one) for one in objects}) < len(objects):
        message = "the same env object is in the list twice; its lanes can be played only once"
        raise ConfigurationError(message)
    options = ConnectionOptions.from_values(token, tls, timeouts)
    return tuple(_find_env(one, options) for one in several)


def _find_env(env: Any, options: ConnectionOptions) -> RunEnv:
    if isinstance(env, RunEnv):
        return env
    if isinstance(env, str):
        return RunEnv((env,), partial(_connect, env, options), is_owner=True)
    if isinstance(env, (RemoteVectorEnv, RemoteEnv)):
        group = env.lane_engine
        addresses = tuple(endpoint.address for endpoint in group.endpoints)
        return RunEnv(addresses, lambda *_: group)
    if isinstance(env, (VectorEnv, gymnasium.Env)):
        return _over_session(InProcessEnvSession(_served(env)))
    if _has_methods(env, "reset", "step", "render") and hasattr(env, "endpoint"):
        return _over_session(env)
    message = (
        "env must be an address, several addresses, a VectorEnv or an Env, got "
        f"{type(env).__name__}"
    )
    raise ConfigurationError(message)


def _connect(
    address: str, options: ConnectionOptions, limits: RuntimeLimits, on_failure: OnFailure
) -> EndpointGroup:
    timeouts = replace(
        options.timeouts,
        reset=limits.env_reset_timeout,
        step=limits.env_step_timeout,
        close=limits.close_timeout,
    )
    source = AddressSource(address, replace(options, timeouts=timeouts))
    session = source.open()
    return EndpointGroup(
        [source],
        [session],
        autoreset_mode=session.contract.autoreset_mode,
        timeouts=timeouts,
        recovery=recovery_for(on_failure, limits.restart_patience, limits.max_restarts),
    )


def _over_session(session: AnyEnvSession) -> RunEnv:
    def open_group(limits: RuntimeLimits, on_failure: OnFailure) -> EndpointGroup:
        del limits, on_failure
        mode = session.contract.autoreset_mode
        return EndpointGroup(
            [GivenSession(session)], [session], autoreset_mode=mode, timeouts=session.timeouts
        )

    addresses = getattr(session, "lane_addresses", (session.endpoint,))
    return RunEnv(tuple(dict.fromkeys(addresses)), open_group)


def _served(env: VectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]) -> ServedLanes | ServedVector:
    """Return an env of this process as a server drives it, stepped just as it is."""
    if isinstance(env, gymnasium.Env):
        return ServedLanes([env], find_env_id(env))
    served = ServedVector(env, find_env_id(env), in_process=True)
    if served.contract.autoreset_mode is AutoresetMode.DISABLED:
        served.has_partial_reset = True  # There is no other way to reset a lane.
    return served


def connect(
    envs: Sequence[RunEnv], spec: RuntimeSessionSpec, watch: CancellationWatch
) -> Iterator[tuple[RunEnv, EndpointGroup]]:
    """Open the envs, each handed out as soon as it is there, so that it can be let go of.

    Once the last one is taken, envs whose spaces differ are refused.
    """
    if not envs:
        raise ConfigurationError("a run needs at least one env endpoint, got none")
    sessions = []
    for env in envs:
        # Who does not answer is waited for elsewhere, and closed if the answer comes too late.
        late = partial(_close_late, env, spec.limits.close_timeout)
        group = watch.run(partial(env.open, spec.limits, spec.on_failure), late)
        for endpoint in group.endpoints:
            watch.add(endpoint.session)
        group.open_by(watch)
        sessions.append(group.endpoints[0].session)
        yield env, group
    for other in sessions[1:]:
        check_alike(sessions[0], other, of="run")


def _close_late(env: RunEnv, timeout: float, group: EndpointGroup) -> None:
    if env.is_owner:
        group.close(timeout)


def find_policy(policy: Any, *, token: str | None = None, tls: TLSLike = None) -> RunPolicy:
    """Return the policy of a run for whatever a user has."""
    if isinstance(policy, str):
        return SessionPolicy(address=policy, token=token, tls=tls)
    if isinstance(policy, RemotePolicy):
        return WholePolicy(policy)
    if isinstance(policy, RunPolicy):
        return policy
    if _has_methods(policy, "resolve_adapter", "predict", "reset_adapter", "close"):
        return SessionPolicy(policy)
    if isinstance(policy, ModelHandler) or callable(policy):
        return SessionPolicy(InProcessModelSession(policy))
    message = (
        "policy must be an address, a RemotePolicy, a ModelHandler or a function, got "
        f"{type(policy).__name__}"
    )
    raise ConfigurationError(message)


def _has_methods(candidate: Any, *names: str) -> bool:
    return all(callable(getattr(type(candidate), name, None)) for name in names)
