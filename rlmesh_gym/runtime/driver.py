"""``RuntimeDriver`` joins an environment and a model for runs; ``run`` is one with all defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.ends.finding import find_envs, find_policy
from rlmesh_gym.runtime.hooks.table import as_hooks
from rlmesh_gym.runtime.one_run import OneRun
from rlmesh_gym.runtime.spec import DEFAULT_SESSION_ID, RuntimeLimits, RuntimeSessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlmesh_gym.restarts import OnFailure
    from rlmesh_gym.rpc import TLSConfig
    from rlmesh_gym.runtime.cancellation import EventLike
    from rlmesh_gym.runtime.ends.finding import RunEnv
    from rlmesh_gym.runtime.ends.policies import RunPolicy
    from rlmesh_gym.runtime.hooks.table import RuntimeHooks
    from rlmesh_gym.runtime.report.runtime_report import RuntimeReport


class RuntimeDriver:
    """Runs a model in an environment: reset, then predict and step, until the spec is fulfilled.

    It drives the lane engine of :class:`~rlmesh_gym.RemoteVectorEnv` and the planner of
    :class:`~rlmesh_gym.RemotePolicy`, for any number of lanes and endpoints in all three autoreset
    modes; what is in this process is an endpoint without a wire.

    Args:
        spec: What to do.
        env: The environment, or a list of endpoints of one environment: an address, an
            :class:`~rlmesh_gym.rpc.EnvSession` or what is like it
            (:class:`~rlmesh_gym.runtime.RuntimeEnv`), a vector env or a single one.
        model: An address, a :class:`~rlmesh_gym.rpc.ModelSession` or what is like it
            (:class:`~rlmesh_gym.runtime.RuntimeModel`), a :class:`~rlmesh_gym.RemotePolicy`, which
            is played as it was configured, a handler, or a function.
        hooks: Who watches and transforms; one, several, or none.

    Example:
        >>> import gymnasium as gym
        >>> from rlmesh_gym.runtime import RuntimeSessionSpec
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        >>> driver = RuntimeDriver(
        ...     RuntimeSessionSpec(max_episodes=3, base_seed=7),
        ...     envs,
        ...     lambda observations: (observations[:, 2] > 0).astype(int),
        ... )
        >>> report = driver.run()
        >>> len(report.episodes), report.stop_reason
        (3, 'max_episodes')
        >>> envs.close()
    """

    def __init__(
        self,
        spec: RuntimeSessionSpec,
        env: Any,
        model: Any,
        hooks: RuntimeHooks | Iterable[RuntimeHooks] | None = None,
    ) -> None:
        self.spec = spec
        self.envs: tuple[RunEnv, ...] = find_envs(env)
        self.policy: RunPolicy = find_policy(model)
        self.hooks: tuple[RuntimeHooks, ...] = as_hooks(hooks)

    def run(
        self,
        cancellation: EventLike | None = None,
        reason: str | Callable[[], str | None] | None = None,
    ) -> RuntimeReport:
        """Run to the end.

        Every way out releases the model if it was set up and closes what the run opened, each
        within ``limits.close_timeout``, then delivers one telemetry snapshot of the session and
        ``session_ended`` or ``session_failed``.

        Args:
            cancellation: Ends the run when set, also while a call to a remote end hangs: a
                :class:`~rlmesh_gym.runtime.Cancellation` or a ``threading.Event``. A call
                into this process is waited for.
            reason: Why, for the report; asked for after the cancellation if it is callable. Else
                the cancellation's own ``reason`` is taken.

        Returns:
            The report. A cancelled run returns one too, with the episodes it completed and, marked
            ``interrupted``, those it cut off.

        Raises:
            ConfigurationError: The spec is wrong, or does not go with the endpoints.
            Error: An end failed; the first error, whatever closing may add. What an end in this
                process raised is its cause.
            Exception: A transform raised; it comes through as it is.
            KeyboardInterrupt: Comes through after the same orderly end.

        Whatever a run raises carries the report as its attribute ``report``.
        """
        if cancellation is not None and not callable(getattr(cancellation, "wait", None)):
            message = f"cancellation must be a Cancellation or an Event, got {cancellation!r}"
            raise ConfigurationError(message)
        return OneRun(self.spec, self.envs, self.policy, self.hooks).run(cancellation, reason)


def run(
    env: Any,
    policy: Any,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    episode_seeds: Sequence[int] | None = None,
    execution_horizon: int | None = None,
    predict_rows: Literal["auto", "together", "apart"] = "auto",
    max_steps: int | None = None,
    max_episode_steps: int | None = None,
    max_episode_seconds: float | None = None,
    session_id: str = DEFAULT_SESSION_ID,
    reset_options: Mapping[str, Any] | None = None,
    limits: RuntimeLimits | None = None,
    hooks: RuntimeHooks | Iterable[RuntimeHooks] | None = None,
    cancellation: EventLike | None = None,
    reason: str | Callable[[], str | None] | None = None,
    token: str | None = None,
    tls: bool | Mapping[str, Any] | TLSConfig | None = None,
    on_failure: OnFailure = "raise",
) -> RuntimeReport:
    """Evaluate a policy in an environment, either of them anywhere.

    Exactly ``episodes`` episodes are reported, planned beforehand: episode ``k`` is number
    ``k // num_envs`` of lane ``k % num_envs``, and a lane that has done its share waits. So short
    episodes are not favoured over long ones, as they would be if the first ones to end were taken.

    Args:
        env: An address; several addresses of one environment, whose lanes become one run's; a
            vector env or a single env, remote or of this process (which stays open); or an open
            session (:class:`~rlmesh_gym.runtime.RuntimeEnv`).
        policy: An address; a :class:`~rlmesh_gym.RemotePolicy`, which is played as a loop of your
            own would; a :class:`~rlmesh_gym.ModelHandler`; a function from batched observations to
            batched actions; or an open session (:class:`~rlmesh_gym.runtime.RuntimeModel`).
        episodes: How many to complete; may be left out with ``episode_seeds`` or ``max_steps``.
        seed: Seeds of all lanes derive from it. The same seed, ``session_id`` and number of lanes
            give the same episodes.
        episode_seeds: One seed per episode, in place of ``seed``.
        execution_horizon: Frames of each predicted chunk that are executed; None for 1, or what the
            ``RemotePolicy`` was made with, which no other number may contradict.
        predict_rows: Whether rows of several lanes go to the model in one request; see
            :class:`RuntimeSessionSpec`.
        max_steps: Lane steps over all lanes after which the run ends.
        max_episode_steps: Steps after which an episode is ended as truncated.
        max_episode_seconds: Wall time after which an episode is ended as truncated.
        session_id: Name of the session, part of the derivation of seeds.
        reset_options: ``options`` of every reset.
        limits: How long to wait for what.
        hooks: Who watches and transforms.
        cancellation: Ends the run when set; see :meth:`RuntimeDriver.run`.
        reason: Why it was cancelled, for the report.
        token: What endpoints at addresses ask for, else ``RLMESH_GYM_TOKEN``.
        tls: How to encrypt connections to addresses.
        on_failure: ``"raise"``, or ``"restart"``: endpoints at addresses, and the model, are waited
            for when they are lost, for ``limits.restart_patience``. Episodes that were cut off are
            reported as interrupted and played again.

    Returns:
        The report.

    Raises:
        ConfigurationError: Nothing says when to end, or arguments contradict each other.
        Error: An end failed; see :meth:`RuntimeDriver.run`. The report is its attribute ``report``.
    """
    if episodes is None and episode_seeds is None and max_steps is None and cancellation is None:
        message = "say when to end: episodes=, episode_seeds=, max_steps= or cancellation="
        raise ConfigurationError(message)
    end = find_policy(policy, token=token, tls=tls)
    if execution_horizon is None:
        execution_horizon = end.horizon or 1
    spec = RuntimeSessionSpec(
        max_episodes=episodes,
        max_steps=max_steps,
        max_episode_steps=max_episode_steps,
        max_episode_seconds=max_episode_seconds,
        base_seed=seed,
        episode_seeds=None if episode_seeds is None else tuple(episode_seeds),
        execution_horizon=execution_horizon,
        predict_rows=predict_rows,
        session_id=session_id,
        reset_options=reset_options,
        limits=limits or RuntimeLimits(),
        on_failure=on_failure,
    )
    envs = find_envs(env, token=token, tls=tls)
    return RuntimeDriver(spec, envs, end, hooks).run(cancellation, reason)
