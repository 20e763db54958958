"""RuntimeDriver: joins an environment and a model for runs, each of which ends with one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime.ends.finding import find_envs, find_policy
from rlmesh_gym.runtime.hooks.table import as_hooks
from rlmesh_gym.runtime.one_run import OneRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlmesh_gym.runtime.cancellation import EventLike
    from rlmesh_gym.runtime.ends.finding import RunEnv
    from rlmesh_gym.runtime.ends.policies import RunPolicy
    from rlmesh_gym.runtime.hooks.table import RuntimeHooks
    from rlmesh_gym.runtime.report.runtime_report import RuntimeReport
    from rlmesh_gym.runtime.spec import RuntimeSessionSpec


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
