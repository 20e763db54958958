"""The child process of an embedded endpoint, as a process and in parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.server.env.embedded import build
from rlmesh_gym.server.env.lane_vector import LaneVector
from tests.env_wire import infos, raw_client

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@contextmanager
def child(config: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rlmesh_gym.server.env.embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
        **options,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(config.encode())
        yield process
    finally:
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def answer(process: subprocess.Popen[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())  # type: ignore[no-any-return]


def rest(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    return process.wait(20), process.stdout.read(), process.stderr.read()


def line(**config: Any) -> str:
    return json.dumps(config) + "\n"


COUNTING = "tests.fake_envs:RlmeshTest/Counting-v0"


def test_serves_until_its_input_ends(socket_dir: Path) -> None:
    path = socket_dir / "env.sock"
    config = line(
        env_id=COUNTING,
        num_envs=3,
        autoreset_mode="SameStep",
        env_kwargs={"length": 2},
        render_mode="rgb_array",
        address=f"unix://{path}",
    )
    with child(config) as process:
        address = answer(process)["address"]
        assert address == f"unix://{path}"
        with raw_client(address) as client:
            assert client.contract.env_id == "RlmeshTest/Counting-v0"
            assert client.contract.num_envs == 3
            assert client.contract.autoreset_mode is AutoresetMode.SAME_STEP
            assert client.contract.render_mode == "rgb_array"
            join = client.open()
            join.reset(seeds=[1])
            join.step([1] * 3)
            assert infos(join.step([1] * 3))["_final_obs"] == [True] * 3
            assert process.stdin is not None
            process.stdin.close()
            assert rest(process) == (0, b"", b"")
    assert not path.exists()


def test_a_killed_parent_takes_it_along(socket_dir: Path) -> None:
    path = socket_dir / "env.sock"
    config = line(env_id=COUNTING, address=f"unix://{path}")
    # The parent of the child is a process of its own, which dies without a word.
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'rlmesh_gym.server.env.embedded'],\n"
        "                         stdin=subprocess.PIPE)\n"
        f"child.stdin.write({config.encode()!r})\n"
        "child.stdin.flush()\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    try:
        assert "address" in json.loads(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        # The pipe's last writer is the child: it is gone when the pipe ends.
        assert parent.stderr.read() == b""
        assert not path.exists()
    finally:
        parent.kill()
        parent.wait(10)
        parent.stdout.close()
        parent.stderr.close()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (line(env_id="NoSuchEnv-v3"), "NoSuchEnv"),
        (line(env_id="no_such_module_x:NoSuchEnv-v3"), "no_such_module_x"),
        (line(), "env_id is missing"),
        (line(env_id=COUNTING, env_kwargs={"wings": 2}), "wings"),
        ("nonsense\n", "JSONDecodeError"),
    ],
)
def test_reports_what_it_cannot_serve(config: str, match: str) -> None:
    with child(config) as process:
        assert match in answer(process)["error"]
        status, out, err = rest(process)
        assert (status, out) == (1, b"")
        assert b"Traceback" not in err


def test_what_an_env_prints_does_not_disturb(tmp_path: Path) -> None:
    (tmp_path / "chatty_envs.py").write_text(
        "import os, gymnasium as gym\n"
        "from tests.fake_envs import CountingEnv\n"
        "def make(**_):\n"
        "    print('loading assets')\n"
        "    os.write(1, b'from native code\\n')\n"
        "    return CountingEnv()\n"
        "gym.register('Chatty-v0', entry_point=make)\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths}
    with child(line(env_id="chatty_envs:Chatty-v0"), env=environment) as process:
        assert set(answer(process)) == {"address"}
        # Ctrl-C in a terminal reaches the child too; it is the parent's to act on.
        process.send_signal(signal.SIGINT)
        assert process.stdin is not None
        process.stdin.close()
        status, out, err = rest(process)
        assert (status, out) == (0, b"")
        assert b"loading assets" in err
        assert b"from native code" in err


def test_terminates_cleanly(socket_dir: Path) -> None:
    path = socket_dir / "env.sock"
    with child(line(env_id=COUNTING, address=f"unix://{path}")) as process:
        answer(process)
        process.terminate()
        status, out, err = rest(process)
        assert status == 128 + signal.SIGTERM
        assert (out, err) == (b"", b"")
        assert not path.exists()


def test_no_configuration_is_no_work() -> None:
    with child("") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert rest(process) == (0, b"", b"")


def test_build() -> None:
    config = {"env_id": COUNTING, "num_envs": 2, "env_kwargs": {"length": 3}}
    lanes = build(config)
    assert isinstance(lanes, list)
    assert len(lanes) == 2
    for name, mode in (("NextStep", AutoresetMode.NEXT_STEP), ("DISABLED", AutoresetMode.DISABLED)):
        envs = build({**config, "autoreset_mode": name})
        assert isinstance(envs, LaneVector)
        assert envs.autoreset_mode is mode
        envs.close()
    with pytest.raises(ConfigurationError, match="must be one of"):
        build({**config, "autoreset_mode": "Sometimes"})
    with pytest.raises(ConfigurationError, match=r"unknown keys \['lanes'\]"):
        build({**config, "lanes": 2})
