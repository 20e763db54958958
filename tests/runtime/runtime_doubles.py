"""Ends and hooks for tests of the run loop: servers on Unix sockets, taps on their requests."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.runtime import RuntimeHooks, events
from rlmesh_gym.server import EnvServer, ModelHandler, ModelServer, PredictFrames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rlmesh_gym.runtime import RuntimeReport, TelemetrySnapshot


@contextlib.contextmanager
def env_server(folder: Path, envs: Any, **options: Any) -> Iterator[str]:
    server = EnvServer(envs, f"unix://{folder}/env-{id(envs)}.sock", **options)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


@contextlib.contextmanager
def model_server(folder: Path, handler: Any) -> Iterator[str]:
    server = ModelServer(handler, f"unix://{folder}/model-{id(handler)}.sock")
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


class SteadyModel(ModelHandler):
    """Frame ``j`` of a chunk is ``(observation + 2 * j) % 10``; writes down its calls."""

    def __init__(self, chunk: int = 1) -> None:
        self.chunk = chunk
        self.predicted: list[tuple[str, ...]] = []
        self.forgotten: list[tuple[str, ...]] = []

    def predict(self, observation: Any) -> Any:
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation: Any) -> PredictFrames:
        self.predicted.append(observation.episode_ids)
        first = observation.observation[:, 0].astype(np.int64)
        frames = [(first + 2 * frame) % 10 for frame in range(self.chunk)]
        return PredictFrames(frames[0], frames[1:])

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> None:
        self.forgotten.append(tuple(episode_ids))


@dataclass
class Trace:
    """What happened, as lines; episodes are named ``lane.number`` in the order of their minting."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def name(self, lane: int, episode_id: str) -> str:
        if episode_id not in self.names:
            number = self.counts.get(lane, 0)
            self.counts[lane] = number + 1
            self.names[episode_id] = f"{lane}.{number}"
        return self.names[episode_id]

    def add(self, line: str) -> None:
        self.lines.append(line)

    def ids(self, episode_ids: Sequence[str]) -> str:
        return " ".join(self.names.get(episode_id, "?") for episode_id in episode_ids)


class TapEnv:
    """A session with an env that writes down every request."""

    def __init__(self, session: EnvSession, trace: Trace) -> None:
        self.session = session
        self.trace = trace
        self.endpoint = session.endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def reset(self, **options: Any) -> Any:
        seeded = ", seeded" if options.get("seeds") else ""
        self.trace.add(f"> reset {self._who(**options)}{seeded}")
        return self.session.reset(**options)

    def step(self, action: Any, **options: Any) -> Any:
        self.trace.add(f"> step {self._who(**options)}")
        return self.session.step(action, **options)

    def render(self, env_indices: Sequence[int] = ()) -> Any:
        return self.session.render(env_indices)

    def _who(
        self, *, env_indices: Sequence[int] = (), episode_ids: Sequence[str] = (), **_: Any
    ) -> str:
        places = env_indices or range(len(episode_ids))
        names = [
            self.trace.name(lane, episode_id)
            for lane, episode_id in zip(places, episode_ids, strict=True)
        ]
        return ("lanes: " if env_indices else "all: ") + " ".join(names)


class TapModel:
    """A session with a model that writes down every request."""

    def __init__(self, session: ModelSession, trace: Trace) -> None:
        self.session = session
        self.trace = trace
        self.endpoint = session.endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def resolve_adapter(self, env_id: str, env_spec: Any, **options: Any) -> Any:
        self.trace.add(f"> resolve, horizon {options['execution_horizon']}")
        return self.session.resolve_adapter(env_id, env_spec, **options)

    def predict(
        self,
        env_id: str,
        observation: Any,
        episodes: Sequence[tuple[str, int | None]],
        *,
        history: Sequence[Any] = (),
        step: int | None = None,
    ) -> Any:
        past = "".join(
            f", step {rows.step}: {self.trace.ids([name for name, _ in rows.episodes])}"
            for rows in history
        )
        self.trace.add(f"> predict {self.trace.ids([name for name, _ in episodes])}{past}")
        return self.session.predict(env_id, observation, episodes, history=history, step=step)

    def reset_adapter(self, env_id: str, episode_ids: Sequence[str]) -> Any:
        self.trace.add(f"> forget {self.trace.ids(episode_ids)}")
        return self.session.reset_adapter(env_id, episode_ids)

    def release_adapter(self, env_id: str, reason: str = "") -> Any:
        self.trace.add(f"> release: {reason}")
        return self.session.release_adapter(env_id, reason)

    def close(self, reason: str = "", **farewell: Any) -> None:
        self.session.close(reason, **farewell)


