"""Requests for actions: decode, call the model, encode."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.errors import ModelError
from rlmesh_gym.model import PredictFrames, predict_frames
from rlmesh_gym.server.model.codec import (
    check_context,
    check_steps,
    decode_predict,
    detached,
    encode_frames,
    signature,
)
from rlmesh_gym.server.model.exchange import Exchange
from rlmesh_gym.server.model.faults import encode_fault, model_raised

if TYPE_CHECKING:
    from typing import Any

    from rlmesh_gym.model import ModelObservation
    from rlmesh_gym.server.model.service import ModelService
    from rlmesh_gym.server.model.stream import ModelStream

__all__ = ["GroupedPredict", "Predict", "PredictJob"]


class Predict(Exchange):
    """Predict: one batch of rows to actions."""

    operation = "predict"
    brief = True
    skippable = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.keys = (self.envelope.predict.context.env_id,)

    def work(self) -> None:
        """Decode."""
        begun_ns = time.perf_counter_ns()
        self._job = PredictJob(self.service, self.stream, self.envelope.predict, {})
        decoded_ns = time.perf_counter_ns()
        self.response.decode_ns = decoded_ns - begun_ns
        self._decoded_ns = decoded_ns
        self.on_model(self._call)

    def _call(self) -> None:
        called_ns = time.perf_counter_ns()
        self._queue_ns += called_ns - self._decoded_ns
        job = self._job
        job.call(self.service)
        self.response.user_ns = time.perf_counter_ns() - called_ns
        self.service.read_model(self.response)
        if self.service.model_thread.has_more():
            job.detach()
            self.on_worker(self._encode)
        else:
            self._encode()  # Nothing else wants the model: that saves waking a worker.

    def _encode(self) -> None:
        begun_ns = time.perf_counter_ns()
        self.response.predict.CopyFrom(self._job.encode())
        self.response.encode_ns = time.perf_counter_ns() - begun_ns
        self.finish()


class PredictJob:
    """One group of rows on its way through the handler.

    Raises:
        ModelError: The request does not fit; nothing has changed.
    """

    def __init__(
        self,
        service: ModelService,
        stream: ModelStream,
        request: interaction_pb2.PredictRequest,
        staged: dict[str, dict[str, int]],
    ) -> None:
        env_id = check_context(request.context, "predict")
        self.request = request
        self.route = service.routes.use(env_id, stream.over)
        stream.note_session(request.context, self.route)
        self.observation: ModelObservation
        self.observation, self._leaves = decode_predict(self.route, request)
        earlier = staged.setdefault(env_id, {})
        self.steps = check_steps(self.route, self.observation, earlier)
        earlier.update(self.steps)
        self.result: PredictFrames | BaseException | Any = None

    def call(self, service: ModelService) -> None:
        """Call the handler. Model thread only."""
        try:
            self.result = predict_frames(service.handler, self.observation)
        except BaseException as error:  # Answered in-band, a SystemExit too.
            self.result = error

    def detach(self) -> None:
        """Take copies of what the handler may use again in its next call. Model thread only."""
        if not isinstance(self.result, BaseException):
            try:
                self.result = detached(self.result)
            except BaseException as error:  # Such as a lazy array that cannot be read.
                self.result = error

    def encode(self) -> interaction_pb2.PredictResponse:
        """Encode the result and take the request's steps for delivered.

        Raises:
            ModelError: The handler raised, or its answer does not fit.
        """
        result = self.result
        if isinstance(result, BaseException):
            raise self._raised(result) from result
        frames = result if isinstance(result, PredictFrames) else PredictFrames(result)
        try:
            actions = encode_frames(self.route, self.observation, frames)
        except ModelError:
            raise
        except Exception as error:
            # A batch whose own methods fail, such as a lazy array that cannot be converted.
            raise self._raised(error) from error
        if self.route.tracker is not None:
            self.route.tracker.commit(self.steps)
        return interaction_pb2.PredictResponse(context=self.request.context, actions=actions)

    def _raised(self, error: BaseException) -> ModelError:
        return model_raised(
            error,
            "predict",
            env_id=self.route.env_id,
            episode_ids=self.observation.episode_ids,
            signature=signature(self.route.observation_codec, self._leaves),
        )


class GroupedPredict(Exchange):
    """GroupedPredict: predicts that the handler sees together, each with its own outcome."""

    operation = "grouped_predict"
    brief = True
    skippable = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        groups = self.envelope.grouped_predict.groups
        self.keys = tuple(dict.fromkeys(group.context.env_id for group in groups))

    def work(self) -> None:
        """Decode every group."""
        begun_ns = time.perf_counter_ns()
        staged: dict[str, dict[str, int]] = {}
        self._jobs: list[PredictJob | ModelError] = []
        for group in self.envelope.grouped_predict.groups:
            try:
                self._jobs.append(PredictJob(self.service, self.stream, group, staged))
            except ModelError as error:  # noqa: PERF203 - each group has its own outcome
                self._jobs.append(error)
        self._decoded_ns = time.perf_counter_ns()
        self.response.decode_ns = self._decoded_ns - begun_ns
        if any(isinstance(job, PredictJob) for job in self._jobs):
            self.on_model(self._call)
        else:
            self._encode()

    def _call(self) -> None:
        called_ns = time.perf_counter_ns()
        self._queue_ns += called_ns - self._decoded_ns
        jobs = [job for job in self._jobs if isinstance(job, PredictJob)]
        results: list[Any]
        try:
            results = list(self.service.handler.predict_grouped([job.observation for job in jobs]))
            if len(results) != len(jobs):
                message = f"predict_grouped returned {len(results)} results for {len(jobs)} groups"
                raise ValueError(message)  # noqa: TRY301 - counts as the handler's exception
        except BaseException as error:  # Answered in-band, a SystemExit too.
            results = [error] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            job.result = result
        self.response.user_ns = time.perf_counter_ns() - called_ns
        self.service.read_model(self.response)
        if self.service.model_thread.has_more():
            for job in jobs:
                job.detach()
            self.on_worker(self._encode)
        else:
            self._encode()

    def _encode(self) -> None:
        begun_ns = time.perf_counter_ns()
        results = self.response.grouped_predict.results
        self.response.grouped_predict.SetInParent()
        for job in self._jobs:
            outcome = results.add()
            try:
                if isinstance(job, ModelError):
                    raise job  # noqa: TRY301 - one place turns failures into outcomes
                outcome.response.CopyFrom(job.encode())
            except Exception as error:  # Each group has its own outcome.
                outcome.error.CopyFrom(encode_fault(error, "predict"))
        self.response.encode_ns = time.perf_counter_ns() - begun_ns
        self.finish()
