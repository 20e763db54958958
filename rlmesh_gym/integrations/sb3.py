"""A Gymnasium vector environment as a Stable-Baselines3 ``VecEnv``.

Stable-Baselines3 refuses Gymnasium's vector environments: its own kind resets a lane within the
step that ends it, gives infos as a list of dicts, and puts the terminal observation into them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import find_autoreset_mode, lane_info
from rlmesh_gym.errors import ConfigurationError

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    message = 'Stable-Baselines3 is missing; install it with: pip install "rlmesh-gym[sb3]"'
    raise ImportError(message) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray


def as_vec_env(envs: VectorEnv[Any, Any, Any]) -> Sb3VecEnv:
    """Return ``envs`` for Stable-Baselines3.

    Args:
        envs: A vector environment in SAME_STEP mode, such as
            ``RemoteVectorEnv(address, autoreset_mode="SameStep")``, wrapped or not. It is owned by
            the result and closed with it.

    Raises:
        ConfigurationError: Another autoreset mode, or observations that are overwritten in place.
    """
    return Sb3VecEnv(envs)


class Sb3VecEnv(VecEnv):  # type: ignore[misc]
    """A vector environment in SAME_STEP mode behind the interface of Stable-Baselines3.

    Rewards are float32 ``(num_envs,)``. In the step that ends an episode, ``infos[i]`` is the info
    of that step with ``terminal_observation`` and ``TimeLimit.truncated`` (truncated and not
    terminated), and the info of the reset stands in ``reset_infos[i]``. What Gymnasium's vector
    ``RecordEpisodeStatistics`` adds is with the step's info, where Stable-Baselines3 looks for it.

    Args:
        envs: See :func:`as_vec_env`.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        mode = find_autoreset_mode(envs)
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigurationError(
                "Stable-Baselines3 resets a lane within the step that ends it, so the vector needs "
                f'autoreset_mode="SameStep"; got {mode}'
            )
        if getattr(envs.unwrapped, "copy", True) is False:
            # An algorithm keeps the last observations over a step before it stores them.
            raise ConfigurationError(
                "Stable-Baselines3 stores observations after the next step; with copy=False that "
                "step has overwritten them. Make the vector with copy=True"
            )
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata: dict[str, Any] = dict(envs.metadata)
        self.metadata.pop("autoreset_mode", None)
        self._actions: Any = None

    def reset(self) -> Any:
        """Reset all lanes with the seeds of ``seed()`` and the options of ``set_options()``.

        Returns:
            The first observations; their infos are in ``reset_infos``.

        Raises:
            ConfigurationError: ``set_options`` was given different options for different lanes.
        """
        seeds: Any = list(self._seeds)  # One or none per lane, which the base class does not state.
        observations, infos = self.envs.reset(seed=seeds, options=self._common_options())
        self._reset_seeds()
        self._reset_options()
        self.reset_infos: list[dict[str, Any]] = [
            lane_info(infos, i, self.num_envs) for i in range(self.num_envs)
        ]
        return observations

    def _common_options(self) -> dict[str, Any] | None:
        options = self._options[0] if self._options else {}
        if any(not data_equivalence(other, options) for other in self._options[1:]):
            raise ConfigurationError(
                "set_options: a vector environment takes the same options for all lanes, "
                f"got {self._options}"
            )
        return options or None

    def step_async(self, actions: Any) -> None:
        """Keep the actions for :meth:`step_wait`."""
        if isinstance(self.action_space, spaces.MultiBinary):
            # Bernoulli policies answer in floats.
            actions = np.rint(actions).astype(self.action_space.dtype)
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step all lanes; see the class for the form of what returns."""
        observations, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        ended = np.logical_or(terminations, truncations)
        rows = [self._row(infos, lane, ended=ended[lane]) for lane in range(self.num_envs)]
        for row, truncated in zip(rows, truncations & ~terminations, strict=True):
            row["TimeLimit.truncated"] = bool(truncated)
        return observations, rewards.astype(np.float32), ended, rows

    def _row(self, infos: dict[str, Any], lane: int, *, ended: bool) -> dict[str, Any]:
        row = lane_info(infos, lane, self.num_envs) if infos else {}
        if not ended:
            return row
        info: dict[str, Any] = row.pop("final_info", {})
        info["terminal_observation"] = row.pop("final_obs")
        statistics = row.get("episode")
        if isinstance(statistics, dict) and "r" in statistics:
            # Gymnasium's wrapper adds them beside the reset's info; they tell of the old episode.
            info["episode"] = row.pop("episode")
        self.reset_infos[lane] = row
        return info

    def close(self) -> None:
        """Close the vector environment."""
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """Return one frame per lane, uint8 ``(height, width, 3)``, or None for each."""
        frames: Any = self.envs.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return one value per lane of what the vector knows of its lanes.

        Raises:
            AttributeError: The environments live elsewhere and the contract does not tell.
        """
        lanes = list(self._get_indices(indices))
        if attr_name == "render_mode":  # Wrappers have it too, which is all that training needs.
            return [self.envs.render_mode for _ in lanes]
        get_attr = getattr(self.envs.unwrapped, "get_attr", None)
        if get_attr is None:
            raise AttributeError(f"{self.envs} has no attributes of its lanes, as {attr_name!r}")
        try:
            values = get_attr(attr_name)
        except NotImplementedError as error:
            raise AttributeError(str(error)) from error
        return [values[lane] for lane in lanes]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002
        """Refuse: the environments live elsewhere.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"set_attr({attr_name!r}): the environments live at the endpoint")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return frames for ``render``; refuse all else, since the environments live elsewhere.

        Raises:
            AttributeError: Another method, or arguments for ``render``.
        """
        if method_name == "render" and not method_args and not method_kwargs:
            images = self.get_images()
            return [images[lane] for lane in self._get_indices(indices)]
        raise AttributeError(f"env_method({method_name!r}): the environments live at the endpoint")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """Return False for each lane: what wraps an environment elsewhere is not seen."""
        return [False for _ in self._get_indices(indices)]
