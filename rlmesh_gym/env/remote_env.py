"""One remote environment as a plain ``gymnasium.Env``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec.reset_arguments import copy_options, expand_seeds
from rlmesh_gym.env.drive.actions import ActionCheck
from rlmesh_gym.env.open.connect import connect, find_sources
from rlmesh_gym.env.open.sources import ConnectionOptions
from rlmesh_gym.env.reading.infos import lane_rows
from rlmesh_gym.env.remote_lanes import RemoteLanes
from rlmesh_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.reading.infos import InfoRows
    from rlmesh_gym.rpc import TimeoutsLike, TLSLike
    from rlmesh_gym.threads import WhichThread


class RemoteEnv(RemoteLanes, gym.Env[Any, Any]):
    """The only lane of an endpoint.

    After an episode's end ``reset`` begins the next one, whatever the endpoint's autoreset mode.

    Args:
        address: The endpoint, such as ``"10.0.0.7:5555"`` or ``"unix:///run/env.sock"``.
        env_id: Gymnasium id to serve from a child process, if no address is given. Without either,
            the variable ``RLMESH_GYM_ADDRESS`` names the endpoint.
        render_mode: Of an embedded endpoint what to make it with; else what the endpoint must have.
        token: What the endpoint asks for. Better set ``RLMESH_GYM_TOKEN``: an argument is left out
            of ``spec`` and of pickles, so that what is made from those needs the variable.
        tls: True, a mapping or a ``TLSConfig`` for TLS.
        timeouts: Seconds for all calls, a mapping or ``Timeouts``.
        episodes_kept: How many records ``episodes`` keeps; None keeps all.
        thread: Of an embedded endpoint, where its environment is made, called and closed; see
            ``EnvServer``. ``"main"`` is for one that needs the main thread.
        **env_kwargs: For ``gymnasium.make``, with ``env_id`` only.

    Raises:
        ConfigurationError: Arguments that cannot work, or an endpoint with several lanes.
        UnavailableError: Nothing answers at the address.
        ProtocolError: Something else does.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    render_mode: str | None
    # For gymnasium.make, which looks at the class before there is an endpoint to ask.
    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium's form
        "render_modes": ["rgb_array"],
        "render_fps": 30,
    }

    def __init__(
        self,
        address: str | None = None,
        *,
        env_id: str | None = None,
        render_mode: str | None = None,
        token: str | None = None,
        tls: TLSLike = None,
        timeouts: TimeoutsLike = None,
        episodes_kept: int | None = 1000,
        thread: WhichThread | None = None,
        **env_kwargs: Any,
    ) -> None:
        self._config = {
            "address": address,
            "env_id": env_id,
            "render_mode": render_mode,
            "tls": tls,
            "timeouts": timeouts,
            "episodes_kept": episodes_kept,
            "thread": thread,
            **env_kwargs,
        }
        options = ConnectionOptions.from_values(token, tls, timeouts)
        sources = find_sources(
            address=address,
            env_id=env_id,
            env_kwargs=env_kwargs,
            options=options,
            thread=thread,
            autoreset_mode=None,
            render_mode=render_mode,
        )
        if len(sources) != 1:
            labels = ", ".join(source.label for source in sources)
            raise ConfigurationError(
                f"one environment takes one endpoint, got {labels}; use RemoteVectorEnv or "
                "gymnasium.make_vec for several"
            )
        self._group = connect(
            sources,
            autoreset_mode=AutoresetMode.DISABLED,
            timeouts=options.timeouts,
            single=True,
            render_mode=render_mode,
            episodes_kept=episodes_kept,
        )
        contract = self.contract
        self.observation_space = contract.single_observation_space
        self.action_space = contract.single_action_space
        self.render_mode = contract.render_mode
        self.metadata = {
            **contract.metadata,
            # What it can be made with again at the same endpoint.
            "render_modes": [] if self.render_mode is None else [self.render_mode],
        }
        self.metadata.pop("autoreset_mode", None)
        self._actions = ActionCheck(self._group.action_codec, 1)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; also connects anew after the endpoint was lost.

        Args:
            seed: For the environment.
            options: For the environment.

        Returns:
            ``(observation, info)``, both fresh.

        Raises:
            DeadlineError: No answer within ``timeouts.reset``.
            RemoteError: The environment or the way to it failed.
        """
        group = self._group
        group.check_ready("reset")
        seeds = expand_seeds(seed, 1)
        super().reset(seed=seeds[0])
        group.start_reset(seeds, None, None if options is None else copy_options(options))
        batch, parts = group.finish(group.timeouts.reset)
        return batch.sample(0), self._info(parts)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once; a step is sent at most once, see ``RemoteVectorEnv.step``.

        Args:
            action: Member of ``action_space``.

        Returns:
            ``(observation, reward, terminated, truncated, info)``, with plain Python numbers.

        Raises:
            ActionError: An action that does not fit; nothing was sent.
            ResetNeededError: The episode is over, or none was begun; nothing was sent.
            DeadlineError: No answer within ``timeouts.step``.
            RemoteError: The environment or the way to it failed.
        """
        group = self._group
        group.check_ready("step")
        group.prepare_step()
        group.start_step(self._actions.read_one(action))
        batch, parts = group.finish(group.timeouts.step)
        rewards, terminations, truncations = batch.numbers
        return (
            batch.sample(0),
            float(rewards[0]),
            bool(terminations[0]),
            bool(truncations[0]),
            self._info(parts),
        )

    def render(self) -> Any:
        """Return a uint8 frame of shape ``(height, width, 3)``, or None without a render mode."""
        group = self._group
        group.check_ready("render")
        if self.render_mode is None:
            return None
        return group.render()[0]

    def close(self) -> None:
        """Say goodbye to the endpoint; bounded, and may be called again."""
        self._group.close()

    def _info(self, parts: list[tuple[Endpoint, InfoRows]]) -> dict[str, Any]:
        return {key: value for _, row in lane_rows(parts) for key, value in row.items()}
