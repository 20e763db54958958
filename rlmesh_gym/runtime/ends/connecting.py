"""The envs of a run, connected one after the other; they must serve the same spaces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlmesh_gym.codec import same_space
from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlmesh_gym.env.drive.group import EndpointGroup
    from rlmesh_gym.runtime.cancellation import CancellationWatch
    from rlmesh_gym.runtime.ends.env_lanes import EnvLanes
    from rlmesh_gym.runtime.ends.finding import RunEnv
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec


def connect(
    envs: Sequence[RunEnv], spec: RuntimeSessionSpec, watch: CancellationWatch
) -> Iterator[tuple[RunEnv, EndpointGroup]]:
    """Open the envs, each handed out as soon as it is there, so that it can be let go of.

    Raises:
        ConfigurationError: There are none.
        CancelledRunError: Cancelled meanwhile.
        RemoteError: An endpoint cannot be reached.
    """
    if not envs:
        raise ConfigurationError("a run needs at least one env endpoint, got none")
    for env in envs:
        # Who does not answer is waited for elsewhere, and closed if the answer comes too late.
        late = partial(_close_late, env, spec.limits.close_timeout)
        group = watch.run(partial(env.open, spec.limits), late)
        for endpoint in group.endpoints:
            watch.add(endpoint.session)
        yield env, group


def check_spaces(envs: Sequence[EnvLanes]) -> None:
    """Check that all envs of a run have the same spaces.

    Raises:
        ConfigurationError: They differ.
    """
    first = envs[0].group.endpoints[0]
    for env in envs[1:]:
        other = env.group.endpoints[0]
        for name in ("single_observation_space", "single_action_space"):
            expected = getattr(first.session.contract, name)
            found = getattr(other.session.contract, name)
            if not same_space(expected, found):
                raise ConfigurationError(
                    f"all endpoints of a run serve the same spaces: {name} is {expected} at "
                    f"{first.address} and {found} at {other.address}"
                )


def _close_late(env: RunEnv, timeout: float, group: EndpointGroup) -> None:
    if env.is_owner:
        group.close(timeout)
