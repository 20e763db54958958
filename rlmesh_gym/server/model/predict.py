"""Requests for actions: decode, call the model, encode."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.errors import ModelError
from rlmesh_gym.model import predict_frames
from rlmesh_gym.rpc import HistoryRows
from rlmesh_gym.server.model.actions import detached
from rlmesh_gym.server.model.answers import make_observation, prediction_failed, read_frames
from rlmesh_gym.server.model.faults import encode_fault, invalid
from rlmesh_gym.server.model.service import ModelCall, check_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rlmesh_gym.codec import SpaceCodec
    from rlmesh_gym.model import ModelObservation
    from rlmesh_gym.server.model.client import Client
    from rlmesh_gym.server.model.routes import Route
    from rlmesh_gym.server.model.service import ModelService


class Predict(ModelCall):
    """Predict: one batch of rows to actions. Decode, call the handler, encode."""

    operation = "predict"
    brief = True
    skippable = True

    def work(self) -> None:
        """Decode."""
        begun_ns = time.perf_counter_ns()
        self.jobs: list[PredictJob] = []
        self.decode()
        self._decoded_ns = time.perf_counter_ns()
        self.response.decode_ns = self._decoded_ns - begun_ns
        if self.jobs:
            self.on_model(self._call)
        else:
            self._encode()

    def decode(self) -> None:
        """Make the jobs: here one; a request that does not fit is an error."""
        self.jobs.append(PredictJob(self.service, self.client, self.request, {}))

    def ask(self, observations: list[ModelObservation]) -> list[Any]:
        """Call the handler."""
        return [predict_frames(self.service.handler, observations[0])]

    def encode(self) -> None:
        """Fill in the response."""
        self.response.predict.CopyFrom(self.jobs[0].encode())

    def _call(self) -> None:
        called_ns = time.perf_counter_ns()
        self._queue_ns += called_ns - self._decoded_ns
        try:
            results = self.ask([job.observation for job in self.jobs])
        except BaseException as error:  # Answered in-band, a SystemExit too.
            results = [error] * len(self.jobs)
        for job, result in zip(self.jobs, results, strict=True):
            job.result = result
        del results
        self.response.user_ns = time.perf_counter_ns() - called_ns
        self.service.read_model(self.response)
        if self.service.model_thread.has_more():
            for job in self.jobs:
                job.detach()
            self.on_worker(self._encode)
        else:
            self._encode()  # Nothing else wants the model: that saves waking a worker.

    def _encode(self) -> None:
        begun_ns = time.perf_counter_ns()
        self.encode()
        self.response.encode_ns = time.perf_counter_ns() - begun_ns
        self.finish()


class GroupedPredict(Predict):
    """GroupedPredict: predicts that the handler sees together, each with its own outcome."""

    operation = "grouped_predict"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.keys: tuple[str, ...] = tuple(
            dict.fromkeys(group.context.env_id for group in self.request.groups)
        )

    def decode(self) -> None:
        """A job for each group that fits."""
        staged: dict[str, dict[str, int]] = {}
        self._outcomes: list[PredictJob | ModelError] = []
        for group in self.request.groups:
            try:
                self.jobs.append(PredictJob(self.service, self.client, group, staged))
                self._outcomes.append(self.jobs[-1])
            except ModelError as error:  # noqa: PERF203 - each group has its own outcome
                self._outcomes.append(error)

    def ask(self, observations: list[ModelObservation]) -> list[Any]:
        """Call predict_grouped."""
        results = list(self.service.handler.predict_grouped(observations))
        if len(results) != len(observations):
            raise ValueError(
                f"predict_grouped returned {len(results)} results for {len(observations)} groups"
            )  # Counts as the handler's exception.
        return results

    def encode(self) -> None:
        """Answer with an outcome per group."""
        results = self.response.grouped_predict.results
        self.response.grouped_predict.SetInParent()
        for job in self._outcomes:
            outcome = results.add()
            try:
                if isinstance(job, ModelError):
                    raise job  # noqa: TRY301 - one place turns failures into outcomes
                outcome.response.CopyFrom(job.encode())
            except Exception as error:  # Each group has its own outcome.
                outcome.error.CopyFrom(encode_fault(error, "predict"))


class PredictJob:
    """One group of rows on its way through the handler; made of a request that fits."""

    def __init__(
        self,
        service: ModelService,
        client: Client,
        request: interaction_pb2.PredictRequest,
        staged: dict[str, dict[str, int]],
    ) -> None:
        env_id = check_context(request.context, "predict")
        self.request = request
        self.route: Route = service.routes.use(env_id, client)
        client.note_session(request.context, self.route.owner)
        self.observation: ModelObservation = _decode(
            self.route, request, staged.setdefault(env_id, {})
        )
        self.result: Any = None

    def detach(self) -> None:
        """Take copies of what the handler may use again in its next call. Model thread only."""
        if not isinstance(self.result, BaseException):
            try:
                self.result = detached(self.result)
            except BaseException as error:  # Such as a lazy array that cannot be read.
                self.result = error

    def encode(self) -> interaction_pb2.PredictResponse:
        """Encode the result and take the request's steps for delivered."""
        result = self.result
        if isinstance(result, BaseException):
            raise prediction_failed(result, self.route, self.observation) from result
        frames = read_frames(self.route, self.observation, result)
        codec, rows = self.route.action_codec, self.observation.num_envs
        actions = [codec.encode(leaves, rows) for leaves in frames]
        self.route.deliver(self.observation)
        return interaction_pb2.PredictResponse(context=self.request.context, actions=actions)


def _decode(
    route: Route, request: interaction_pb2.PredictRequest, staged: dict[str, int]
) -> ModelObservation:
    """Decode a request whose context has been checked."""
    if not request.context.request_id:
        raise invalid("predict: context.request_id is empty", env_id=route.env_id)
    prunes = (needs := route.model_route.needs.history) is not None and needs.prunable
    history = []
    for frame in request.history:
        episodes, value = _episodes(frame.episode_info), _observation(frame)
        if prunes and value is not None and route.observation_codec is not None:
            value = _filled(route.observation_codec, value, len(episodes))
        history.append(HistoryRows(frame.step, value, episodes))
    return make_observation(
        route,
        _observation(request),
        _episodes(request.episode_info),
        history=history,
        step=request.step if request.HasField("step") else None,
        staged=staged,
    )


def _episodes(infos: Sequence[interaction_pb2.EpisodeInfo]) -> list[tuple[str, int | None]]:
    return [(info.episode_id, info.seed if info.HasField("seed") else None) for info in infos]


def _observation(
    message: interaction_pb2.PredictRequest | interaction_pb2.ObservationHistoryFrame,
) -> value_pb2.SpaceValue | None:
    return message.observation if message.HasField("observation") else None


def _filled(codec: SpaceCodec, value: value_pb2.SpaceValue, num_rows: int) -> value_pb2.SpaceValue:
    """Put zeros and empty strings where a client has left leaves out."""
    if all(value.leaves) or len(value.leaves) != len(codec.paths):
        return value
    blank = codec.encode(codec.empty(num_rows), num_rows)
    pairs = zip(value.leaves, blank.leaves, strict=True)
    return value_pb2.SpaceValue(leaves=[given or empty for given, empty in pairs])
