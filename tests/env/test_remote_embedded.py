"""Embedded endpoints, and the life of an environment object: pickles, forks, ends of processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.env.open.embedded import EmbeddedServer
from rlmesh_gym.env.open.sources import ConnectionOptions
from rlmesh_gym.errors import (
    AuthenticationError,
    ConfigurationError,
    ForkedError,
    UnavailableError,
)
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.server import EnvServer
from tests.env.comparison import compare
from tests.fake_envs import CountingEnv

ROOT = Path(__file__).resolve().parents[2]
COUNTING = "tests.fake_envs:RlmeshTest/Counting-v0"
CLINGING = "tests.env.clinging_env:Clinging-v0"
WAIT = 10.0


def pid_of(envs: Any, worker: int = 0) -> int:
    pid = envs._group.endpoints[worker].source._child.process.pid
    assert isinstance(pid, int)
    return pid


def process_of(envs: Any) -> subprocess.Popen[bytes]:
    process = envs._group.endpoints[0].source._child.process
    assert isinstance(process, subprocess.Popen)
    return process


def is_gone(pid: int, seconds: float = 5.0) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], seconds)[0])  # Readable once it has ended.
    finally:
        os.close(process)


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_embedded_equals_sync(mode: AutoresetMode | None) -> None:
    with RemoteVectorEnv(
        env_id=COUNTING, num_envs=3, workers=2, autoreset_mode=mode, length=3, base=4.0
    ) as envs:
        shown = AutoresetMode.NEXT_STEP if mode is None else mode
        assert envs.autoreset_mode is shown
        assert [endpoint.num_envs for endpoint in envs._group.endpoints] == [2, 1]
        assert all(e.address.startswith("unix://") for e in envs._group.endpoints)
        makers = [lambda: CountingEnv(3, base=4.0)] * 3
        compare(envs, makers, shown, steps=30)


def test_the_child_and_its_socket_go_with_the_env() -> None:
    envs = RemoteVectorEnv(env_id=COUNTING, num_envs=2)
    pid = pid_of(envs)
    socket = Path(envs._group.endpoints[0].address.removeprefix("unix://"))
    assert socket.exists()
    assert (socket.parent.stat().st_mode & 0o777) == 0o700
    envs.reset()
    envs.close()
    assert is_gone(pid)
    assert not socket.parent.exists()
    envs.close()


def test_a_forgotten_env_ends_its_child() -> None:
    envs = RemoteVectorEnv(env_id=COUNTING, num_envs=2)
    envs.reset()
    pid = pid_of(envs)
    del envs
    gc.collect()
    assert is_gone(pid)


def test_max_episode_steps_is_made_into_the_env() -> None:
    with RemoteVectorEnv(env_id=COUNTING, num_envs=2, max_episode_steps=2) as envs:
        envs.reset()
        envs.step([0, 0])
        assert envs.step([0, 0])[3].tolist() == [True, True]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"env_id": "NoSuchEnv-v0"}, r"NoSuchEnv.*'module:Name-v0'"),
        ({"env_id": "no_such_module:NoSuchEnv-v0"}, "no_such_module"),
        ({"env_id": COUNTING, "no_such_argument": 1}, "no_such_argument"),
        ({"env_id": COUNTING, "base": threading.Lock()}, "cannot be pickled"),
        ({"env_id": COUNTING, "workers": 3, "num_envs": 2}, "workers must be between 1 and"),
        ({"env_id": COUNTING, "num_envs": 0}, "num_envs must be 1 or more"),
        ({"env_id": COUNTING, "autoreset_mode": "Sometimes"}, "Sometimes"),
    ],
    ids=range(7),
)
def test_what_the_child_cannot_serve(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        RemoteVectorEnv(**arguments)


def test_a_child_that_dies_at_once_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedServer({"env_id": "CartPole-v1"}, ConnectionOptions())
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(UnavailableError, match="embedded CartPole-v1: the child process ended"):
        server.open()
    server.close(1.0)
    server.close(1.0)


def test_a_pickle_connects_anew() -> None:
    with (
        EnvServer(lambda: [CountingEnv(9), CountingEnv(9)], max_sessions=3) as server,
        RemoteVectorEnv(
            server.address, token="hush", autoreset_mode="SameStep", episodes_kept=5
        ) as envs,
    ):
        envs.reset()
        content = pickle.dumps(envs)
        assert b"hush" not in content
        with pickle.loads(content) as other:
            assert other.autoreset_mode is AutoresetMode.SAME_STEP
            assert other.episodes.maxlen == 5
            assert other.reset()[0].tolist() == [[0.0], [0.0]]
        envs.step([0, 0])


def test_a_pickle_of_an_embedded_one_starts_a_child() -> None:
    with (
        RemoteVectorEnv(env_id=COUNTING, num_envs=2, length=2) as envs,
        pickle.loads(pickle.dumps(envs)) as other,
    ):
        assert pid_of(other) != pid_of(envs)
        other.reset()
        assert other.step([0, 0])[0].tolist() == [[1.0], [1.0]]
    with (
        RemoteEnv(env_id=COUNTING, length=2) as env,
        pickle.loads(pickle.dumps(env)) as single,
    ):
        assert single.reset()[0].tolist() == [0.0]


def step_in_child(envs: Any, results: Any) -> None:
    try:
        envs.step([0, 0])
    except ForkedError as error:
        results.put(str(error))
    else:
        results.put("stepped")
    envs.close()


def sum_in_child(envs: Any, results: Any) -> None:
    with envs:
        envs.reset(seed=1)
        results.put(float(envs.step([1, 2])[1].sum()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error() -> None:
    with RemoteVectorEnv(env_id=COUNTING, num_envs=2) as envs:
        envs.reset()
        envs.step([0, 0])
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=step_in_child, args=(envs, results))
        child.start()
        assert "another process" in results.get(timeout=20)
        child.join(10)
        assert child.exitcode == 0
        results.close()
        results.join_thread()
        # What the child closed is its own copy.
        assert envs.step([0, 0])[0].tolist() == [[2.0], [2.0]]


def test_a_spawned_child_connects_anew() -> None:
    with RemoteVectorEnv(env_id=COUNTING, num_envs=2) as envs:
        envs.reset()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        child = context.Process(target=sum_in_child, args=(envs, results))
        child.start()
        assert results.get(timeout=60) == 3.0
        child.join(20)
        assert child.exitcode == 0
        results.close()
        results.join_thread()
        envs.step([0, 0])


def run(code: str, *, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of stderr without the note that gRPC's core may write about a peer that is gone."""
    return [line for line in result.stderr.splitlines() if "Got goaway" not in line]


