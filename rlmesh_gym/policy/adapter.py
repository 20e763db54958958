"""The adapter that a model endpoint holds for one policy: set up, asked, told of ends, released."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import ModelError, ProtocolError, RemoteError
from rlmesh_gym.model import RouteNeeds
from rlmesh_gym.policy.evictions import EpisodeEvictions
from rlmesh_gym.policy.history import ObservationHistory
from rlmesh_gym.policy.planning.plan import ActionReader, Plan
from rlmesh_gym.rpc import HistoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import EnvSpec, Leaves, SpaceCodec
    from rlmesh_gym.policy.any_session import AnyModelSession
    from rlmesh_gym.policy.episodes import Boundaries
    from rlmesh_gym.policy.stats import PolicyStats
    from rlmesh_gym.policy.watching import PlanWatcher
    from rlmesh_gym.rpc import AnyPending

__all__ = ["ModelAdapter", "RowGrouping"]

_NAMED_EPISODES = 4


class RowGrouping(Enum):
    """How the rows of a plan are put into requests."""

    UNKNOWN = "unknown"
    """All in one request; no answer yet has told whether the model takes that."""

    TOGETHER = "together"
    """All in one request."""

    PROBING = "probing"
    """Several rows gave a single frame, or were refused; the next plan tries rows one by one."""

    APART = "apart"
    """One request per row, in flight together: only so does the model answer, or give chunks."""


class ModelAdapter:
    """One policy's adapter on a model endpoint.

    It is resolved before the first plan, and again after anything that may have cost it: a lost
    connection, behind which another server may answer now, or an error that the server does not
    call recoverable. Resolving is idempotent.

    A plan that fails leaves no half-known state behind. When the endpoint takes history, its
    episodes are forgotten there (a server may have taken in some of the rows), and the rows owed
    are sent again with the next plan.

    Args:
        session: An open session, closed by :meth:`close`.
        env_id: Key of the adapter.
        env_spec: Spaces and metadata of the env.
        observation_codec: Codec of one observation.
        action_codec: Codec of one action.
        num_envs: Number of lanes.
        horizon: Frames asked for.
        stats: Takes counts and times.
        grouping: How the rows of a plan are put into requests, if it is not to be found out.
        warn: Takes what the user should know.

    Attributes:
        session: The session.
        env_id: Key of the adapter.
        grouping: How the rows of a plan are put into requests.
        native_chunk: Frames that the model says it gives; None if it does not say.
        history: Observations of replayed steps, None unless the endpoint asks for them.
        watcher: Is told what goes out and comes back, and transforms it; None for nobody.
    """

    def __init__(
        self,
        session: AnyModelSession,
        *,
        env_id: str,
        env_spec: EnvSpec,
        observation_codec: SpaceCodec,
        action_codec: SpaceCodec,
        num_envs: int,
        horizon: int,
        stats: PolicyStats,
        grouping: RowGrouping | None,
        warn: Callable[[str], None],
    ) -> None:
        self.session = session
        self.env_id = env_id
        self.grouping: RowGrouping = grouping or RowGrouping.UNKNOWN
        self.watcher: PlanWatcher | None = None
        self._warn = warn
        self._finds_grouping = grouping is None
        self.native_chunk: int | None = None
        self.history: ObservationHistory | None = None
        self._env_spec = env_spec
        self._observation_codec = observation_codec
        self._num_envs = num_envs
        self._horizon = horizon
        self._stats = stats
        self._reader = ActionReader(action_codec, horizon, self._warn_out_of_bounds)
        self._is_resolved = False
        self._was_asked = False
        self._rows_were_refused = False
        self._evictions = EpisodeEvictions(session, env_id, stats, warn)

    def resolve(self, episode_ids: Sequence[str] = ()) -> None:
        """Set the model up for the env, if that is not done.

        Args:
            episode_ids: Episodes to name in an error.

        Raises:
            ModelError: The model refuses the env or the horizon.
            DeadlineError: No answer within ``timeouts.resolve``.
            UnavailableError: The connection was lost.
        """
        if self._is_resolved and self.session.is_streaming:
            return
        self._is_resolved = False
        if not self.session.is_streaming:  # Behind a new stream may be another server.
            if self._finds_grouping:
                self.grouping = RowGrouping.UNKNOWN
            self._rows_were_refused = False
            self._evictions.recall()
        self._was_asked = True
        try:
            pending = self.session.resolve_adapter(
                self.env_id,
                self._env_spec,
                execution_horizon=self._horizon,
                delivers_history=self.session.takes_history,
            )
            response = pending.result(self.session.timeouts.resolve)
        except RemoteError as error:
            self._explain(error, episode_ids)
            raise
        self.native_chunk, wants_history = _needs(response)
        if not wants_history:
            self.history = None
        elif self.history is None:
            self.history = ObservationHistory(self._num_envs)
        self._is_resolved = True

    def plan(
        self, lanes: NDArray[np.intp], observations: Leaves, bounds: Boundaries, step: int
    ) -> Plan:
        """Send the requests for a plan of some lanes, and do not wait.

        Args:
            lanes: At least one lane.
            observations: Observations of *all* lanes.
            bounds: Their episodes.
            step: Number of this step in the policy's count.

        Returns:
            What is pending.

        Raises:
            RemoteError: The connection was lost, or a needed :meth:`resolve` failed.
        """
        self._evictions.collect()
        ids = [bounds.episode_ids[lane] for lane in lanes]
        self.resolve(ids)
        self._evictions.resend()
        watcher = self.watcher
        if watcher is not None:
            observations = watcher.transform(step, lanes, ids, observations)
        whole = np.arange(len(lanes))
        apart = self.grouping in (RowGrouping.PROBING, RowGrouping.APART) and len(lanes) > 1
        groups = np.split(whole, len(whole)) if apart else [whole]
        timeout = self.session.timeouts.predict
        deadline = None if timeout is None else time.monotonic() + timeout
        begun = time.perf_counter()
        self._evictions.note_asked(ids)
        try:
            requests = [
                (rows, self._send(lanes[rows], observations, bounds, step)) for rows in groups
            ]
        except RemoteError as error:
            self._explain(error, ids)
            self._note_failure(error)
            if self.history is not None:  # Some of the rows may have gone out.
                self._evictions.forget(ids)
            raise
        self._stats.milliseconds["encode"] += 1e3 * (time.perf_counter() - begun)
        self._stats.calls += len(requests)
        self._stats.rows += len(lanes)
        undo = None if self.history is None else self.history.deliver(lanes, step)

        def fail(plan: Plan, rows: NDArray[np.intp], error: BaseException | None) -> None:
            if self.history is not None and undo is not None:
                self.history.restore(lanes[rows], undo[rows])
                self._evictions.forget([plan.episode_ids[row] for row in rows])
            self._note_failure(error)

        return Plan(
            lanes,
            ids,
            step,
            requests,
            reader=self._reader,
            deadline=deadline,
            stats=self._stats,
            explain=self._explain,
            on_failure=fail,
            on_answer=self._note_answer,
        )

    def learn(self, plan: Plan) -> None:
        """Take from an answered plan whether rows must be asked for one by one."""
        is_settled = self.grouping in (RowGrouping.TOGETHER, RowGrouping.APART)
        if is_settled or len(plan.lanes) == 1:
            return
        if plan.is_joint is (self.grouping is RowGrouping.PROBING):
            return  # It was sent before the question came up.
        is_chunked = plan.num_frames > 1
        if self.grouping is RowGrouping.PROBING:
            apart = is_chunked or self._rows_were_refused
            self.grouping = RowGrouping.APART if apart else RowGrouping.TOGETHER
        elif is_chunked or 1 in (self._horizon, self.native_chunk):
            self.grouping = RowGrouping.TOGETHER
        else:
            self.grouping = RowGrouping.PROBING

    def should_split(self, plan: Plan, error: ModelError) -> bool:
        """Decide whether a refused plan is asked for again, one row at a time.

        Only where several rows in one request were never answered yet, and by the answer that the
        released package gives for a model which takes one observation at a time. If the rows fail
        one by one too, their own error is the one to tell.
        """
        is_untried = self.grouping is RowGrouping.UNKNOWN or self._rows_were_refused
        is_refusal = error.code == "INTERNAL" and not error.is_recoverable
        if not (is_untried and plan.is_joint and is_refusal) or self.history is not None:
            return False
        if self.grouping is not RowGrouping.UNKNOWN:  # Another plan has been told already.
            return True
        self.grouping = RowGrouping.PROBING
        self._rows_were_refused = True
        return True

    def _note_answer(self, pending: AnyPending, response: Any) -> None:
        """Take in that an answer came.

        Raises:
            ProtocolError: It is the answer to another request.
        """
        context = response.context
        if context is not None and response.HasField("context"):
            sent = (self.session.session_id, self.env_id, pending.context.request_id)
            came = (context.session_id, context.env_id, context.request_id)
            if sent != came:
                raise ProtocolError(
                    "predict: the answer is for another request: expected (session, env, request) "
                    f"{sent}, got {came}; the model must mirror the request's context",
                    endpoint=self.session.endpoint,
                    operation="predict",
                )
        if self.watcher is not None:
            self.watcher.answered(pending)

    def evict(self, episode_ids: Iterable[str]) -> None:
        """Tell the model that episodes are over, without waiting.

        Episodes that it was never asked about, or told about already, are left out. An answer that
        says no becomes a warning with one of the next plans: the actions are right all the same.
        """
        self._evictions.end(episode_ids)

    def start_over(self, bounds: Boundaries) -> None:
        """Go on over a new connection, as what went out over the old one may be half a request.

        The model is told to end the episodes that run no more, and to forget what it has stacked of
        the others.
        """
        self.session.hang_up()
        lanes = np.flatnonzero(bounds.active).tolist()
        running = [bounds.episode_ids[lane] for lane in lanes]
        self._evictions.keep(running)
        if self.history is not None:
            self._evictions.forget(running)

    def release(self, reason: str, timeout: float | None) -> None:
        """Release the adapter over a session that stays open, if the model was ever asked for one.

        Raises:
            RemoteError: The model refused, or did not answer within ``timeout`` seconds.
        """
        if self._was_asked:
            self.session.release_adapter(self.env_id, reason).result(timeout)

    def close(self, reason: str = "policy closed") -> None:
        """Release the adapter and close the session, within ``timeouts.close``; never raises."""
        if self._is_resolved:
            self.session.close(reason, env_id=self.env_id, episode_ids=self._evictions.end_all())
        else:
            self.session.close()

    def _send(
        self, lanes: NDArray[np.intp], observations: Leaves, bounds: Boundaries, step: int
    ) -> AnyPending:
        session, watcher, codec = self.session, self.watcher, self._observation_codec
        ids, seeds = bounds.episode_ids, bounds.seeds
        history: list[HistoryRows] = []
        if self.history is not None:
            for at, owing, leaves in self.history.rows(lanes, step):
                episodes = [(ids[lane], seeds[lane]) for lane in owing]
                if watcher is not None:
                    names = [name for name, _ in episodes]
                    watcher.sending(at, owing, names, leaves, is_history=True)
                history.append(HistoryRows(at, session.pack(codec, leaves, len(owing)), episodes))
                self._stats.history_rows += len(owing)
        if len(lanes) != self._num_envs:
            observations = [leaf[lanes] for leaf in observations]
        episodes = [(ids[lane], seeds[lane]) for lane in lanes]
        if watcher is not None:
            names = [name for name, _ in episodes]
            watcher.sending(step, lanes, names, observations, is_history=False)
        return session.predict(
            self.env_id,
            session.pack(codec, observations, len(lanes)),
            episodes,
            history=history,
            step=step,
        )

    def _note_failure(self, error: BaseException | None) -> None:
        if not isinstance(error, ModelError):
            if isinstance(error, RemoteError) and not isinstance(error, TimeoutError):
                self._is_resolved = False
        elif not error.is_recoverable or error.code == "NOT_CONFIGURED":
            self._is_resolved = False

    def _explain(self, error: RemoteError, episode_ids: Sequence[str]) -> None:
        """Name env and episodes in the error, in its text and, on a ModelError, as attributes."""
        if isinstance(error, ModelError):
            error.env_id = error.env_id or self.env_id
            error.episode_ids = error.episode_ids or tuple(episode_ids)
        text = str(error)
        told = [] if self.env_id in text else [f"env {self.env_id}"]
        if episode_ids and not any(episode_id in text for episode_id in episode_ids):
            shown = ", ".join(episode_ids[:_NAMED_EPISODES])
            more = len(episode_ids) - _NAMED_EPISODES
            told.append(f"episodes {shown}" + (f" and {more} more" if more > 0 else ""))
        if told:
            error.args = (f"{text} ({'; '.join(told)})",)

    def _warn_out_of_bounds(self, detail: str) -> None:
        message = (
            f"{self.session.endpoint}: the model's actions leave the action space ({detail}); they "
            "are passed on as they are, and this is said once per leaf"
        )
        self._warn(message)


def _needs(answer: Any) -> tuple[int | None, bool]:
    """Return the model's native chunk and whether it wants history, from either kind of answer."""
    if isinstance(answer, RouteNeeds):
        return answer.native_chunk, answer.history is not None
    native = answer.native_chunk if answer.HasField("native_chunk") else None
    return native, answer.HasField("history")
