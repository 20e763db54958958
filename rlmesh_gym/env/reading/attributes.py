"""What the contract can answer in place of the sub-environments, which live elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError, UnsupportedCallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium.vector import VectorEnv


def lane_attribute(
    envs: VectorEnv[Any, Any, Any], name: str, addresses: Sequence[str]
) -> tuple[Any, ...]:
    """Return an attribute of every sub-environment; see ``RemoteVectorEnv.call``."""
    if name == "np_random_seed":
        return envs.np_random_seed  # type: ignore[return-value]
    if name == "metadata":
        return tuple(dict(envs.metadata) for _ in range(envs.num_envs))
    answers = {
        "render_mode": envs.render_mode,
        "spec": envs.spec,
        "num_envs": envs.num_envs,
        "observation_space": envs.single_observation_space,
        "action_space": envs.single_action_space,
    }
    if name not in answers:
        known = ", ".join(sorted([*answers, "metadata", "np_random_seed", "render"]))
        raise UnsupportedCallError(
            f"{name!r} of the sub-environments cannot be had: they live at {addresses}. "
            f"What can: {known}"
        )
    return (answers[name],) * envs.num_envs


def refuse_attribute(name: str, values: Any, num_envs: int, addresses: Sequence[str]) -> None:
    """Refuse to set an attribute, after the check that Gymnasium makes first."""
    if isinstance(values, (list, tuple)) and len(values) != num_envs:
        raise ConfigurationError(
            "Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {num_envs} environments."
        )
    raise UnsupportedCallError(
        f"set_attr({name!r}): the sub-environments live at {addresses} and cannot be changed "
        "from here; pass settings as reset options, or make the environment with them"
    )