def test_an_exception_after_reset_ends_the_process_and_its_child() -> None:
    result = run(
        f"""
        from rlmesh_gym.env import RemoteVectorEnv
        envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2, timeouts={{"close": 600.0}})
        envs.reset()
        print(envs._group.endpoints[0].source._child.process.pid, flush=True)
        raise ValueError("on purpose")
        """
    )
    assert result.returncode == 1
    assert said(result)[-1] == "ValueError: on purpose"
    assert is_gone(int(result.stdout))


def test_no_warnings_at_the_end() -> None:
    result = run(
        f"""
        import gc
        from rlmesh_gym.env import RemoteVectorEnv
        envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2)
        envs.reset()
        envs.step([0, 0])
        envs.close()
        envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2)
        envs.reset()
        del envs
        gc.collect()
        envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2)
        envs.reset()
        """
    )
    assert (result.returncode, said(result)) == (0, [])


def test_the_child_ends_when_the_parent_is_killed_and_cleans_up(socket_dir: Path) -> None:
    code = f"""
    from rlmesh_gym.env import RemoteVectorEnv
    envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2)
    envs.reset()
    print(envs._group.endpoints[0].source._child.process.pid, flush=True)
    input()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(socket_dir)},
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid, 0.05)
        assert len(list(socket_dir.iterdir())) == 1
        parent.kill()
        parent.wait()
        assert is_gone(pid)
    assert list(socket_dir.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_blocked_step_surfaces(tmp_path: Path) -> None:
    stepping = tmp_path / "stepping"
    os.mkfifo(stepping)
    code = f"""
    from rlmesh_gym.env import RemoteVectorEnv
    envs = RemoteVectorEnv(
        env_id="{CLINGING}", what="step", stepping="{stepping}", timeouts={{"close": 0.3}}
    )
    envs.reset()
    try:
        envs.step([0])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert stepping.read_text() == "stepping"  # Waits until the env writes it.
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=WAIT)[0].strip() == "interrupted"
        assert process.returncode == 0


