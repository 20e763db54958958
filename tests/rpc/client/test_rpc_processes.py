"""What happens to sessions when processes fork, are interrupted, or end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rpc.raw_endpoints import env_answer, env_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.rpc import JoinPeer

ROOT = Path(__file__).resolve().parents[3]
WAIT = 10.0
# What a process would wait for if it did not end by itself; far more than WAIT.
NEVER = 600.0

CONNECT = """
import contextlib, gc, os, sys, threading
from rlmesh_gym.errors import ClosedError, ForkedError
from rlmesh_gym.rpc import EnvSession
from tests.rpc.raw_endpoints import ACTION, env_host
session = EnvSession.open(sys.argv[1], timeouts={"close": 600.0})
session.reset().result(10)
"""

BLOCKED_STEP = """
pending = session.step(ACTION)
print("BLOCKED", flush=True)
pending.result()
"""

ENDINGS = {
    "open session": "",
    "answer due": "pending = session.step(ACTION)",
    "uncaught error": "raise SystemExit(3)",
    "dropped": "del session; gc.collect()",
    "closed twice": "session.close(); session.close()",
    "in a cycle": "loop = [session]; loop.append(loop); del session, loop",
    "another thread waits": (
        "def wait(pending):\n"
        "    with contextlib.suppress(ClosedError): pending.result()\n"
        "threading.Thread(target=wait, args=(session.step(ACTION),), daemon=True).start()"
    ),
    "a server runs": "host = env_host(); host.__enter__()",
    "a server is at work": (
        "inside = threading.Event()\n"
        "def join(requests, peer):\n"
        "    for request in requests:\n"
        "        inside.set()\n"
        "        threading.Event().wait()\n"
        "host = env_host(join)\n"
        "other = EnvSession.open(host.__enter__(), timeouts={'close': 600.0})\n"
        "pending = other.reset(); inside.wait(10)"
    ),
    "a server is in use": (
        "host = env_host()\n"
        "other = EnvSession.open(host.__enter__(), timeouts={'close': 600.0})\n"
        "other.reset().result(10); other.step(ACTION).result(10)"
    ),
}

FORKS = """
import warnings
warnings.simplefilter("ignore")  # That threads and fork do not go together is the point.
pid = os.fork()
if pid == 0:
    refused = 0
    for use in (session.reset, lambda: session.step(ACTION), session.render, session.ping,
                session.request_shutdown):
        try:
            use()
        except ForkedError:
            refused += 1
    session.close()
    del session
    gc.collect()
    os._exit(refused)
_, status = os.waitpid(pid, 0)
print(f"REFUSED {os.waitstatus_to_exitcode(status)}", flush=True)
session.step(ACTION).result(10)  # The parent's is as good as before.
session.close()
print("PARENT FINE", flush=True)
"""

WAITS_IN_CHILD = """
import warnings
warnings.simplefilter("ignore")
pending = session.step(ACTION)
pid = os.fork()
if pid == 0:
    try:
        pending.result(60)
    except ForkedError:
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(pid, 0)
print(f"CHILD {os.waitstatus_to_exitcode(status)}", flush=True)
"""

MULTIPROCESSING = """
import multiprocessing
import warnings
warnings.simplefilter("ignore")

def connect_anew(address):
    try:
        with EnvSession.open(address, timeouts={"connect": 3.0}) as own:
            raise SystemExit(5 if own.contract.num_envs == 2 else 1)
    except ForkedError as error:
        raise SystemExit(6 if "spawn" in str(error) else 1)

child = multiprocessing.get_context("fork").Process(target=connect_anew, args=(sys.argv[1],))
child.start()
child.join(20)
print(f"EXIT {child.exitcode}", flush=True)
if child.is_alive():
    child.kill()
"""


def start(script: str, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONNECT + script, address],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def blocking_address() -> Iterator[str]:
    release = threading.Event()

    def join(requests: Iterator[Any], peer: JoinPeer) -> Iterator[Any]:
        for request in requests:
            if request.HasField("step"):
                release.wait(NEVER)
            yield env_answer(request)

    with env_host(join) as address:
        yield address
        release.set()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    stdout = process.stdout
    if stdout is None or stdout.readline().strip() != word:
        process.kill()
        pytest.fail(f"no {word}: {process.communicate()[1]}")


@pytest.mark.usefixtures("interruptible")
def test_interrupt_surfaces_from_a_blocked_result(blocking_address: str) -> None:
    with start(BLOCKED_STEP, blocking_address) as process:
        wait_for(process, "BLOCKED")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=WAIT)
    assert "KeyboardInterrupt" in stderr
    assert process.returncode == -signal.SIGINT


@pytest.mark.usefixtures("interruptible")
def test_interrupt_within_a_context_manager(blocking_address: str) -> None:
    with start("with session:\n    " + BLOCKED_STEP.replace("\n", "\n    "), blocking_address) as p:
        wait_for(p, "BLOCKED")
        p.send_signal(signal.SIGINT)
        _, stderr = p.communicate(timeout=WAIT)
    assert "KeyboardInterrupt" in stderr


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_process_ends_promptly(ending: str, blocking_address: str) -> None:
    script = f'print("LAST", flush=True)\n{ending}\n'
    with start(script, blocking_address) as process:
        wait_for(process, "LAST")
        _, stderr = process.communicate(timeout=WAIT)
    assert process.returncode == (3 if "SystemExit" in ending else 0), stderr
    assert stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told() -> None:
    with env_host() as address, start(FORKS, address) as process:
        stdout, stderr = process.communicate(timeout=30)
    assert stdout.split("\n")[:2] == ["REFUSED 5", "PARENT FINE"], stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pending_in_a_forked_child(blocking_address: str) -> None:
    with start(WAITS_IN_CHILD, blocking_address) as process:
        stdout, stderr = process.communicate(timeout=30)
    assert "CHILD 7" in stdout, stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_connects_anew_or_is_told_why_not() -> None:
    with env_host() as address, start(MULTIPROCESSING, address) as process:
        stdout, stderr = process.communicate(timeout=60)
    # Newer releases of gRPC work in the child; with older ones it is told what to do.
    assert stdout.strip() in {"EXIT 5", "EXIT 6"}, stderr


@pytest.mark.usefixtures("interruptible")
def test_server_process_ends_on_interrupt() -> None:
    script = """
host = env_host()
with host as address:
    print("SERVES", flush=True)
    other = EnvSession.open(address, timeouts={"close": 600.0})
    other.reset().result(10)
    threading.Event().wait()
"""
    with env_host() as address, start(script, address) as process:
        wait_for(process, "SERVES")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT)


def test_killed_server_in_the_middle_of_a_step() -> None:
    from rlmesh_gym.errors import UnavailableError
    from rlmesh_gym.rpc import EnvSession
    from tests.rpc.raw_endpoints import ACTION

    script = """
release = threading.Event()
from tests.rpc.raw_endpoints import env_answer
def join(requests, peer):
    for request in requests:
        if request.HasField("step"):
            print("IN STEP", flush=True)
            release.wait()
        yield env_answer(request)
with env_host(join) as own:
    print(own, flush=True)
    release.wait()
"""
    with env_host() as outer, start(script, outer) as process:
        if process.stdout is None:
            pytest.fail("no stdout")
        address = process.stdout.readline().strip()
        session = EnvSession.open(address, timeouts={"close": NEVER})
        session.reset().result(WAIT)
        pending = session.step(ACTION)
        wait_for(process, "IN STEP")
        process.kill()
        with pytest.raises(UnavailableError, match=r"step: .*lost"):
            pending.result(WAIT)
        session.close()
        session.close()