class TraceHooks(RuntimeHooks):
    """Writes down every event."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def env_connected(self, event: events.EnvConnected) -> None:
        self.trace.add(f"env connected, {event.autoreset_mode}, lanes {list(event.lanes)}")

    def model_connected(self, event: events.ModelConnected) -> None:
        self.trace.add("model connected")

    def session_started(self, event: events.SessionStarted) -> None:
        self.trace.add(f"session started, {event.num_envs} lanes")

    def episode_started(self, event: events.EpisodeStarted) -> None:
        name = self.trace.name(event.lane, event.episode_id)
        by = "by the env" if event.started_from_auto_reset else "by reset"
        self.trace.add(f"episode {name} started {by}")

    def observation_emitted(self, event: events.ObservationEmitted) -> None:
        self.trace.add(f"observed at {event.step}: {self.trace.ids(event.episode_ids)}")

    def action_received(self, event: events.ActionReceived) -> None:
        self.trace.add(f"received {event.num_frames} for {self.trace.ids(event.episode_ids)}")

    def step_completed(self, event: events.StepCompleted) -> None:
        self.trace.add(f"step {event.step} done: {self.trace.ids(event.episode_ids)}")

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        episode = event.episode
        how = "interrupted" if episode.interrupted else "over"
        name = self.trace.names[episode.episode_id]
        self.trace.add(f"episode {name} {how} after {episode.length}")

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        if snapshot.horizon == "session":
            self.trace.add("telemetry of the session")

    def session_ended(self, event: events.SessionEnded) -> None:
        self.trace.add(f"session ended: {event.stop_reason}")

    def session_failed(self, event: events.SessionFailed) -> None:
        self.trace.add(f"session failed: {type(event.error).__name__}")


class Witness(RuntimeHooks):
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.snapshots: list[TelemetrySnapshot] = []
        self.on_step: Callable[[events.StepCompleted], None] | None = None

    def _keep(self, event: Any) -> None:
        self.events.append(event)

    env_connected = _keep
    model_connected = _keep
    session_started = _keep
    episode_started = _keep
    observation_emitted = _keep
    action_received = _keep
    episode_completed = _keep
    session_ended = _keep
    session_failed = _keep
    log = _keep

    def step_completed(self, event: events.StepCompleted) -> None:
        self.events.append(event)
        if self.on_step is not None:
            self.on_step(event)

    def on_telemetry(self, snapshot: TelemetrySnapshot) -> None:
        self.snapshots.append(snapshot)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def session_snapshots(self) -> list[TelemetrySnapshot]:
        return [snapshot for snapshot in self.snapshots if snapshot.horizon == "session"]

    @property
    def terminal(self) -> Any:
        """The last event, which must be the only terminal one."""
        found = self.of(events.SessionEnded) + self.of(events.SessionFailed)
        assert len(found) == 1
        assert self.events[-1] is found[0]
        return found[0]


def outcome(report: RuntimeReport) -> list[tuple[Any, ...]]:
    """What must not depend on hooks, speed or where the ends are."""
    return [
        (
            episode.index,
            episode.lane,
            episode.seed,
            episode.length,
            episode.episode_return,
            episode.terminated,
            episode.truncated,
            episode.interrupted,
        )
        for episode in report.episodes
    ]
