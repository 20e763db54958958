from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.runtime.report import records
from rlmesh_gym.runtime.report.records import EpisodeJournal, read_episodes
from rlmesh_gym.runtime.report.report_files import read_report
from tests.cli.conftest import Outcome, address_of, started
from tests.fake_envs import BlockingEnv, CountingEnv, FailingEnv
from tests.peers import env_endpoint, model_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path(__file__).resolve().parents[2]


def balance(observations: Any) -> Any:
    return (observations[:, 2] > 0).astype(np.int64)


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations), dtype=np.int64)


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with rg.ModelServer(balance) as server:
        yield server.address


@pytest.fixture(scope="module")
def vector() -> Iterator[str]:
    """Three lanes of CartPole that reset themselves; many sessions, each with its own lanes."""

    def build() -> Any:
        return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    with rg.EnvServer(build, max_sessions=8) as server:
        yield server.address


@pytest.fixture(scope="module")
def single() -> Iterator[str]:
    with rg.EnvServer(lambda: gym.make("CartPole-v1"), max_sessions=8) as server:
        yield server.address


def outcomes(directory: Path) -> dict[int, tuple[int, float]]:
    """Length and return by seed."""
    rows = read_episodes(directory).rows
    assert len({row["seed"] for row in rows}) == len(rows)
    return {row["seed"]: (row["length"], row["episode_return"]) for row in rows}


def test_a_run_and_its_files(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = program(
        "run", "--env", vector, "--model", model, "--episodes", 10, "--seed", 7, "--report", out
    )
    assert done.code == 0, done.err
    assert "mean return" in done.out
    assert "model.predict" in done.out
    assert f"report: {out / 'report.html'}" in done.out
    assert "10/10" in done.err
    assert sorted(path.name for path in out.iterdir()) == [
        "episodes.csv",
        "episodes.jsonl",
        "report.html",
        "report.json",
        "run.json",
    ]
    report = read_report(out)
    assert report is not None
    assert len(report.episodes) == 10
    assert [episode.index for episode in report.episodes] == list(range(10))
    assert report.base_seed == 7
    assert report.stop_reason == "max_episodes"
    with (out / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["episode_return"]) for row in rows] == [
        episode.episode_return for episode in report.episodes
    ]


def test_seeds_make_the_episodes_whatever_plays_them(
    program: Callable[..., Outcome], vector: str, single: str, model: str, tmp_path: Path
) -> None:
    common = ("--model", model, "--episodes", 9, "--seed", 7)
    assert program("run", "--env", vector, *common, "--report", tmp_path / "a").code == 0
    assert program("run", "--env", single, *common, "--report", tmp_path / "b").code == 0
    both = ("--env", vector, "--env", single, "--env", vector)
    assert program("run", *both, *common, "--report", tmp_path / "c").code == 0
    assert outcomes(tmp_path / "a") == outcomes(tmp_path / "b") == outcomes(tmp_path / "c")
    # The reference: one local env, reset with each seed.
    env = gym.make("CartPole-v1")
    for seed, (length, total) in outcomes(tmp_path / "a").items():
        observation, _ = env.reset(seed=seed)
        steps, over, returned = 0, False, 0.0
        while not over:
            observation, reward, terminated, truncated, _ = env.step(
                int(balance(observation[None])[0])
            )
            steps, over, returned = steps + 1, terminated or truncated, returned + float(reward)
        assert (steps, returned) == (length, total)
    env.close()


def test_shards_joined_are_the_whole(
    program: Callable[..., Outcome], vector: str, single: str, model: str, tmp_path: Path
) -> None:
    common = ("--model", model, "--episodes", 8, "--seed", 3)
    assert program("run", "--env", vector, *common, "--report", tmp_path / "all").code == 0
    for shard, env in (("1/3", vector), ("2/3", single), ("3/3", vector)):
        place = tmp_path / shard[0]
        done = program("run", "--env", env, *common, "--shard", shard, "--report", place)
        assert done.code == 0, done.err
    assert [len(outcomes(tmp_path / name)) for name in "123"] == [3, 3, 2]
    joined = program("merge", *(tmp_path / name for name in "123"), "--out", tmp_path / "joined")
    assert joined.code == 0
    assert "8 episodes, 0 duplicates left out, 0 repeats kept" in joined.out
    assert outcomes(tmp_path / "joined") == outcomes(tmp_path / "all")
    # The same shard twice is a duplicate; played anew it is a repeat.
    again = program("run", "--env", single, *common, "--shard", "3/3", "--report", tmp_path / "4")
    assert again.code == 0
    sources = [tmp_path / name for name in ("1", "2", "3", "3", "4")]
    joined = program("merge", *sources, "--out", tmp_path / "more")
    assert "10 episodes, 2 duplicates left out, 2 repeats kept" in joined.out
    assert (tmp_path / "more" / "report.html").exists()
    refused = program("merge", tmp_path / "1", "--out", tmp_path / "more")
    assert refused.code == 2
    assert "holds a report already" in refused.error_line


