"""Hooks watch, transform, and never change what they should not."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from PIL import Image

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.runtime import (
    CompositeHooks,
    JsonLinesRecorder,
    ProgressBar,
    RuntimeHooks,
    RuntimeLimits,
    VideoRecorder,
    events,
    run,
)
from rlmesh_gym.runtime.hooks.table import OBSERVERS, TRANSFORMS, HookTable
from tests.fake_envs import CountingEnv, counting_vector
from tests.runtime.runtime_doubles import (
    SteadyModel,
    Witness,
    env_server,
    model_server,
    outcome,
)

if TYPE_CHECKING:
    from pathlib import Path

OFTEN = RuntimeLimits(telemetry_window=0.005)


def no_log(level: int, message: str) -> events.LogEvent:
    return events.LogEvent("s", "r", "e", level, message)


def every_method(action: Any) -> RuntimeHooks:
    """Hooks all of whose watching methods call ``action``."""
    methods = {name: (lambda self, event: action(event)) for name in OBSERVERS}
    hooks: RuntimeHooks = type("Every", (RuntimeHooks,), methods)()
    return hooks


def test_unused_hooks_are_not_in_the_table() -> None:
    class OnlySteps(RuntimeHooks):
        def step_completed(self, event: events.StepCompleted) -> None: ...

    table = HookTable([OnlySteps(), RuntimeHooks()], no_log)
    assert [name for name in (*OBSERVERS, *TRANSFORMS) if table.listens(name)] == ["step_completed"]
    assert not any(HookTable((), no_log).listens(name) for name in OBSERVERS)


def test_no_event_is_made_that_nobody_listens_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("StepCompleted", "ObservationEmitted", "ActionReceived", "EpisodeStarted"):
        monkeypatch.setattr(events, name, None)
    assert len(run(counting_vector(2), SteadyModel(), episodes=4).episodes) == 4


def test_hooks_need_no_base_class() -> None:
    class Duck:
        seen = 0

        def episode_completed(self, event: Any) -> None:
            self.seen += 1

    duck: Any = Duck()
    run(counting_vector(2), SteadyModel(), episodes=4, hooks=duck)
    assert duck.seen == 4


def test_hooks_may_come_in_any_container() -> None:
    seen: list[int] = []

    class Ends(RuntimeHooks):
        def episode_completed(self, event: events.EpisodeCompleted) -> None:
            seen.append(event.episode.index)

    ends = Ends()
    for hooks in (ends, [ends], (ends,), {ends}, (hook for hook in [ends]), CompositeHooks([ends])):
        seen.clear()
        run(counting_vector(2), SteadyModel(), episodes=2, hooks=hooks)
        assert sorted(seen) == [0, 1]


@pytest.mark.parametrize("wrong", [RuntimeHooks, [RuntimeHooks], [None], "hook", {"a": 1}, 3])
def test_what_would_never_be_called_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="hooks have methods such as"):
        run(counting_vector(2), SteadyModel(), episodes=2, hooks=wrong)


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_hook_that_always_raises_changes_nothing(
    socket_dir: Path, caplog: pytest.LogCaptureFixture, horizon: int
) -> None:
    def fail(event: Any) -> None:
        raise LookupError("hook trouble")

    def play(hooks: Any) -> Any:
        options: dict[str, Any] = {"seed": 3, "execution_horizon": horizon, "limits": OFTEN}
        with (
            env_server(socket_dir, [CountingEnv(2), CountingEnv(5, base=100.0)]) as env,
            model_server(socket_dir, SteadyModel(4)) as model,
        ):
            return run(env, model, episodes=7, hooks=hooks, **options)

    bare = play(None)
    witness = Witness()
    with caplog.at_level(logging.ERROR, "rlmesh_gym.runtime"):
        failing = play([every_method(fail), witness])
    assert outcome(failing) == outcome(bare)
    assert failing.total_reward == bare.total_reward
    # The others are called all the same, and the trouble is told once per hook and event.
    assert len(witness.of(events.EpisodeCompleted)) == 7
    told = [record.getMessage() for record in caplog.records]
    assert sum("Every.step_completed" in message for message in told) == 1
    logs = [event.message for event in witness.of(events.LogEvent)]
    assert any(
        "hook Every.episode_started raised LookupError: hook trouble" in text for text in logs
    )


def test_a_hook_that_blocks_for_a_while_changes_nothing(socket_dir: Path) -> None:
    pauses = threading.Event()

    class Slow(RuntimeHooks):
        def step_completed(self, event: events.StepCompleted) -> None:
            pauses.wait(0.01)

        def on_telemetry(self, snapshot: Any) -> None:
            pauses.wait(0.05)

    with env_server(socket_dir, [CountingEnv(2), CountingEnv(3, base=100.0)]) as address:
        bare = run(address, SteadyModel(), episodes=5)
    with env_server(socket_dir, [CountingEnv(2), CountingEnv(3, base=100.0)]) as address:
        slow = run(address, SteadyModel(), episodes=5, hooks=Slow(), limits=OFTEN)
    assert outcome(slow) == outcome(bare)
    assert slow.bottleneck.shares["loop"] > bare.bottleneck.shares["loop"]


def test_a_telemetry_hook_that_never_returns_does_not_hold_the_run() -> None:
    release = threading.Event()
    witness = Witness()

    class Stuck(RuntimeHooks):
        def on_telemetry(self, snapshot: Any) -> None:
            if snapshot.horizon == "window":
                release.wait(30)

        def step_completed(self, event: events.StepCompleted) -> None:
            release.wait(0.01)

    limits = RuntimeLimits(telemetry_window=0.005, close_timeout=0.1)
    report = run(
        counting_vector(2), SteadyModel(), episodes=4, hooks=[Stuck(), witness], limits=limits
    )
    release.set()
    assert len(report.episodes) == 4
    assert any("left behind" in event.message for event in witness.of(events.LogEvent))


@pytest.mark.parametrize("kind", ["remote", "local"])
def test_transforms_reach_both_ends_and_chain(socket_dir: Path, kind: str) -> None:
    class Shift(RuntimeHooks):
        def __init__(self, by: float) -> None:
            self.by = by

        def transform_observation(self, event: events.ObservationTransform) -> Any:
            return event.observations * np.float32(2) + np.float32(self.by)

        def transform_action(self, event: events.ActionTransform) -> Any:
            assert len(event.lanes) == len(event.actions) == len(event.episode_ids)
            event.actions[:] = (event.actions + int(self.by)) % 10
            return event.actions

    seen: list[float] = []

    def policy(observation: Any) -> Any:
        seen.extend(observation[:, 0].tolist())
        return np.zeros(len(observation), np.int64)

    witness = Witness()
    env = CountingEnv(3)
    served: Any = [env]
    if kind == "remote":
        with env_server(socket_dir, served) as address, model_server(socket_dir, policy) as model:
            report = run(address, model, episodes=1, hooks=[Shift(1), Shift(5), witness])
    else:
        report = run(env, policy, episodes=1, hooks=[Shift(1), Shift(5), witness])
    assert seen == [2 * (2 * t + 1) + 5 for t in range(3)]
    assert report.episodes[0].episode_return == 3 * 6
    emitted = [event.observations[0, 0] for event in witness.of(events.ObservationEmitted)]
    assert emitted == seen
    assert [event.actions[0] for event in witness.of(events.StepCompleted)] == [6, 6, 6]
    assert [event.actions[0] for event in witness.of(events.ActionReceived)] == [0, 0, 0]


def test_a_transform_that_returns_none_leaves_the_bytes_alone(socket_dir: Path) -> None:
    class Look(RuntimeHooks):
        def transform_observation(self, event: events.ObservationTransform) -> None:
            event.observations[:] = -1

    with env_server(socket_dir, [CountingEnv(3)]) as address:
        handler = SteadyModel()
        report = run(address, handler, episodes=1, hooks=Look())
    assert report.episodes[0].episode_return == 0 + 1 + 2


def test_composites_are_taken_apart_and_called_in_order() -> None:
    called: list[str] = []

    class Named(RuntimeHooks):
        def __init__(self, name: str) -> None:
            self.name = name

        def session_ended(self, event: Any) -> None:
            called.append(self.name)

    inner = CompositeHooks([Named("b"), Named("c")])
    run(
        counting_vector(2),
        SteadyModel(),
        episodes=1,
        hooks=CompositeHooks([Named("a"), inner, Named("d")]),
    )
    assert called == ["a", "b", "c", "d"]


def test_every_event_names_its_run_and_is_frozen_and_plain(socket_dir: Path) -> None:
    witness = Witness()
    with env_server(socket_dir, [CountingEnv(2)]) as address:
        report = run(address, SteadyModel(), episodes=2, hooks=witness, session_id="mine")
    kinds = {type(event) for event in witness.events}
    assert len(kinds) == 9
    for event in witness.events:
        assert (event.session_id, event.run_id) == ("mine", report.run_id)
        json.dumps(event.to_dict(), allow_nan=False)
        with pytest.raises(AttributeError):
            event.session_id = "other"
    connected = witness.of(events.EnvConnected)[0]
    assert connected.contract.num_envs == 1
    assert connected.capabilities["subset_step"] == "true"


def test_json_lines(tmp_path: Path) -> None:
    path, some = tmp_path / "events.jsonl", tmp_path / "some.jsonl"
    recorders = [
        JsonLinesRecorder(path),
        JsonLinesRecorder(some, only=["episode_completed", "session_ended"]),
    ]
    report = run(counting_vector(2), SteadyModel(), episodes=3, hooks=recorders)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows][-2:] == ["on_telemetry", "session_ended"]
    assert {row["event"] for row in rows} == {*OBSERVERS} - {"log", "session_failed"}
    assert all(row["run_id"] == report.run_id for row in rows)
    assert all(row["env_id"] == report.env_id for row in rows)
    completed = [row["episode"] for row in rows if row["event"] == "episode_completed"]
    assert sorted(row["index"] for row in completed) == [0, 1, 2]
    chosen = [json.loads(line)["event"] for line in some.read_text().splitlines()]
    assert chosen == ["episode_completed"] * 3 + ["session_ended"]
    table = HookTable([recorders[1]], no_log)
    assert not table.listens("step_completed")
    with pytest.raises(ConfigurationError, match="unknown events"):
        JsonLinesRecorder(path, only=["steps"])


def test_progress_shows_episodes_returns_and_what_hangs() -> None:
    out = io.StringIO()
    bar = ProgressBar(file=out, mininterval=0, ncols=120)
    run(counting_vector(2), SteadyModel(), episodes=4, hooks=bar)
    assert "4/4" in out.getvalue()
    assert "return " in out.getvalue()
    steps = io.StringIO()
    bar = ProgressBar(file=steps, mininterval=0, ncols=120)
    run(counting_vector(2), SteadyModel(), max_steps=10, hooks=bar)
    assert "/10" in steps.getvalue()


@pytest.mark.parametrize("mode", [*AutoresetMode])
@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_videos_of_chosen_episodes(tmp_path: Path, mode: AutoresetMode, kind: Any) -> None:
    if kind == "mp4":
        pytest.importorskip("moviepy")
        if mode is not AutoresetMode.NEXT_STEP:
            pytest.skip("one mode is enough for the other file format")
    envs = counting_vector(2, mode, render_mode="rgb_array")
    recorder = VideoRecorder(tmp_path / "videos", lambda index: index in {1, 2}, kind=kind)
    report = run(envs, SteadyModel(), episodes=4, hooks=recorder)
    names = {
        f"episode-{episode.index:05d}-{episode.episode_id}.{kind}"
        for episode in report.episodes
        if episode.index in {1, 2}
    }
    assert {path.name for path in recorder.paths} == names
    assert all(path.stat().st_size > 0 for path in recorder.paths)
    if kind == "gif":
        for path in recorder.paths:
            length = 3 if "00001" in path.name else 2
            with Image.open(path) as image:
                # The first observation and every step; SAME_STEP never shows the last frame.
                frames = length + (mode is not AutoresetMode.SAME_STEP)
                assert getattr(image, "n_frames", 1) == frames


def test_videos_over_the_wire_and_without_frames(
    socket_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with env_server(socket_dir, [CountingEnv(3, render_mode="rgb_array")]) as address:
        recorder = VideoRecorder(tmp_path, 1)
        report = run(address, SteadyModel(), episodes=2, hooks=recorder)
    assert [path.name for path in recorder.paths] == [
        f"episode-00000-{report.episodes[0].episode_id}.gif"
    ]
    with env_server(socket_dir, [CountingEnv(3)]) as address:
        recorder = VideoRecorder(tmp_path, 5)
        report = run(address, SteadyModel(), episodes=2, hooks=recorder)
    assert recorder.paths == []
    assert len(report.episodes) == 2
    assert sum("renders nothing" in record.getMessage() for record in caplog.records) == 1


def test_video_options_are_checked(tmp_path: Path) -> None:
    wrong: Any = "avi"
    with pytest.raises(ConfigurationError, match="kind"):
        VideoRecorder(tmp_path, kind=wrong)
    with pytest.raises(ConfigurationError, match="at least 1"):
        VideoRecorder(tmp_path, fps=0)


def test_mp4_without_moviepy_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "moviepy.video.VideoClip", None)
    with pytest.raises(ImportError, match=r'pip install "rlmesh-gym\[video\]"'):
        VideoRecorder(tmp_path, kind="mp4")


def test_events_hold_what_the_env_really_got(socket_dir: Path) -> None:
    """Observations and actions of the events, decoded, are those of the env itself."""
    witness = Witness()
    with env_server(socket_dir, [CountingEnv(3), CountingEnv(3, base=100.0)]) as address:
        run(address, SteadyModel(), episodes=2, hooks=witness)
    steps = witness.of(events.StepCompleted)
    assert [step.episode_steps for step in steps] == [(1, 1), (2, 2), (3, 3)]
    for t, step in enumerate(steps):
        assert step.observations[:, 0].tolist() == [t + 1, 101 + t]
        assert step.actions.tolist() == [t, t]
        assert step.rewards.tolist() == [t, t]
        assert step.terminations.tolist() == [t == 2, t == 2]
        assert gym.vector.utils.batch_space(CountingEnv().observation_space, 2).contains(
            step.observations
        )
