"""One session's requests, each answered from start to end: decode, check, act, count, encode.

Knows the wire's messages and an environment behind :class:`ServedEnv`; nothing of streams. Which
thread calls, and what may run at the same time, is the caller's affair.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.env.v1 import interaction_pb2
from rlmesh_gym.codec import decode_meta_map, encode_meta_map, encode_png, without_misfits
from rlmesh_gym.codec.lane_infos import CONFORMANCE_KEY, column_of
from rlmesh_gym.codec.reset_arguments import RESET_MASK
from rlmesh_gym.errors import CodecError
from rlmesh_gym.rpc import EDITION, LARGE_BYTES, assemble
from rlmesh_gym.server.env.conformance import Conformance
from rlmesh_gym.server.env.episodes import EpisodeBook
from rlmesh_gym.server.env.refusals import (
    ErrorCode,
    InBandError,
    check_roll,
    failure,
    invalid,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlmesh_gym._proto.spaces.v1 import meta_pb2
    from rlmesh_gym.server.env.conformance import ValidationPolicy
    from rlmesh_gym.server.env.served_env import Lanes, Options, Outcome, ServedEnv, Warnings

    Buffers = list[bytes | memoryview]  # A large observation, left for the encoded answer.
    Verb = Callable[[Any, interaction_pb2.JoinResponse], Buffers | None]


T = TypeVar("T")


@dataclass(slots=True)
class Reply:
    """An answer and what it does to the stream."""

    response: interaction_pb2.JoinResponse | bytes  # Encoded already where it is large.
    closes: bool = False  # The server ends the stream after it.


def lanes_named(request: interaction_pb2.JoinRequest) -> Sequence[int]:
    """Return the lanes that a reset or step names; empty for all other requests."""
    kind = request.WhichOneof("kind")
    if kind == "step":
        return request.step.env_indices
    return request.reset.env_indices if kind == "reset" else ()


class Operations:
    """What a client may ask of one environment in one session.

    ``typed``: the client takes arrays as arrays (capability ``rlmesh_gym.arrays``). ``renew`` makes
    an environment anew that an earlier session has left broken, such as one whose worker died.
    """

    def __init__(
        self,
        env: ServedEnv,
        policy: ValidationPolicy,
        *,
        typed: bool = False,
        renew: Callable[[], ServedEnv | None] = lambda: None,
    ) -> None:
        self.env = env
        self._renew = renew
        self._was_reset = False
        self._typed = typed
        self._conformance = Conformance(env.action_codec, env.observation_codec, policy)
        self._episodes = EpisodeBook(env.num_envs, env.contract.autoreset_mode, typed=typed)
        self._verbs: dict[str | None, Verb] = {
            "reset": self._reset,
            "step": self._step,
            "render": self._render,
            "close": self._close,
            "configure": self._configure,
        }

    def answer(self, request: interaction_pb2.JoinRequest, *, queue_ns: int | None = None) -> Reply:
        """Answer one request, which may have queued; whatever goes wrong is in the answer."""
        begun = time.perf_counter_ns()
        response = interaction_pb2.JoinResponse(request_id=request.request_id)
        kind = request.WhichOneof("kind")
        observation, closes = None, kind == "close"
        try:
            verb: Verb = self._verbs.get(kind, _refuse_unknown)
            observation = verb(getattr(request, kind) if kind else None, response)
        except InBandError as refusal:
            closes = self._refuse(refusal, response)
        except CodecError as error:  # What the client sent; all else is acted on within _call.
            closes = self._refuse(invalid(str(error)), response)
        except Exception as error:  # A fault of this server must not take the stream with it.
            closes = self._refuse(failure(f"{kind} failed", error, None), response)
        if queue_ns is not None:
            response.queue_ns = queue_ns
        response.endpoint_total_ns = time.perf_counter_ns() - begun + (queue_ns or 0)
        if observation is not None:
            return Reply(assemble(response, observation))
        return Reply(response, closes)

    def _refuse(self, refusal: InBandError, response: interaction_pb2.JoinResponse) -> bool:
        """Fill in the error; return whether it ends the stream."""
        error = response.error  # Setting it clears whatever the answer already held.
        error.code = refusal.code
        error.message = refusal.message
        error.is_recoverable = refusal.recoverable
        error.debug_info = refusal.debug_info
        if refusal.cuts:
            error.interrupted_episodes.extend(self._episodes.interrupt(refusal.lanes))
        # Other lanes go on where only some were named.
        return not refusal.recoverable and refusal.lanes is None

    def _reset(
        self, request: interaction_pb2.ResetRequest, response: interaction_pb2.JoinResponse
    ) -> Buffers | None:
        lanes = self._lanes(request.env_indices, "reset", allowed=self.env.has_partial_reset)
        seeds, ids = list(request.seeds), list(request.episode_ids)
        if lanes is not None:
            for name, given in (("seeds", seeds), ("episode_ids", ids)):
                if given and len(given) != len(lanes):
                    raise invalid(f"reset: expected {len(lanes)} {name} or none, got {len(given)}")
        elif len(seeds) > self.env.num_envs:
            raise invalid(f"reset: expected at most {self.env.num_envs} seeds, got {len(seeds)}")
        options = None
        if request.HasField("options"):
            options = decode_meta_map(request.options, "$.options", typed=self._typed)
        begun = time.perf_counter_ns()
        outcome = self._call_reset(lanes, seeds, options)
        # The lanes are in new episodes from here on, whether or not the answer arrives in time.
        self._episodes.begin(*self._begun(lanes, ids, seeds, options))
        _check_time(request.timeout_ms, begun, "reset")
        encoding = time.perf_counter_ns()
        observation = self._encode("reset", response.reset, outcome, lanes, [])
        _note_times(response, outcome, encoding)
        return observation

    def _call_reset(self, lanes: Lanes, seeds: list[int], options: Options) -> Outcome:
        was_reset, self._was_reset = self._was_reset, True
        try:
            return _call("reset", lanes, lambda: self.env.reset(lanes, seeds, options))
        except InBandError:
            renewed = None if was_reset else _call("reset", lanes, self._renew)
            if renewed is None:
                raise
            self.env = renewed
            return _call("reset", lanes, lambda: renewed.reset(lanes, seeds, options))

    def _begun(
        self, lanes: Lanes, ids: list[str], seeds: list[int], options: Options
    ) -> tuple[Lanes, list[str], list[int]]:
        """Return the lanes that a reset began anew, with their ids and seeds."""
        mask = (options or {}).get(RESET_MASK)
        is_whole = lanes is None and not self.env.has_lane_operations
        if not is_whole or column_of(mask, self.env.num_envs) is None:
            return lanes, ids, seeds
        # A vector env's own way to reset some lanes: ids and seeds are those of the whole vector.
        named = np.flatnonzero(np.asarray(mask)).tolist()
        ids = [ids[lane] if lane < len(ids) else "" for lane in named]
        return named, ids, [seeds[lane] for lane in named if lane < len(seeds)]

    def _step(
        self, request: interaction_pb2.StepRequest, response: interaction_pb2.JoinResponse
    ) -> Buffers | None:
        decoding = time.perf_counter_ns()
        env = self.env
        lanes = self._lanes(request.env_indices, "step", allowed=env.has_lane_operations)
        rows = env.num_envs if lanes is None else len(lanes)
        action = env.action_codec.decode(request.action, rows)
        warnings = self._conformance.check("action", action, lanes)
        rolling = self._check_order()
        begun = time.perf_counter_ns()
        outcome = _call("step", lanes, lambda: env.step(lanes, action))
        encoding = time.perf_counter_ns()
        if rolling is not None:
            check_roll(rolling, outcome)
        records = _call(
            "step",
            lanes,
            lambda: self._episodes.advance(
                lanes,
                outcome.rewards,
                outcome.terminated,
                outcome.truncated,
                episode_ids=request.episode_ids,
                final_info=lambda row: env.final_info(outcome, row),
            ),
        )
        try:
            _check_time(request.timeout_ms, begun, "step")
            message = response.step
            observation = self._encode("step", message, outcome, lanes, warnings)
        except InBandError:
            # Those episodes are over all the same; the next step tells.
            self._episodes.keep(records)
            raise
        message.rewards.extend(outcome.rewards.tolist())
        message.terminated_mask = outcome.terminated.tobytes()
        message.truncated_mask = outcome.truncated.tobytes()
        backlog = self._episodes.take_backlog()
        if backlog or records:
            message.completed_episodes.extend([*backlog, *records])
        if lanes is not None:
            message.env_indices.extend(lanes)
        response.decode_ns = begun - decoding
        _note_times(response, outcome, encoding)
        return observation

    def _render(
        self, request: interaction_pb2.RenderRequest, response: interaction_pb2.JoinResponse
    ) -> None:
        indices = list(request.env_indices)
        if len(indices) > 1:
            raise unsupported(f"one lane can be rendered at a time, got {len(indices)}")
        lane = indices[0] if indices else 0
        if lane >= self.env.num_envs:
            raise invalid(f"render: lane {lane} of {self.env.num_envs} does not exist")
        begun = time.perf_counter_ns()
        frame = _call("render", None, lambda: self.env.render(lane), harmless=True)
        rendered = time.perf_counter_ns()
        png = _call("render", None, lambda: encode_png(frame), harmless=True)
        _check_time(request.timeout_ms, begun, "render")
        response.render.SetInParent()
        if png is not None:
            response.render.frame = png
            response.render.format = interaction_pb2.RenderFormat.RENDER_FORMAT_PNG
        response.user_ns = rendered - begun
        response.encode_ns = time.perf_counter_ns() - rendered

    def _close(
        self,
        request: interaction_pb2.CloseEnvsRequest,  # noqa: ARG002 - the reason changes nothing
        response: interaction_pb2.JoinResponse,
    ) -> None:
        response.close.SetInParent()
        episodes = [*self._episodes.take_backlog(), *self._episodes.interrupt(None)]
        response.close.final_episodes.extend(episodes)

    def _configure(
        self, request: interaction_pb2.ConfigureEnvRequest, response: interaction_pb2.JoinResponse
    ) -> None:
        edition = request.selected_workflow_edition
        if edition not in {"", EDITION}:
            raise InBandError(
                ErrorCode.ENV_ERROR_CODE_INVALID_ACTION,
                f"unknown workflow edition {edition!r}; this server speaks {EDITION}",
                recoverable=False,
            )
        response.configure.SetInParent()

    def _lanes(self, indices: Sequence[int], verb: str, *, allowed: bool) -> list[int] | None:
        if not indices:
            return None
        if not allowed:
            raise unsupported(
                f"this environment cannot {verb} some of its lanes; leave env_indices empty"
            )
        lanes = list(indices)
        if len(set(lanes)) != len(lanes):
            raise invalid(f"{verb}: duplicate lanes in {lanes}")
        if max(lanes) >= self.env.num_envs:
            raise invalid(f"{verb}: lane {max(lanes)} of {self.env.num_envs} does not exist")
        return lanes

    def _check_order(self) -> NDArray[np.bool_] | None:
        """Refuse a step of episodes that this session never began; return the lanes to roll."""
        mode = self.env.contract.autoreset_mode
        if mode is AutoresetMode.DISABLED:
            return None  # Stepping is the environment's to judge; the session only looks on.
        waiting = self._episodes.awaits_reset()
        if waiting:
            raise InBandError(
                ErrorCode.ENV_ERROR_CODE_INTERNAL,
                f"step failed: lanes {waiting} have no active episode; reset first",
                recoverable=False,
            )
        return self._episodes.awaits_roll() if mode is AutoresetMode.NEXT_STEP else None

    def _encode(
        self,
        verb: str,
        message: interaction_pb2.ResetResponse | interaction_pb2.StepResponse,
        outcome: Outcome,
        lanes: Sequence[int] | None,
        warnings: Warnings,
    ) -> Buffers | None:
        """Fill in observation and infos; a large observation is left for the end."""

        def encode() -> Buffers | None:
            found = [*warnings, *self._conformance.check("observation", outcome.observation, lanes)]
            infos = self.env.wire_infos(outcome, found)
            if infos:
                message.infos.CopyFrom(self._encode_infos(infos))
            elif infos is not None:
                message.infos.SetInParent()
            rows = self.env.num_envs if lanes is None else len(lanes)
            leaves = self.env.observation_codec.buffers(outcome.observation, rows)
            if sum(map(len, leaves)) >= LARGE_BYTES:
                message.SetInParent()
                return leaves
            message.observation.SetInParent()
            message.observation.leaves.extend(map(bytes, leaves))
            return None

        return _call(verb, lanes, encode)

    def _encode_infos(self, infos: dict[str, Any]) -> meta_pb2.MetaMap:
        """Write infos; what has no form on the wire is left out, with a warning."""
        try:
            return encode_meta_map(infos, "$.infos", typed=self._typed)
        except CodecError:
            if self._conformance.policy == "strict":
                raise
        kept, left_out = without_misfits(infos, "$.infos", typed=self._typed)
        notes = self._conformance.note_left_out(left_out)
        if notes:
            kept[CONFORMANCE_KEY] = [*kept.get(CONFORMANCE_KEY, []), *notes]
        return encode_meta_map(kept, "$.infos", typed=self._typed)


def _refuse_unknown(*_: Any) -> None:
    raise unsupported("not supported: a request of an unknown kind")


def _call(
    verb: str, lanes: Sequence[int] | None, call: Callable[[], T], *, harmless: bool = False
) -> T:
    """Run code of the environment; a ``harmless`` failure costs that call alone."""
    try:
        return call()
    except BaseException as error:  # An env may even raise SystemExit; the server lives on.
        raise failure(f"{verb} failed", error, lanes, harmless=harmless) from error


def _check_time(timeout_ms: int, begun_ns: int, verb: str) -> None:
    if timeout_ms and time.perf_counter_ns() - begun_ns > timeout_ms * 1_000_000:
        raise InBandError(
            ErrorCode.ENV_ERROR_CODE_TIMEOUT,
            f"{verb} took longer than {timeout_ms} ms; it was carried out, and its result dropped",
        )


def _note_times(response: interaction_pb2.JoinResponse, outcome: Outcome, encoding_ns: int) -> None:
    response.user_ns = outcome.user_ns
    response.encode_ns = time.perf_counter_ns() - encoding_ns
    if outcome.lane_skew_ns is not None:
        response.lane_skew_ns = outcome.lane_skew_ns
