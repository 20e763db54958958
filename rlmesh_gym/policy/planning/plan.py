"""One set of lanes being planned: the requests in flight for it, and the chunks they become."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.codec import LeavesValue
from rlmesh_gym.errors import (
    UNREADABLE,
    CodecError,
    DeadlineError,
    ModelError,
    RemoteError,
    why_unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.policy.stats import PolicyStats
    from rlmesh_gym.rpc import AnyPending


class AnswerReader:
    """Turns predict answers into checked action chunks.

    NaN and values outside a Discrete or MultiDiscrete are errors. Values outside a Box or Text that
    does not fit are not: environments decide about those, many clip. The first per leaf is told by
    ``warn``.

    Args:
        codec: Codec of one action.
        horizon: Frames taken of an answer; further ones are not even decoded.
        warn: Called with a text when an action is out of bounds, once per leaf.
        explain: Names endpoint, env and episodes in an error, and returns it.
        on_answer: Called with each answer that came, before it is read; may refuse it.
    """

    def __init__(
        self,
        codec: SpaceCodec,
        horizon: int,
        stats: PolicyStats,
        *,
        warn: Callable[[str], None],
        explain: Callable[[RemoteError, Sequence[str]], RemoteError],
        on_answer: Callable[[AnyPending, Any], None],
    ) -> None:
        self._codec = codec
        self._horizon = horizon
        self._stats = stats
        self._warn = warn
        self._explain = explain
        self._on_answer = on_answer
        self._told: set[str] = set()

    def read(
        self, pending: AnyPending, episode_ids: Sequence[str], deadline: float | None
    ) -> list[NDArray[Any]]:
        """Wait for one answer with a row per episode, and read its frames; see :class:`Plan`.

        Returns:
            Leaves of shape ``(rows, frames, *shape)``, fresh.
        """
        begun = time.perf_counter()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            response = pending.result(left)
        except DeadlineError as error:
            waited = pending.elapsed_ns / 1e9
            late = DeadlineError(
                f"predict: no answer within {waited:.3g} s; the model may still be at work and "
                "what it answers is dropped, raise timeouts.predict for slow ones",
                endpoint=error.endpoint,
                operation="predict",
            )
            raise self._explain(late, episode_ids) from error
        except RemoteError as error:
            self._explain(error, episode_ids)
            raise
        came = time.perf_counter()
        try:
            self._on_answer(pending, response)
            frames = self._frames(response.actions, len(episode_ids))
        except UNREADABLE as error:
            invalid = ModelError(
                f"predict: the answer is not valid: {why_unreadable(error)}",
                endpoint=pending.endpoint,
                operation="predict",
                code="INVALID_RESPONSE",
                is_recoverable=True,
            )
            raise self._explain(invalid, episode_ids) from error
        envelope: Any = pending.response
        spent = self._stats.milliseconds
        spent["wait"] += 1e3 * (came - begun)
        spent["decode"] += 1e3 * (time.perf_counter() - came)
        spent["endpoint"] += envelope.endpoint_total_ns / 1e6
        spent["model"] += envelope.user_ns / 1e6
        return frames

    def _frames(self, actions: Sequence[Any], num_rows: int) -> list[NDArray[Any]]:
        frames = actions[: self._horizon]
        if not frames:
            message = "the answer holds no action frame, at least one is expected"
            raise CodecError(message, path="actions")
        if isinstance(frames[0], LeavesValue) and len(frames) == 1:
            # Handed over by a session of this process, which has checked them and made copies.
            leaves = self._codec.view(frames[0], num_rows)
            self._tell_out_of_bounds(leaves)
            return [leaf[:, np.newaxis] for leaf in leaves]
        place = 0
        try:
            if len(frames) == 1:
                leaves = self._codec.decode(frames[0], num_rows)
            else:
                leaves = self._codec.empty(len(frames) * num_rows)
                for place, frame in enumerate(frames):
                    self._codec.decode_into(frame, leaves, place * num_rows, num_rows)
        except CodecError as error:
            message = f"{error}; {num_rows} rows were asked for"
            raise CodecError(message, path=f"actions[{place}]") from error
        for index, path, detail in self._codec.out_of_domain(leaves)[:1]:
            frame_index, row = divmod(index, num_rows)
            message = f"row {row} at {path}: {detail}"
            raise CodecError(message, path=f"actions[{frame_index}]")
        self._tell_out_of_bounds(leaves)
        shape = len(frames), num_rows
        return [leaf.reshape(*shape, *leaf.shape[1:]).swapaxes(0, 1) for leaf in leaves]

    def _tell_out_of_bounds(self, leaves: Leaves) -> None:
        if len(self._told) == len(self._codec.paths):
            return
        for _, path, detail in self._codec.out_of_bounds(leaves):
            if path not in self._told:
                self._told.add(path)
                self._warn(f"{path}: {detail}")


class Plan:
    """Lanes, the requests that were sent for them, and where they stand in time.

    Args:
        lanes: The lanes, ``(k,)``.
        episode_ids: Episode of each of them.
        step: The policy's step whose observations were sent.
        requests: For each request, its rows as positions in ``lanes`` and what is pending.
        deadline: When the answers must be there, by ``time.monotonic()``; None for never.
        on_failure: Called with the plan, positions in ``lanes`` and the error, if any, for rows
            that fail or are given up; once for every row at most.

    Attributes:
        num_frames: Most frames of any answer; 0 until :meth:`chunk` has returned.
    """

    def __init__(
        self,
        lanes: NDArray[np.intp],
        episode_ids: Sequence[str],
        step: int,
        requests: Sequence[tuple[NDArray[np.intp], AnyPending]],
        *,
        reader: AnswerReader,
        deadline: float | None,
        on_failure: Callable[[Plan, NDArray[np.intp], BaseException | None], None],
    ) -> None:
        self.lanes = lanes
        self.episode_ids: tuple[str, ...] = tuple(episode_ids)
        self.step = step
        self.num_frames: int = 0
        self._requests = requests
        self._reader = reader
        self._deadline = deadline
        self._on_failure = on_failure
        self._is_wanted: NDArray[np.bool_] | None = None  # All of them.
        self._chunk: tuple[list[NDArray[Any]], NDArray[np.intp]] | None = None

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds from sending to the last answer, or until now."""
        return max(pending.elapsed_ns for _, pending in self._requests)

    @property
    def is_joint(self) -> bool:
        """Whether several rows went out in one request."""
        return len(self._requests) < len(self.lanes)

    @property
    def num_requests(self) -> int:
        """In how many requests the rows went out."""
        return len(self._requests)

    def done(self) -> bool:
        """Return whether :meth:`chunk` returns, or raises, without waiting."""
        return all(pending.done() for _, pending in self._requests)

    def chunk(self) -> tuple[list[NDArray[Any]], NDArray[np.intp]]:
        """Wait for the answers and give the lanes' chunks; the same ones when called again.

        Returns:
            Leaves of shape ``(k, frames, *shape)`` and the frames that count per lane, ``(k,)``.

        Raises:
            ModelError: The model or its server answered with an error, or with actions that are
                none of this space (``code`` is then ``"INVALID_RESPONSE"``).
            DeadlineError: Not in time. What comes later is never used.
            UnavailableError: The connection was lost.
        """
        if self._chunk is None:
            try:
                answers = []
                for rows, pending in self._requests:
                    ids = self.episode_ids
                    if len(self._requests) > 1:
                        ids = tuple([ids[row] for row in rows])
                    answers.append(self._reader.read(pending, ids, self._deadline))
            except BaseException as error:
                self.give_up(error)
                raise
            self._chunk = self._join(answers)
        return self._chunk

    def give_up(
        self, error: BaseException | None = None, rows: NDArray[np.bool_] | None = None
    ) -> None:
        """Let answers go unread; nothing changes where :meth:`chunk` has returned.

        ``rows`` is a mask ``(k,)``, None for all; ``error`` is what was wrong, if anything.
        """
        if self._chunk is not None:
            return
        wanted = self._is_wanted if self._is_wanted is not None else np.ones(len(self.lanes), bool)
        given_up = wanted if rows is None else wanted & rows
        self._is_wanted = wanted & ~given_up
        self._on_failure(self, np.flatnonzero(given_up), error)

    def _join(
        self, answers: Sequence[list[NDArray[Any]]]
    ) -> tuple[list[NDArray[Any]], NDArray[np.intp]]:
        """Bring ``(rows, frames, ...)`` per request into ``(k, frames, ...)`` for all lanes."""
        # An action space without leaves still has frames, which only the message shows.
        frames = [
            answer[0].shape[1] if answer else len(pending.result(0).actions)
            for (_, pending), answer in zip(self._requests, answers, strict=True)
        ]
        self.num_frames = max(frames)
        if len(answers) == 1:
            return answers[0], _equal_counts(len(self.lanes), self.num_frames)
        counts = np.empty(len(self.lanes), np.intp)
        for (rows, _), count in zip(self._requests, frames, strict=True):
            counts[rows] = count
        joined = [
            np.zeros((len(self.lanes), self.num_frames, *leaf.shape[2:]), leaf.dtype)
            for leaf in answers[0]
        ]
        for (rows, _), answer in zip(self._requests, answers, strict=True):
            for whole, leaf in zip(joined, answer, strict=True):
                whole[rows, : leaf.shape[1]] = leaf
        return joined, counts


@lru_cache(maxsize=64)
def _equal_counts(num_lanes: int, num_frames: int) -> NDArray[np.intp]:
    counts = np.full(num_lanes, num_frames, np.intp)
    counts.setflags(write=False)
    return counts
