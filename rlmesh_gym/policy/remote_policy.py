"""A served model as a policy for every lane of an env."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import uuid6

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import ClosedError, UnsupportedCallError
from rlmesh_gym.policy.env_view import is_unbatched, view_env
from rlmesh_gym.policy.lane_policy import LanePolicy
from rlmesh_gym.policy.planning.ensemble import check_rule
from rlmesh_gym.policy.planning.schedule import PlanSchedule
from rlmesh_gym.rpc import ModelSession

if TYPE_CHECKING:
    import gymnasium
    from numpy.typing import ArrayLike
    from typing_extensions import Self

    from rlmesh_gym.policy.episodes import Episodes
    from rlmesh_gym.policy.planning.chunks import Lanes
    from rlmesh_gym.policy.planning.ensemble import EnsembleRule
    from rlmesh_gym.policy.stats import PolicyStats
    from rlmesh_gym.rpc import TimeoutsLike, TLSLike


class RemotePolicy:
    """``policy(observations) -> actions`` for N lanes, against one model endpoint.

    Call it once per env step, with the observations of all lanes. The model is asked only for the
    lanes that need a plan, all in one request; the others replay what is left of their chunks.

    **Chunks.** With ``execution_horizon=h`` a plan is up to ``h`` actions: the first acts now, the
    rest follow without a call. Replay is per lane: where an episode begins, its lane plans from its
    own first observation, and the others go on undisturbed. Frames beyond ``h`` are never used, and
    a model that sends fewer is asked again earlier.

    **Episodes.** With a remote env, ``envs`` may be any stack of wrappers around it; boundaries and
    episode ids come from its lane table, and ``episode_start`` is not looked at. With any other env
    ids are minted here, and boundaries come from what the policy is told: ``episode_start`` in
    :meth:`predict`, :meth:`observe_step` after each step (which knows the autoreset mode), or
    :meth:`reset`. A lane without a running episode, such as one that awaits its reset under
    NEXT_STEP, is not predicted; its action is legal and means nothing.

    **Planning more often.** ``replan_interval=r`` plans a lane again ``r`` steps after its last
    plan, and ``ensemble`` combines what several plans say of one step. ``coalesce=s`` sends lanes
    with at most ``s`` frames left along with a request that goes out anyway: fewer calls, more
    rows.

    **Planning ahead.** ``prefetch=True`` asks for a lane's next chunk while the last frames replay,
    from the newest observation, early enough by the last answers' time. Of that chunk exactly the
    frames are dropped whose steps the lane has taken meanwhile; at an episode's start nothing is.
    With ``replan_interval`` such a chunk is used as soon as it is there, else when the old one is
    used up.

    **One request or several.** The rows of a plan go out in one request. Models without a spec that
    the released package serves may take one observation at a time only, or answer several rows with
    a single frame though they plan ahead for one row. So where the first request for several rows
    is refused as an internal error, its rows are sent again as one-row requests in flight together,
    and where it is answered with one frame though more were asked for, the next plan is sent so. If
    one-row requests are answered where several rows were refused, or give longer chunks, it stays
    so; else all rows go together again. A model that says it gives one frame is not tried. After a
    lost connection this is found out anew.

    **Observation history.** When the endpoint asks for it, the observations of replayed steps go
    out with the lane's next request, with consecutive steps. After a request that failed, or was
    given up on its way, the model is told to forget its episodes, and the rows owed are sent once
    more, so what it stacks never has a gap; frames older than the last good answer are lost to it.

    **Ends.** Ended episodes are evicted without waiting; if the model refuses, a later step gives a
    warning. :meth:`close` evicts what is left and releases the adapter.

    **Errors.** Every error names the endpoint, the env id under which the policy is known there and
    the episodes of the request. After any error the policy can be used again: the same call can be
    repeated, no frame was taken, and the model is set up anew where that is needed. A
    ``ModelError`` with code ``INVALID_RESPONSE`` means an answer without frames, with another
    number of rows, with NaN, or with a value outside a Discrete or MultiDiscrete. Actions outside a
    Box, or Text that does not fit, are passed on, since envs commonly clip them; a warning tells
    the first per leaf. A late answer is never used. After Ctrl-C the policy goes on too, with new
    plans for all lanes.

    Not safe for use by several threads at once.

    Args:
        address: Where the model is served.
        envs: The env that it acts in: a remote or local vector env, a single env, or a
            Stable-Baselines3 vector env. None when the spaces are given.
        single_observation_space: Space of one lane's observation, in place of the env's.
        single_action_space: Space of one lane's action, likewise.
        num_envs: Number of lanes without ``envs``; 1 if omitted.
        execution_horizon: Frames replayed of one plan, 1 to 1024.
        replan_interval: Steps after which a lane plans again, at most the horizon, which is the
            default.
        coalesce: Frames that a lane may have left to go along with a request.
        ensemble: ``"newest"``, ``"mean"``, ``"exponential"`` or a callable; see
            :class:`~rlmesh_gym.policy.planning.ensemble.EnsembleReplay`.
        prefetch: Ask for chunks ahead of time; needs a horizon of 2 or more.
        token: What the server asks for, else ``RLMESH_GYM_TOKEN``.
        tls: None or False for none, True for the system's roots, or settings.
        timeouts: None, seconds, a mapping or ``Timeouts``.

    Attributes:
        endpoint: The address, for messages.
        env_id: UUIDv7 that names this policy's env on the endpoint.
        num_envs: Number of lanes.
        single_observation_space: Space of one lane's observation.
        single_action_space: Space of one lane's action.
        execution_horizon: Frames replayed of one plan.
        closed: Whether :meth:`close` was called.
        codecs: Codecs of one observation and of one action.
        lane_policy: What asks the model and replays the chunks, in leaves; a run drives it too.

    Raises:
        ConfigurationError: Options that cannot work; nothing was sent.
        UnsupportedSpaceError: A space has no form on the wire; nothing was sent.
        UnavailableError: Nothing listens there.
        ProtocolError: Not a model endpoint.
        ModelError: The model refuses the env or the horizon.
    """

    def __init__(
        self,
        address: str,
        envs: Any = None,
        *,
        single_observation_space: gymnasium.Space[Any] | None = None,
        single_action_space: gymnasium.Space[Any] | None = None,
        num_envs: int | None = None,
        execution_horizon: int = 1,
        replan_interval: int | None = None,
        coalesce: int = 0,
        ensemble: EnsembleRule = "newest",
        prefetch: bool = False,
        token: str | None = None,
        tls: TLSLike = None,
        timeouts: TimeoutsLike = None,
    ) -> None:
        schedule = PlanSchedule(execution_horizon, replan_interval, coalesce, prefetch=prefetch)
        check_rule(ensemble)
        view = view_env(envs, single_observation_space, single_action_space, num_envs)
        self.num_envs: int = view.num_envs
        self.single_observation_space: gymnasium.Space[Any] = view.single_observation_space
        self.single_action_space: gymnasium.Space[Any] = view.single_action_space
        self.execution_horizon = execution_horizon
        self.env_id: str = str(uuid6.uuid7())
        self.closed: bool = False
        self._episodes = self._own_episodes = view.episodes
        self.codecs: tuple[SpaceCodec, SpaceCodec] = (
            SpaceCodec(view.single_observation_space, "observation"),
            SpaceCodec(view.single_action_space, "action"),
        )
        session = ModelSession.open(address, token=token, tls=tls, timeouts=timeouts)
        self.endpoint: str = session.endpoint
        self.lane_policy: LanePolicy = LanePolicy(
            session,
            env_id=self.env_id,
            env_spec=view.env_spec,
            codecs=self.codecs,
            num_envs=view.num_envs,
            schedule=schedule,
            ensemble=ensemble,
        )
        try:
            self.lane_policy.adapter.resolve()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"{type(self).__name__}({self.endpoint!r}, num_envs={self.num_envs}, "
            f"execution_horizon={self.execution_horizon}{state})"
        )

    def __reduce__(self) -> NoReturn:
        raise UnsupportedCallError(
            f"{self.endpoint}: a RemotePolicy is bound to its process and its env's episodes, so "
            "it can be neither copied nor pickled; make one in each process, from the address"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def stats(self) -> PolicyStats:
        """Counts and times so far, a copy."""
        return copy.deepcopy(self.lane_policy.stats)

    def __call__(self, observations: Any) -> Any:
        """Give the actions for the present observations of all lanes; see :meth:`predict`."""
        return self.predict(observations)[0]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """Give the actions for the present observations, in Stable-Baselines3's form.

        Blocks only when a lane needs a plan that is not there, up to ``timeouts.predict``.

        Args:
            observation: Batch from the vector env, arrays of shape ``(num_envs, *shape)``. With one
                lane a single, unbatched observation too. Not kept, and not changed.
            state: Given back as it is; the lanes' state is in here.
            episode_start: Mask ``(num_envs,)``, true where the observation is the first of an
                episode. Not looked at with a remote env, whose lane table knows.
            deterministic: Ignored: the model decides.

        Returns:
            ``(actions, state)``. The actions are a batch in the vector form of the action space,
            for an unbatched observation a single action as ``single_action_space.sample()`` gives
            it. Arrays are the caller's own.

        Raises:
            ClosedError: ``close`` was called.
            CodecError: The observation does not fit its space; nothing was sent.
            ConfigurationError: ``episode_start`` has another shape.
            ModelError: The model failed, or its answer is not valid.
            DeadlineError: No answer in time.
            UnavailableError: The model is gone.
        """
        del deterministic
        self._check_open("predict")
        is_batched = self.num_envs > 1 or not is_unbatched(
            self.single_observation_space, observation
        )
        observation_codec, action_codec = self.codecs
        if is_batched:
            leaves = observation_codec.flatten(observation, self.num_envs)
        else:
            leaves = observation_codec.flatten_row(observation)
        actions = self.lane_policy.act(leaves, lambda: self._episodes.look(episode_start))
        if is_batched:
            return action_codec.unflatten(actions, self.num_envs), state
        return action_codec.unflatten_row(actions, 0), state

    def observe_step(self, terminations: ArrayLike, truncations: ArrayLike) -> None:
        """Take in the flags of a step of a local env, so that episodes are kept apart.

        Call it after ``envs.step``, before the next observations come. What follows from an ended
        episode depends on the env's autoreset mode. Remote envs do not need it.

        Args:
            terminations: Mask ``(num_envs,)``.
            truncations: Mask ``(num_envs,)``.

        Raises:
            ConfigurationError: A mask of another shape.
        """
        self._episodes.observe_step(terminations, truncations)

    def reset(self, lanes: Lanes = None) -> None:
        """Drop plans, so that the next call plans anew.

        With a local env the lanes' next observations begin new episodes; with a remote one its lane
        table says whether they do.

        Args:
            lanes: An index, several indices, a boolean mask, or None for all lanes.

        Raises:
            ClosedError: ``close`` was called.
            ConfigurationError: Lanes that do not exist.
        """
        self._check_open("reset")
        self.lane_policy.planner.flush(lanes)
        self._episodes.restart(lanes)

    def lend(self, episodes: Episodes) -> None:
        """Take the lanes' episodes from elsewhere until :meth:`take_back`, as in a run."""
        self._start_over()
        self._own_episodes, self._episodes = self._episodes, episodes

    def take_back(self, episodes: Episodes) -> None:
        """End what :meth:`lend` began; the lanes plan anew."""
        if self._episodes is episodes:
            self._episodes = self._own_episodes
            self._start_over()
            self._episodes.restart(None)

    def _start_over(self) -> None:
        self.lane_policy.planner.flush()
        self.lane_policy.adapter.evictions.keep(())  # Whose they were does not see them end.

    def close(self) -> None:
        """Release the model's adapter and disconnect, within ``timeouts.close``.

        Idempotent; never raises for a model that is gone.
        """
        self.closed = True
        self.lane_policy.adapter.close()

    def _check_open(self, operation: str) -> None:
        if self.closed:
            raise ClosedError(f"{self.endpoint}: {operation} after close()")