def test_resume_plays_what_is_left(
    program: Callable[..., Outcome], vector: str, single: str, model: str, tmp_path: Path
) -> None:
    common = ("--model", model, "--episodes", 9, "--seed", 7)
    whole, part = tmp_path / "whole", tmp_path / "part"
    for place in (whole, part):
        assert program("run", "--env", vector, *common, "--report", place).code == 0
    # As a kill leaves it: some lines, one of them half, no report.
    journal = part / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    for name in ("report.json", "report.html", "episodes.csv"):
        (part / name).unlink()
    refused = program("run", "--env", vector, *common, "--report", part)
    assert refused.code == 2
    assert f"--resume {part}" in refused.error_line

    # On another endpoint, for the lanes do not matter.
    done = program("run", "--resume", part, "--env", single)
    assert done.code == 0, done.err
    assert "4 episodes are done, 5 are left" in done.out
    assert outcomes(part) == outcomes(whole)
    report, expected = read_report(part), read_report(whole)
    assert report is not None
    assert expected is not None
    played = [(e.index, e.seed, e.episode_return) for e in report.episodes]
    assert played == [(e.index, e.seed, e.episode_return) for e in expected.episodes]
    assert report.total_steps == sum(episode.length for episode in report.episodes)
    assert "resumed" in report.bottleneck.sentence

    nothing = program("run", "--resume", part)
    assert nothing.code == 0
    assert "9 episodes are done, 0 are left" in nothing.out
    more = program("run", "--resume", part, "--episodes", 11)
    assert more.code == 0
    assert len(outcomes(part)) == 11
    changed = program("run", "--resume", part, "--seed", 8)
    assert changed.code == 2
    assert "--seed cannot change" in changed.error_line


