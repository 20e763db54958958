"""The vector environment that users step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import logger
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlmesh_gym.codec import as_autoreset_mode
from rlmesh_gym.codec.reset_arguments import expand_seeds, split_options, warn_of_mask
from rlmesh_gym.env.drive.actions import ActionCheck
from rlmesh_gym.env.drive.recovery import recovery_for
from rlmesh_gym.env.open.connect import connect, find_sources, step_limit
from rlmesh_gym.env.open.sources import ConnectionOptions
from rlmesh_gym.env.reading.infos import vector_infos
from rlmesh_gym.env.remote_lanes import RemoteLanes
from rlmesh_gym.errors import (
    ClosedError,
    ConfigurationError,
    NoPendingCallError,
    UnsupportedAttributeError,
    UnsupportedCallError,
)
from rlmesh_gym.restarts import MAX_RESTARTS, RESTART_PATIENCE, OnFailure, check_on_failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space
    from numpy.typing import NDArray
    from typing_extensions import Self

    from rlmesh_gym.codec.reset_arguments import Seeds
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.reading.infos import InfoRows
    from rlmesh_gym.rpc import TimeoutsLike, TLSLike
    from rlmesh_gym.threads import WhichThread

    StepResult = tuple[
        Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]


class RemoteVectorEnv(RemoteLanes, VectorEnv[Any, Any, Any]):
    """Sub-environments that live at one or several endpoints, stepped as one Gymnasium vector.

    It behaves as ``gymnasium.vector.SyncVectorEnv`` over the same environments, in each autoreset
    mode. Every call returns new arrays that the caller owns: observations in the dtype of the
    space, rewards float64 and both flags bool, each of shape ``(num_envs,)``. One thread uses it at
    a time. Use it as a context manager, or call :meth:`close`.

    Args:
        address: One endpoint, such as ``"10.0.0.7:5555"`` or ``"unix:///run/env.sock"``.
        addresses: Several endpoints with equal spaces; their lanes follow one another.
        env_id: Gymnasium id to serve from a child process, if no address is given. Without either,
            the variable ``RLMESH_GYM_ADDRESS`` names the endpoints, separated by commas.
        num_envs: Number of lanes: of an embedded endpoint how many to make, else what the endpoints
            have in total. 1 stands for "not said", as ``gymnasium.make_vec`` passes it.
        autoreset_mode: Mode to show, or its value such as ``"SameStep"``; None keeps the
            endpoints' own.
        render_mode: Of an embedded endpoint what to make it with; else what the endpoint must have.
        token: What the endpoints ask for. Better set ``RLMESH_GYM_TOKEN``: an argument is left out
            of ``spec`` and of pickles, so that what is made from those needs the variable.
        tls: True, a mapping or a ``TLSConfig`` for TLS.
        timeouts: Seconds for all calls, a mapping or ``Timeouts``.
        on_failure: ``"raise"``, or ``"restart"``: lanes of a lost endpoint are truncated with
            ``infos["interrupted"]`` and go on in a new session.
        copy: False returns the same observation arrays at every call, overwritten in place.
        workers: Processes of an embedded endpoint to spread the lanes over.
        max_episode_steps: Truncate episodes at this length. An embedded endpoint does it itself;
            elsewhere the client does, which needs lane operations.
        episode_ids_in_infos: Add ``infos["episode_id"]``. Off, since infos are then a function of
            the seed.
        episodes_kept: How many records ``episodes`` keeps; None keeps all.
        restart_patience: Seconds that ``on_failure="restart"`` waits for a lost endpoint.
        max_restarts: How often it restarts an endpoint that does not get one step done in between,
            before the error is raised; None for ever.
        thread: Of an embedded endpoint, where its environments are made, called and closed; see
            ``EnvServer``. ``"main"`` is for those that need the main thread.
        **env_kwargs: For ``gymnasium.make``, with ``env_id`` only.

    Raises:
        ConfigurationError: Arguments that cannot work.
        AutoresetError: An endpoint cannot serve the mode; the message says which it can.
        UnavailableError: Nothing answers at an address.
        ProtocolError: Something else does.
    """

    num_envs: int
    autoreset_mode: AutoresetMode
    metadata: dict[str, Any]
    render_mode: str | None
    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    observation_space: Space[Any]
    action_space: Space[Any]
    copy: bool
    closed: bool

    def __init__(
        self,
        address: str | None = None,
        *,
        addresses: Sequence[str] | None = None,
        env_id: str | None = None,
        num_envs: int | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        render_mode: str | None = None,
        token: str | None = None,
        tls: TLSLike = None,
        timeouts: TimeoutsLike = None,
        on_failure: OnFailure = "raise",
        copy: bool = True,
        workers: int = 1,
        max_episode_steps: int | None = None,
        episode_ids_in_infos: bool = False,
        episodes_kept: int | None = 1000,
        restart_patience: float = RESTART_PATIENCE,
        max_restarts: int | None = MAX_RESTARTS,
        thread: WhichThread | None = None,
        **env_kwargs: Any,
    ) -> None:
        self.closed = True  # Until it is connected, there is nothing to close.
        self._config = {
            "address": address,
            "addresses": addresses,
            "env_id": env_id,
            "num_envs": num_envs,
            "autoreset_mode": autoreset_mode,
            "render_mode": render_mode,
            "tls": tls,
            "timeouts": timeouts,
            "on_failure": on_failure,
            "copy": copy,
            "workers": workers,
            "max_episode_steps": max_episode_steps,
            "episode_ids_in_infos": episode_ids_in_infos,
            "episodes_kept": episodes_kept,
            "restart_patience": restart_patience,
            "max_restarts": max_restarts,
            "thread": thread,
            **env_kwargs,
        }
        # make_vec hands all its arguments on; a checker for vector envs does not exist.
        env_kwargs.pop("disable_env_checker", None)
        mode = as_autoreset_mode(autoreset_mode)
        limit = step_limit(max_episode_steps)
        check_on_failure(on_failure)
        options = ConnectionOptions.from_values(token, tls, timeouts)
        if env_id is not None:
            if max_episode_steps is not None:
                env_kwargs["max_episode_steps"] = max_episode_steps
            if address is None and addresses is None:
                limit = None  # The environments are made with it.
        self._group = connect(
            find_sources(
                address=address,
                addresses=addresses,
                env_id=env_id,
                env_kwargs=env_kwargs,
                options=options,
                num_envs=num_envs,
                workers=workers,
                thread=thread,
                autoreset_mode=AutoresetMode.NEXT_STEP if mode is None else mode,
                render_mode=render_mode,
            ),
            autoreset_mode=mode,
            timeouts=options.timeouts,
            num_envs=num_envs,
            render_mode=render_mode,
            max_episode_steps=limit,
            recovery=recovery_for(on_failure, restart_patience, max_restarts),
            episodes_kept=episodes_kept,
        )
        contract = self.contract
        total = self._group.num_envs
        self.num_envs = total
        self.autoreset_mode = self._group.mode
        self.metadata = {**contract.metadata, "autoreset_mode": self._group.mode}
        self.render_mode = contract.render_mode
        self.single_observation_space = contract.single_observation_space
        self.single_action_space = contract.single_action_space
        self.observation_space = batch_space(contract.single_observation_space, total)
        self.action_space = batch_space(contract.single_action_space, total)
        self.copy = copy
        self._actions = ActionCheck(self._group.action_codec, total)
        self._buffers = None if copy else self._group.codec.empty(total)
        self._known_seeds = [-1] * total
        self._reset_seeds: list[int | None] = []
        self._reset_mask: NDArray[np.bool_] | None = None
        self._ids_in_infos = episode_ids_in_infos
        self.closed = False

    # Stepping

    def step(self, actions: Any) -> StepResult:
        """Step every lane once, and reset those whose turn it is in the autoreset mode.

        Blocks until all endpoints have answered or ``timeouts.step`` has passed. A step is sent at
        most once: after a ``DeadlineError`` the late answer is taken in by the next call, which
        updates ``lane_phases`` and ``episodes``, and its observation is never returned. Where a
        step fails at one endpoint, or is late there, what came for the lanes of others is not lost:
        the error names those lanes, and the next step returns what came for them instead of
        stepping them, whatever its actions. Until then they are shown as they were before, and a
        reset of all lanes of their endpoint drops it.

        Args:
            actions: Batch from ``action_space``. Under NEXT_STEP the actions of lanes whose episode
                is over are ignored.

        Returns:
            ``(observations, rewards, terminations, truncations, infos)``.

        Raises:
            ActionError: A batch that does not fit; nothing was sent.
            ResetNeededError: A lane has no running episode; nothing was sent.
            DeadlineError: No answer in time.
            EnvError: An environment, or its server, failed.
            UnavailableError: An endpoint was lost; ``reset()`` connects anew.
        """
        self._start_step(actions)
        return self._finish_step(self._group.timeouts.step)

    def step_async(self, actions: Any) -> None:
        """Send a step without waiting for it; see :meth:`step`."""
        self._start_step(actions)
        self._group.pending = "step"

    def _start_step(self, actions: Any) -> None:
        group = self._group
        group.check_ready("step")
        group.prepare_step()
        group.start_step(self._actions.read(actions, group.ignored_actions), self._buffers)

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for the step that :meth:`step_async` sent.

        Args:
            timeout: Seconds; ``timeouts.step`` where None.

        Raises:
            NoPendingCallError: Nothing was sent.
        """
        self._check_pending("step")
        return self._finish_step(self._group.timeouts.step if timeout is None else timeout)

    def _finish_step(self, timeout: float | None) -> StepResult:
        batch, parts = self._group.finish(timeout)
        return (self._observations(batch), *batch.numbers, self._infos(parts))

    def reset(
        self,
        *,
        seed: Seeds = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all lanes, or those that ``options["reset_mask"]`` names.

        Also connects anew after an endpoint was lost.

        Args:
            seed: None, an int ``s`` for ``s, s + 1 …``, or one int or None per lane. Seeds for some
                lanes of an endpoint only need its lane operations.
            options: For the environments. ``reset_mask``, a bool array of shape ``(num_envs,)``, is
                not passed on; the mapping itself is left as it is.

        Returns:
            Observations of all lanes, those outside the mask as they were last seen, and the infos
            of the lanes that were reset.

        Raises:
            ResetNeededError: A lane outside the mask has no observation yet.
            ConfigurationError: An endpoint cannot reset some lanes alone.
            DeadlineError: No answer within ``timeouts.reset``.
        """
        self._start_reset(seed, options)
        return self._finish_reset(self._group.timeouts.reset)

    def reset_async(self, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> None:
        """Send a reset without waiting for it; see :meth:`reset`."""
        self._start_reset(seed, options)
        self._group.pending = "reset"

    def _start_reset(self, seed: Seeds, options: Mapping[str, Any] | None) -> None:
        group = self._group
        group.check_ready("reset")
        seeds = expand_seeds(seed, self.num_envs)
        warn_of_mask(options)
        rest, mask = split_options(options, self.num_envs)
        group.start_reset(seeds, mask, rest, self._buffers)
        self._reset_seeds, self._reset_mask = seeds, mask

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that :meth:`reset_async` sent.

        Args:
            timeout: Seconds; ``timeouts.reset`` where None.

        Raises:
            NoPendingCallError: Nothing was sent.
        """
        self._check_pending("reset")
        return self._finish_reset(self._group.timeouts.reset if timeout is None else timeout)

    def _finish_reset(self, timeout: float | None) -> tuple[Any, dict[str, Any]]:
        mask = self._reset_mask
        for lane, seed in enumerate(self._reset_seeds):
            if seed is not None and (mask is None or mask[lane]):
                self._known_seeds[lane] = seed
        batch, parts = self._group.finish(timeout)
        return self._observations(batch), self._infos(parts)

    def _check_pending(self, name: str) -> None:
        if self.closed:
            raise ClosedError(f"{name}_wait: the environment was closed")
        if self._group.pending != name:
            raise NoPendingCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`.", name=name
            )

    def _observations(self, batch: Batch) -> Any:
        return self._group.codec.unflatten(batch.leaves, self.num_envs)

    def _infos(self, parts: Sequence[tuple[Endpoint, InfoRows]]) -> dict[str, Any]:
        infos = vector_infos(parts, self.num_envs)
        if self._ids_in_infos:
            infos["episode_id"] = np.array(self.episode_ids, dtype=object)
            infos["_episode_id"] = np.ones(self.num_envs, dtype=np.bool_)
        return infos

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Last seed given to each lane; -1 for a lane that never got one."""
        return tuple(self._known_seeds)

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        """Not to be had: the lanes' generators live at the endpoints.

        Raises:
            UnsupportedAttributeError: Always, so that ``hasattr`` is False.
        """
        raise UnsupportedAttributeError(
            "np_random: the lanes' random generators live at the endpoints; seed them with "
            "reset(seed=...), and actions with action_space.seed(...)"
        )

    # What the contract can answer

    def render(self) -> tuple[Any, ...] | None:
        """Return one frame per lane, or None without a render mode.

        Frames are uint8 arrays of shape ``(height, width, 3)`` (or 4, or ``(height, width)``). A
        lane that its endpoint cannot render has None, with a warning.
        """
        group = self._group
        group.check_ready("render")
        if self.render_mode is None:
            return None
        frames = group.render()
        return None if all(frame is None for frame in frames) else tuple(frames)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return one value per lane of an attribute that the contract knows, or its frames.

        Args:
            name: ``"render"``, ``"render_mode"``, ``"spec"``, ``"metadata"``, ``"num_envs"``,
                ``"observation_space"``, ``"action_space"`` or ``"np_random_seed"``.
            *args: None are taken.
            **kwargs: None are taken.

        Raises:
            UnsupportedCallError: Anything else needs the environment objects, which are elsewhere.
        """
        self._group.check_ready("call")
        if args or kwargs:
            raise UnsupportedCallError(f"call({name!r}): arguments cannot be passed on")
        if name == "render":
            frames = self.render()
            return (None,) * self.num_envs if frames is None else frames
        return self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return one value per lane; see :meth:`call`."""
        if name == "np_random_seed":
            return self.np_random_seed
        if name == "metadata":
            return tuple(dict(self.metadata) for _ in range(self.num_envs))
        answers = {
            "render_mode": self.render_mode,
            "spec": self.spec,
            "num_envs": self.num_envs,
            "observation_space": self.single_observation_space,
            "action_space": self.single_action_space,
        }
        if name not in answers:
            known = ", ".join(sorted([*answers, "metadata", "np_random_seed", "render"]))
            raise UnsupportedCallError(
                f"{name!r} of the sub-environments cannot be read: they live at {self.addresses}. "
                f"What can: {known}"
            )
        return (answers[name],) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Not to be had: the sub-environments live elsewhere.

        Raises:
            ValueError: ``values`` is a list or tuple of another length than ``num_envs``.
            UnsupportedCallError: Always otherwise.
        """
        if isinstance(values, (list, tuple)) and len(values) != self.num_envs:
            raise ConfigurationError(  # Gymnasium's own words.
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        raise UnsupportedCallError(
            f"set_attr({name!r}): the sub-environments live at {self.addresses} and cannot be "
            "changed from here; pass settings as reset options, or make the environment with them"
        )

    # The end

    def close_extras(self, timeout: float | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Say goodbye to the endpoints; bounded, and the other end may be gone already.

        Args:
            timeout: Seconds for an embedded endpoint to close its environments.
            **kwargs: Taken for the sake of ``AsyncVectorEnv``'s ``terminate``.
        """
        pending = self._group.pending
        if pending is not None:
            # AsyncVectorEnv's own words.
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{pending}` to complete."
            )
        self._group.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
