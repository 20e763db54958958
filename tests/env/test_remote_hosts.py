"""Embedded endpoints as hosts of environments that use processes, signals and time of their own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.env.open import embedded
from rlmesh_gym.errors import ConfigurationError, DeadlineError
from tests.env.test_remote_embedded import is_gone, pid_of, process_of

ROOT = Path(__file__).resolve().parents[2]
HOSTED = "tests.env.hosted_env:Hosted-v0"
PID = "envs._group.endpoints[0].source._child.process.pid"


def reset_info(what: str) -> dict[str, Any]:
    with RemoteEnv(env_id=HOSTED, what=what) as env:
        for _ in range(3):
            _, info = env.reset()
        env.step(0)
    return dict(info)


def test_an_env_with_a_pool() -> None:
    assert reset_info("pool")["sum"] == 12


def test_an_env_that_terminates_its_worker() -> None:
    assert reset_info("worker")["status"] == -signal.SIGTERM


@pytest.mark.usefixtures("interruptible")
def test_a_simulator_that_is_ended_by_sigint() -> None:
    assert reset_info("simulator")["status"] == -signal.SIGINT


@pytest.mark.parametrize(
    "kwargs",
    [{0: None, 1: None}, (1, (2, 3)), {"a"}, np.float32(0.1), np.arange(3), 2**70, 1j, None],
    ids=repr,
)
def test_arguments_arrive_exactly(kwargs: Any) -> None:
    with RemoteEnv(env_id=HOSTED, kwargs=kwargs) as env:
        _, info = env.reset()
    assert info["kwargs"] == repr(kwargs)


def parent(code: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options.pop("arguments", ["-c", textwrap.dedent(code)])],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_the_child_ends_with_its_parent_in_a_step_that_holds_the_interpreter() -> None:
    code = f"""
    import threading
    from rlmesh_gym.env import RemoteVectorEnv
    envs = RemoteVectorEnv(env_id="{HOSTED}", what="hold", timeouts={{"close": 0.2}})
    envs.reset()
    print({PID}, flush=True)
    envs.step([0])
    """
    with parent(code, ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pid = int(process.stdout.readline())
        assert "holding" in process.stderr.readline()
        process.kill()
        process.wait()
        assert is_gone(pid, 10.0)


@pytest.mark.parametrize("place", ["current folder", "beside the script"])
def test_a_module_of_the_users_is_no_library(place: str, tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shadow = "raise RuntimeError('mine')\n"
    for name in ("queue", "selectors", "numbers", "fractions", "grpc"):
        (tmp_path / f"{name}.py").write_text(shadow)
    (scripts / "uuid6_of_mine.py").write_text("")
    (scripts / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "from tests.fake_envs import CountingEnv\n"
        "import uuid6_of_mine\n"
        "gym.register('Mine-v0', entry_point=CountingEnv)\n"
    )
    script = scripts / "train.py"
    script.write_text(
        "import rlmesh_gym as rg\n"
        "with rg.RemoteVectorEnv(env_id='my_envs:Mine-v0') as envs:\n"
        "    envs.reset()\n"
        "    print('done')\n"
    )
    cwd = tmp_path if place == "current folder" else scripts
    if place == "beside the script":  # The parent has imported the real ones; the child must too.
        (scripts / "cProfile.py").write_text(shadow)
    with parent("", cwd, arguments=[str(script)]) as process:
        out, err = process.communicate(timeout=60)
    assert out == "done\n", err


def test_closing_takes_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    closed = tmp_path / "closed"
    with RemoteVectorEnv(
        env_id=HOSTED, num_envs=2, what="slow", seconds=1.6, closed=str(closed)
    ) as envs:
        envs.reset()
        process = process_of(envs)
    assert closed.read_text() == "closed\n" * 2  # 3.2 s, more than the child once gave.
    assert process.returncode == 0
    assert not caplog.records


def test_what_closing_cuts_off_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    closed = tmp_path / "closed"
    with (
        caplog.at_level(logging.WARNING),
        RemoteVectorEnv(
            env_id=HOSTED, what="slow", seconds=60.0, closed=str(closed), timeouts={"close": 0.1}
        ) as envs,
    ):
        envs.reset()
    assert not closed.exists()
    text = "were not closed within 0.1 s, and the process was killed; raise timeouts.close"
    assert any(text in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("late", ["step", "between"])
def test_a_child_that_was_stopped_is_started_anew(late: str) -> None:
    with RemoteVectorEnv(
        env_id=HOSTED,
        num_envs=2,
        workers=2,
        on_failure="restart",
        autoreset_mode="SameStep",
        timeouts={"step": 0.5, "close": 0.5},
    ) as envs:
        envs.reset()
        envs.step([1, 1])
        pid = pid_of(envs, 1)
        os.kill(pid, signal.SIGSTOP)
        observations, rewards, _, truncations, infos = envs.step([2, 2])
        assert rewards.tolist() == [2.0, 0.0]
        assert truncations.tolist() == [False, True]
        assert infos["interrupted"].tolist() == [False, True]
        assert observations[:, 0].tolist() == [2.0, 0.0]
        assert is_gone(pid)
        assert envs.step([1, 1])[1].tolist() == [1.0, 1.0]


def test_a_slow_step_is_not_taken_for_a_hung_child() -> None:
    with RemoteVectorEnv(
        env_id=HOSTED,
        what="nap",
        seconds=0.8,
        on_failure="restart",
        timeouts={"step": 0.3},
    ) as envs:
        envs.reset()
        with pytest.raises(DeadlineError):
            envs.step([1])
        assert envs.episodes.total == 0


def test_a_slow_start_has_a_word_and_an_option(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_WORD_SECONDS", 0.3)
    with (
        caplog.at_level(logging.WARNING),
        # Longer in all than the limit, which each lane alone keeps to.
        RemoteVectorEnv(
            env_id=HOSTED, num_envs=4, what="load", seconds=0.7, timeouts={"start": 2.5}
        ) as envs,
    ):
        envs.reset()
    words = [record.getMessage() for record in caplog.records]
    assert any("is still starting after 2 s (" in word for word in words)
    assert any("of 4 lanes made)" in word for word in words)
    with pytest.raises(
        DeadlineError, match=r"within 0.6 s \(0 of 1 lanes made\); raise timeouts.s"
    ):
        RemoteVectorEnv(env_id=HOSTED, what="load", seconds=60.0, timeouts={"start": 0.6})


def test_an_env_that_needs_the_main_thread(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    for num_envs in (1, 2):
        with RemoteVectorEnv(
            env_id=HOSTED, num_envs=num_envs, what="alarm", thread="main", closed=str(closed)
        ) as envs:
            envs.reset()
            for _ in range(3):
                envs.step([1] * num_envs)
            process = process_of(envs)
        assert process.returncode == 0
    assert closed.read_text() == "closed\n" * 3
    with RemoteEnv(env_id=HOSTED, what="alarm", thread="main") as env:
        env.reset()
        env.step(1)
    with pytest.raises(ConfigurationError, match="main thread of the main interpreter"):
        RemoteEnv(env_id=HOSTED, what="alarm", thread="own")