def test_a_run_killed_before_its_report_is_reported_by_resuming(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = ("run", "--env", vector, "--model", model, "--episodes", 4, "--seed", 7)
    assert program(*run, "--report", out).code == 0
    expected = outcomes(out)
    for name in ("report.json", "report.html", "episodes.csv"):
        (out / name).unlink()
    assert program("run", "--resume", out).code == 0
    report = read_report(out)
    assert report is not None
    assert len(report.completed_episodes) == 4
    assert report.total_steps == sum(episode.length for episode in report.episodes)
    assert outcomes(out) == expected
    assert (out / "report.html").exists()
    assert (out / "episodes.csv").exists()


def test_one_run_at_a_time(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    run = ("run", "--env", vector, "--model", model, "--episodes", 2)
    with EpisodeJournal(tmp_path):
        refused = program(*run, "--report", tmp_path)
    assert refused.code == 2
    assert "being written by another run" in refused.error_line
    # Nothing was played, so nothing stands in the way of another try.
    assert program(*run, "--report", tmp_path).code == 0


def test_a_full_disk_costs_no_result(
    program: Callable[..., Outcome],
    vector: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records, "_write_all", refuse)
    run = ("run", "--env", vector, "--model", model, "--episodes", 3, "--seed", 7)
    full = program(*run, "--report", tmp_path / "full")
    assert full.code == 1
    assert full.error_line.endswith("No space left on device")
    assert "Traceback" not in full.err
    monkeypatch.undo()
    assert program(*run, "--report", tmp_path / "roomy").code == 0
    report = read_report(tmp_path / "roomy")
    assert report is not None
    # All that was played is shown, though none of it could be written.
    [line] = [line for line in full.out.splitlines() if line.startswith("mean return")]
    assert line in str(report)


def test_resume_without_seeds_counts(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    run = ("run", "--env", vector, "--model", model)
    assert program(*run, "--episodes", 3, "--report", tmp_path / "out").code == 0
    assert program("run", "--resume", tmp_path / "out", "--episodes", 5).code == 0
    rows = read_episodes(tmp_path / "out").rows
    assert sorted(row["index"] for row in rows) == [*range(5)]
    assert len(rows) == 5
    assert {row["seed"] for row in rows} == {None}


ENDS = ("--env", "e:1", "--model", "m:1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--model", "m:1"), "--env ADDRESS is missing"),
        (("--env", "e:1"), "--model ADDRESS is missing"),
        (("--env", "e:1", "--model", "m:1", "--shard", "1/2"), "--shard needs --seed"),
        (("--env", "nonsense", "--model", "m:1"), "nonsense"),
        ((*ENDS, "--seed", str(2**63)), "base_seed must be an int64"),
        ((*ENDS, "--horizon", "5000"), "execution_horizon must be 1 to 1024, got 5000"),
        ((*ENDS, "--episodes", str(10**12)), "more than one run keeps"),
    ],
)
def test_wrong_options(
    program: Callable[..., Outcome], tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    shown = program("run", *arguments, "--report", tmp_path / "out")
    assert shown.code == 2
    assert text in shown.error_line
    assert not (tmp_path / "out").exists()


def test_resume_of_nothing(program: Callable[..., Outcome], tmp_path: Path) -> None:
    shown = program("run", "--resume", tmp_path)
    assert shown.code == 2
    assert "holds no run to resume" in shown.error_line
    assert program("run", "--env", "e:1", "--model", "m:1").code == 2
    assert program("run", "--report", "a", "--shard", "3/2").code == 2


def test_unreachable_ends(
    program: Callable[..., Outcome], vector: str, model: str, socket_dir: Path, tmp_path: Path
) -> None:
    nothing = f"unix://{socket_dir}/nothing.sock"
    out = tmp_path / "out"
    no_env = program("run", "--env", vector, "--env", nothing, "--model", model, "--report", out)
    assert no_env.code == 3
    assert no_env.error_line.startswith(
        f"rlmesh-gym: environment: {nothing}: nothing listens there"
    )
    no_model = program("run", "--env", vector, "--model", nothing, "--report", out)
    assert no_model.code == 4
    assert no_model.error_line.startswith(f"rlmesh-gym: model: {nothing}: nothing listens there")
    assert "start a model endpoint" in no_model.error_line
    swapped = program("run", "--env", model, "--model", vector, "--report", out)
    assert swapped.code == 3
    assert "model endpoint where an env endpoint is expected" in swapped.error_line
    assert not out.exists()


def test_lost_ends(program: Callable[..., Outcome], model: str, tmp_path: Path) -> None:
    """An end that is killed in the middle: its exit code, and the report of what was done."""
    options = ("serve", "CartPole-v1", "--num-envs", "2")
    with started(*options) as server:
        address = address_of(server)
        lines = tmp_path / "out" / "episodes.jsonl"

        def kill_later() -> None:
            while not stop.wait(0.01):
                if lines.exists() and lines.read_bytes().count(b"\n") >= 2:
                    server.kill()
                    return

        stop = threading.Event()
        thread = threading.Thread(target=kill_later)
        thread.start()
        run = ("run", "--env", address, "--model", model, "--episodes", 100_000, "--seed", 1)
        shown = program(*run, "--report", tmp_path / "out")
        stop.set()
        thread.join()
    assert shown.code == 3
    assert shown.error_line.startswith(f"rlmesh-gym: environment: {address}: ")
    assert shown.error_line.endswith(f"go on with --resume {tmp_path / 'out'}")
    report = read_report(tmp_path / "out")
    assert report is not None
    assert len(report.completed_episodes) >= 2
    assert report.error is not None
    assert "failed" in (tmp_path / "out" / "report.html").read_text()


def test_an_env_that_fails(program: Callable[..., Outcome], tmp_path: Path) -> None:
    with (
        rg.EnvServer(FailingEnv(at=8)) as env,
        rg.ModelServer(zeros) as model,
    ):
        shown = program(
            "run", "--env", env.address, "--model", model.address, "--report", tmp_path / "o"
        )
    assert shown.code == 1
    assert "the gripper is stuck" in shown.error_line
    report = read_report(tmp_path / "o")
    assert report is not None
    assert len(report.completed_episodes) == 1


def mismatched() -> dict[str, Any]:
    def wrong_shape(observations: Any) -> Any:
        return np.zeros((len(observations), 3), dtype=np.float32)

    class Choosy(rg.ModelHandler, rg.ModelRouteSetup):
        def predict(self, observation: rg.ModelObservation) -> Any:
            return zeros(observation.observation)

        def route_setup(self) -> rg.ModelRouteSetup:
            return self

        def resolve_adapter(self, env_id: str, contract: Any, options: rg.ResolveOptions) -> Any:
            message = "this policy is for images"
            raise ValueError(message)

        def release_adapter(self, env_id: str) -> None:
            pass

    def out_of_domain(observations: Any) -> Any:
        return np.full(len(observations), 12, dtype=np.int64)

    return {"refused": Choosy(), "shape": wrong_shape, "domain": out_of_domain}


@pytest.mark.parametrize("kind", ["refused", "shape", "domain"])
def test_ends_that_do_not_fit(program: Callable[..., Outcome], tmp_path: Path, kind: str) -> None:
    with (
        rg.EnvServer(CountingEnv(5)) as env,
        rg.ModelServer(mismatched()[kind]) as model,
    ):
        shown = program(
            "run", "--env", env.address, "--model", model.address, "--report", tmp_path / "o"
        )
    assert shown.code == 5, shown.err
    assert "environment and model do not fit" in shown.error_line
    assert f"'rlmesh-gym ping {env.address}'" in shown.error_line
    assert (tmp_path / "o" / "report.html").exists()


def test_envs_that_do_not_fit_each_other(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    with rg.EnvServer(CountingEnv(5)) as other:
        run = ("run", "--env", vector, "--env", other.address, "--model", model)
        shown = program(*run, "--report", tmp_path / "o")
    assert shown.code == 5
    assert "same spaces" in shown.error_line


def test_another_env_into_the_same_report(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    run = ("run", "--env", vector, "--model", model, "--episodes", 2, "--seed", 1)
    assert program(*run, "--report", tmp_path / "o").code == 0
    with rg.EnvServer(CountingEnv(5), env_id="Other-v0") as other:
        shown = program("run", "--resume", tmp_path / "o", "--env", other.address)
    assert shown.code == 2
    assert "holds episodes of CartPole-v1 and the endpoint serves Other-v0" in shown.error_line


@pytest.mark.usefixtures("interruptible")
def test_interrupt_in_a_hanging_step(program: Callable[..., Outcome], tmp_path: Path) -> None:
    """Ctrl-C while the env does not answer: at once, in order, with the report of what was done."""
    env = BlockingEnv(length=3, blocking=False)
    steps = 0

    class StopsAnswering(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            nonlocal steps
            steps += 1
            env.blocking = steps == 8
            return super().step(action)

    def interrupt() -> None:
        assert env.entered.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "out"
    thread = threading.Thread(target=interrupt)
    with rg.EnvServer(StopsAnswering(env)) as server, rg.ModelServer(zeros) as model:
        thread.start()
        run = ("run", "--env", server.address, "--model", model.address, "--episodes", 50)
        shown = program(*run, "--report", out)
        env.release.set()
    thread.join()
    assert shown.code == 130
    assert shown.error_line == f"rlmesh-gym: interrupted; go on with --resume {out}"
    report = read_report(out)
    assert report is not None
    assert report.stop_reason == "cancelled: interrupted"
    assert [(e.length, e.interrupted) for e in report.episodes] == [
        (3, False),
        (3, False),
        (1, True),
    ]
    assert len(read_episodes(out).rows) == 2
    assert "stopped early" in (out / "report.html").read_text()


@pytest.mark.usefixtures("interruptible")
def test_interrupt_of_a_process(vector: str, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("run", "--env", vector, "--model", model, "--episodes", "100000", "--seed", "1")
    with started(*arguments, "--report", str(out)) as process:
        lines = out / "episodes.jsonl"
        assert process.stderr is not None
        while not (lines.exists() and lines.stat().st_size):
            assert process.poll() is None, process.stderr.read()
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"rlmesh-gym: interrupted; go on with --resume {out}"
    assert "Traceback" not in err
    report = read_report(out)
    assert report is not None
    assert len(report.completed_episodes) == len(read_episodes(out).rows) >= 1


def test_videos(program: Callable[..., Outcome], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        rg.EnvServer(CountingEnv(3, render_mode="rgb_array")) as env,
        rg.ModelServer(zeros) as model,
    ):
        run = ("run", "--env", env.address, "--model", model.address, "--episodes", 3)
        shown = program(*run, "--video", 2, "--report", out)
    assert shown.code == 0, shown.err
    assert len(list((out / "videos").iterdir())) == 2


def test_damaged_records_are_refused_with_a_reason(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    run = ("run", "--env", vector, "--model", model, "--episodes", 2, "--seed", 1)
    assert program(*run, "--report", tmp_path / "o").code == 0
    with EpisodeJournal(tmp_path / "o") as journal:
        journal.append({"env_id": "CartPole-v1", "seed": 0, "episode_id": "x"})
    shown = program("run", "--resume", tmp_path / "o", "--episodes", 3)
    assert shown.code == 2
    assert "not an episode of this version: it lacks lane, endpoint" in shown.error_line
    (tmp_path / "o" / "run.json").write_text("{")
    shown = program("run", "--resume", tmp_path / "o")
    assert shown.code == 2
    assert "cannot be read as the plan of a run" in shown.error_line


def test_what_is_kept_of_a_plan(
    program: Callable[..., Outcome], vector: str, model: str, tmp_path: Path
) -> None:
    run = ("run", "--env", vector, "--model", model, "--episodes", 4, "--max-episode-steps", 6)
    assert program(*run, "--horizon", 2, "--report", tmp_path / "o").code == 0
    plan = json.loads((tmp_path / "o" / "run.json").read_text())
    assert plan["env"] == [vector]
    assert plan["horizon"] == 2
    report = read_report(tmp_path / "o")
    assert report is not None
    assert report.requested_horizon == 2
    assert {episode.length for episode in report.episodes} == {6}


@pytest.mark.interop
def test_with_the_released_package_on_both_sides(
    program: Callable[..., Outcome], tmp_path: Path
) -> None:
    run = ("run", "--episodes", 4, "--seed", 5, "--horizon", 2)
    with (
        model_endpoint("chunk_and_batch") as model,
        env_endpoint("lanes", num_envs=2) as lanes,
        env_endpoint("single") as single,
        env_endpoint("next_step", num_envs=2) as vector,
    ):
        for name, env in (("a", lanes), ("b", single)):
            done = program(
                *run, "--env", env.address, "--model", model.address, "--report", tmp_path / name
            )
            assert done.code == 0, done.err
        # The episodes are the same on two lanes and on one, for each has its own seed.
        assert outcomes(tmp_path / "a") == outcomes(tmp_path / "b")
        done = program(
            *run, "--env", vector.address, "--model", model.address, "--report", tmp_path / "c"
        )
    # That vector resets itself and nobody else can reset its lanes.
    assert done.code == 0, done.err
    assert "only each lane's first episode is seeded" in done.err
    assert len(read_episodes(tmp_path / "c").rows) == 4


def test_a_run_that_goes_on(program: Callable[..., Outcome], tmp_path: Path) -> None:
    made: list[CountingEnv] = []

    def build() -> Any:
        # The first one breaks in its second episode, and with it the session.
        made.append(CountingEnv(4) if made else FailingEnv(4, at=6))
        return made[-1]

    with rg.EnvServer(build, max_sessions=8) as server, rg.ModelServer(zeros) as model_server:
        common = ("--env", server.address, "--model", model_server.address, "--episodes", 3)
        done = program("run", *common, "--report", tmp_path / "ends")
        assert done.code == 1
        assert "the gripper is stuck" in done.err
        made.clear()
        done = program("run", *common, "--report", tmp_path / "out", "--on-failure", "restart")
        assert done.code == 0, done.err
    assert [row["length"] for row in read_episodes(tmp_path / "out").rows] == [4, 4, 4]
    report = read_report(tmp_path / "out")
    assert report is not None
    assert len(report.completed_episodes) == 3
    assert report.total_steps == sum(episode.length for episode in report.episodes)


def test_a_full_standard_output_costs_no_report(vector: str, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = f"{sys.executable} -m rlmesh_gym run --env {vector} --model {model} --episodes 3"
    script = f"{common} --report {out} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=_ROOT
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    report = read_report(out)
    assert report is not None
    assert len(report.episodes) == 3
    script = f"{common} --report {tmp_path / 'closed'} >&-"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr
    assert read_report(tmp_path / "closed") is not None


def test_a_peer_cannot_drive_the_terminal(program: Callable[..., Outcome], tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp"
    with (
        rg.EnvServer(FailingEnv(9, at=2, exception=ValueError(evil)), env_id=evil) as server,
        rg.ModelServer(zeros) as model_server,
    ):
        arguments = ("--env", server.address, "--model", model_server.address)
        done = program("run", *arguments, "--episodes", 1, "--report", tmp_path / "out")
        shown = program("ping", server.address)
    assert done.code == 1
    for text in (done.out, done.err, shown.out, shown.err):
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
