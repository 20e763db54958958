"""The adapter that a model endpoint holds for one policy: set up, asked, told of ends, released."""

from __future__ import annotations

import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.errors import ModelError, ProtocolError, RemoteError
from rlmesh_gym.model import RouteNeeds
from rlmesh_gym.policy.episodes import name_few
from rlmesh_gym.policy.evictions import EpisodeEvictions
from rlmesh_gym.policy.history import ObservationHistory
from rlmesh_gym.policy.planning.plan import AnswerReader, Plan
from rlmesh_gym.rpc import HistoryRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import EnvSpec, Leaves, SpaceCodec
    from rlmesh_gym.policy.any_session import AnyModelSession
    from rlmesh_gym.policy.episodes import Boundaries
    from rlmesh_gym.policy.stats import PolicyStats
    from rlmesh_gym.policy.watching import PlanWatcher
    from rlmesh_gym.rpc import AnyPending


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
        horizon: Frames asked for.
        grouping: How the rows of a plan are put into requests, if it is not to be found out.
        warn: Takes what the user should know.

    Attributes:
        native_chunk: Frames that the model says it gives; None if it does not say.
        history: Observations of replayed steps, None unless the endpoint asks for them.
        evictions: What the model is told of episodes that are over.
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
        self.native_chunk: int | None = None
        self.history: ObservationHistory | None = None
        self.evictions: EpisodeEvictions = EpisodeEvictions(session, env_id, stats, warn)
        self.watcher: PlanWatcher | None = None
        self._finds_grouping = grouping is None
        self._env_spec = env_spec
        self._observation_codec = observation_codec
        self._num_envs = num_envs
        self._horizon = horizon
        self._stats = stats
        self._reader = AnswerReader(
            action_codec,
            horizon,
            stats,
            warn=lambda detail: warn(
                f"{session.endpoint}: the model's actions leave the action space ({detail}); they "
                "are passed on as they are, and this is said once per leaf"
            ),
            explain=self._explain,
            on_answer=self._note_answer,
        )
        self._positions: NDArray[np.intp] = np.arange(num_envs)
        self._is_resolved = False
        self._was_asked = False
        self._rows_were_refused = False

    def resolve(self, episode_ids: Sequence[str] = ()) -> None:
        """Set the model up for the env, if that is not done; an error names the episodes."""
        if self._is_resolved and self.session.is_streaming:
            return
        self._is_resolved = False
        if not self.session.is_streaming:  # Behind a new stream may be another server.
            if self._finds_grouping:
                self.grouping = RowGrouping.UNKNOWN
            self._rows_were_refused = False
            self.evictions.recall()
        self._was_asked = True
        try:
            pending = self.session.resolve_adapter(
                self.env_id,
                self._env_spec,
                execution_horizon=self._horizon,
                delivers_history=self.session.takes_history,
            )
            response: Any = pending.result(self.session.timeouts.resolve)
        except RemoteError as error:
            self._explain(error, episode_ids)
            raise
        if isinstance(response, RouteNeeds):
            self.native_chunk, wants_history = response.native_chunk, response.history is not None
        else:
            told = response.HasField("native_chunk")
            self.native_chunk = response.native_chunk if told else None
            wants_history = response.HasField("history")
        if not wants_history:
            self.history = None
        elif self.history is None:
            self.history = ObservationHistory(self._num_envs)
        self._is_resolved = True

    def plan(
        self, lanes: NDArray[np.intp], observations: Leaves, bounds: Boundaries, step: int
    ) -> Plan:
        """Send the requests for a plan of at least one lane, and do not wait.

        ``observations`` and ``bounds`` are those of *all* lanes; steps are the policy's own count.
        """
        self.evictions.collect()
        ids = bounds.rows(lanes).ids
        self.resolve(ids)
        self.evictions.resend()
        if self.watcher is not None:
            observations = self.watcher.transform(step, lanes, ids, observations)
        groups = [self._positions[: len(lanes)]]
        if len(lanes) > 1 and self.grouping in (RowGrouping.PROBING, RowGrouping.APART):
            groups = np.split(groups[0], len(lanes))
        timeout = self.session.timeouts.predict
        deadline = None if timeout is None else time.monotonic() + timeout
        begun = time.perf_counter()
        self.evictions.note_asked(ids)
        try:
            requests: list[tuple[NDArray[np.intp], AnyPending]] = []
            for rows in groups:
                asked = lanes if len(groups) == 1 else lanes[rows]
                requests.append((rows, self._send(asked, observations, bounds, step)))
        except RemoteError as error:
            self._explain(error, ids)
            self._note_failure(error)
            if self.history is not None:  # Some of the rows may have gone out.
                self.evictions.forget(ids)
            raise
        self._stats.milliseconds["encode"] += 1e3 * (time.perf_counter() - begun)
        self._stats.calls += len(requests)
        self._stats.rows += len(lanes)
        undo = None if self.history is None else self.history.deliver(lanes, step)
        return Plan(
            lanes,
            ids,
            step,
            requests,
            reader=self._reader,
            deadline=deadline,
            on_failure=partial(self._take_back, undo),
        )

    def _take_back(
        self,
        undo: NDArray[np.int64] | None,
        plan: Plan,
        rows: NDArray[np.intp],
        error: BaseException | None,
    ) -> None:
        """Count rows of a plan as not delivered: they failed, or nobody wants their answer."""
        if self.history is not None and undo is not None:
            self.history.restore(plan.lanes[rows], undo[rows])
            self.evictions.forget([plan.episode_ids[row] for row in rows])
        self._note_failure(error)

    def learn(self, plan: Plan) -> None:
        """Take from an answered plan whether rows must be asked for one by one."""
        is_settled = self.grouping in (RowGrouping.TOGETHER, RowGrouping.APART)
        is_probing = self.grouping is RowGrouping.PROBING
        # Joint while it is probed, or the other way round: sent before the question came up.
        if is_settled or len(plan.lanes) == 1 or plan.is_joint is is_probing:
            return
        is_chunked = plan.num_frames > 1
        if is_probing:
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
        """Take in that an answer came; refuse one to another request."""
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

    def start_over(self, bounds: Boundaries) -> None:
        """Go on over a new connection, as what went out over the old one may be half a request.

        The model is told to end the episodes that run no more, and to forget what it has stacked of
        the others.
        """
        self.session.hang_up()
        running = [bounds.episode_ids[lane] for lane in np.flatnonzero(bounds.active).tolist()]
        self.evictions.keep(running)
        if self.history is not None:
            self.evictions.forget(running)

    def release(self, reason: str, timeout: float | None) -> None:
        """Release the adapter, if the model was ever asked for one; the session stays open."""
        if self._was_asked:
            self.session.release_adapter(self.env_id, reason).result(timeout)

    def close(self) -> None:
        """Release the adapter and close the session, within ``timeouts.close``; never raises."""
        if self._is_resolved:
            ids = self.evictions.end_all()
            self.session.close("policy closed", env_id=self.env_id, episode_ids=ids)
        else:
            self.session.close()

    def _send(
        self, lanes: NDArray[np.intp], observations: Leaves, bounds: Boundaries, step: int
    ) -> AnyPending:
        history: list[HistoryRows] = []
        if self.history is not None:
            for at, owing, leaves in self.history.rows(lanes, step):
                packed = self._pack(at, owing, leaves, bounds, is_history=True)
                history.append(HistoryRows(at, *packed))
                self._stats.history_rows += len(owing)
        if len(lanes) != self._num_envs:
            observations = [leaf[lanes] for leaf in observations]
        rows, episodes = self._pack(step, lanes, observations, bounds, is_history=False)
        return self.session.predict(self.env_id, rows, episodes, history=history, step=step)

    def _pack(
        self,
        step: int,
        lanes: NDArray[np.intp],
        rows: Leaves,
        bounds: Boundaries,
        *,
        is_history: bool,
    ) -> tuple[Any, Sequence[tuple[str, int | None]]]:
        """Return rows, and their episodes, as ``predict`` takes them; the watcher hears of them."""
        ids, episodes = bounds.rows(lanes)
        if self.watcher is not None:
            self.watcher.sending(step, lanes, ids, rows, is_history=is_history)
        return self.session.pack(self._observation_codec, rows, len(lanes)), episodes

    def _note_failure(self, error: BaseException | None) -> None:
        if not isinstance(error, ModelError):
            if isinstance(error, RemoteError) and not isinstance(error, TimeoutError):
                self._is_resolved = False
        elif not error.is_recoverable or error.code == "NOT_CONFIGURED":
            self._is_resolved = False

    def _explain(self, error: RemoteError, episode_ids: Sequence[str]) -> RemoteError:
        """Name env and episodes in the error, in its text and, on a ModelError, as attributes."""
        if isinstance(error, ModelError):
            error.env_id = error.env_id or self.env_id
            error.episode_ids = error.episode_ids or tuple(episode_ids)
        text = str(error)
        told = [] if self.env_id in text else [f"env {self.env_id}"]
        if episode_ids and not any(episode_id in text for episode_id in episode_ids):
            told.append(f"episodes {name_few(episode_ids)}")
        if told:
            error.args = (f"{text} ({'; '.join(told)})",)
        return error