def test_a_thread_that_an_env_leaves_behind_does_not_keep_the_child(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    envs = RemoteVectorEnv(env_id=CLINGING, num_envs=1, what="thread", closed=str(closed))
    envs.reset()
    process = process_of(envs)
    envs.close()
    assert closed.read_text() == "closed"
    assert process.returncode == 0  # It ended by itself, and was not killed.


def test_a_process_that_an_env_leaves_behind_makes_no_warnings() -> None:
    result = run(
        f"""
        import gc, os, signal
        from rlmesh_gym.env import RemoteVectorEnv
        envs = RemoteVectorEnv(env_id="{CLINGING}", what="process")
        pid = int(envs.reset()[1]["pid"][0])
        envs.close()
        os.kill(pid, signal.SIGKILL)
        del envs
        gc.collect()
        """
    )
    assert (result.returncode, said(result)) == (0, [])


def test_an_env_that_reads_its_input_finds_it_empty() -> None:
    with RemoteVectorEnv(env_id=CLINGING, what="input", timeouts=20) as envs:
        assert envs.reset()[1]["read"].tolist() == [""]


def test_an_env_that_exits_while_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="SystemExit: no licence"):
        RemoteVectorEnv(env_id=CLINGING, what="exit")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_of_the_parent_does_not_keep_the_child(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    envs = RemoteVectorEnv(env_id=CLINGING, num_envs=1, closed=str(closed))
    envs.reset()
    process = process_of(envs)
    context = multiprocessing.get_context("fork")
    done = context.Event()
    worker = context.Process(target=done.wait)
    worker.start()
    try:
        envs.close()
        assert closed.read_text() == "closed"
        assert process.returncode == 0
    finally:
        done.set()
        worker.join(10)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_ends_with_the_parent_though_a_fork_of_it_lives() -> None:
    code = f"""
    import os
    from rlmesh_gym.env import RemoteVectorEnv
    envs = RemoteVectorEnv(env_id="{COUNTING}", num_envs=2)
    envs.reset()
    worker = os.fork()
    if not worker:
        import signal
        signal.pause()
    print(envs._group.endpoints[0].source._child.process.pid, worker, flush=True)
    input()
    """
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, worker = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait()
        assert is_gone(pid)
    finally:
        os.kill(worker, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()


@pytest.mark.parametrize("place", ["start", "finalize"])
def test_an_interrupt_while_the_child_is_started_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        started.append(real(*args, **kwargs))
        return started[-1]

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", start)
    owner = threading.Thread if place == "start" else weakref
    monkeypatch.setattr(owner, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer({"env_id": COUNTING}, ConnectionOptions()).prepare()
    monkeypatch.undo()
    assert [process.poll() for process in started] == [-signal.SIGKILL]
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_starts_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(UnavailableError, match="no child process can be started"):
        RemoteVectorEnv(env_id=COUNTING)
    assert list(tmp_path.iterdir()) == []


def test_what_an_env_prints_does_not_block_it() -> None:
    with RemoteVectorEnv(env_id="tests.env.printing:Printing-v0", num_envs=1) as envs:
        envs.reset()
        for _ in range(20):
            envs.step([0])
        assert np.isfinite(envs.step([0])[1]).all()


def test_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Beside-v0', entry_point='tests.fake_envs:CountingEnv')\n"
    )
    (tmp_path / "script.py").write_text(
        "from rlmesh_gym.env import RemoteVectorEnv\n"
        "with RemoteVectorEnv(env_id='beside:Beside-v0') as envs:\n"
        "    print(envs.reset()[0].tolist())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.strip() == "[[0.0]]", result.stderr


def test_equality_of_trajectories_with_cartpole() -> None:
    import gymnasium as gym

    makers = [lambda: gym.make("CartPole-v1")] * 4
    reference = SyncVectorEnv(makers)
    with RemoteVectorEnv(env_id="CartPole-v1", num_envs=4, workers=2) as envs:
        assert envs.observation_space == reference.observation_space
        assert envs.action_space == reference.action_space
        compare(envs, makers, AutoresetMode.NEXT_STEP, steps=100)
    reference.close()


@pytest.mark.parametrize("given", [None, "", "mine"])
@pytest.mark.parametrize("variable", [None, "another"])
def test_the_child_asks_for_the_token_that_is_presented(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, given: str | None
) -> None:
    monkeypatch.delenv("RLMESH_GYM_TOKEN", raising=False)
    if variable is not None:
        monkeypatch.setenv("RLMESH_GYM_TOKEN", variable)
    expected = variable if given is None else given
    with RemoteVectorEnv(env_id=COUNTING, token=given) as envs:
        envs.reset()
        envs.step(np.zeros(1, np.int64))
        address = envs._group.endpoints[0].source._child._address  # type: ignore[attr-defined]
        if expected:
            with pytest.raises(AuthenticationError):
                EnvSession.open(address, token="")
