"""Where memory is short, what a peer sends costs an error with a name, on either side."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import RemoteError
from tests.fake_envs import CountingEnv
from tests.lengths import IS_THOROUGH

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are set as Linux has them")

LIMIT = """
import resource, sys
def limit(mib):
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + mib * 2**20,) * 2)
"""
CLIENT = (
    LIMIT
    + """
import numpy, rlmesh_gym, rlmesh_gym.errors
envs = rlmesh_gym.RemoteVectorEnv(sys.argv[1])
envs.reset()
limit(int(sys.argv[2]))
try:
    envs.step(numpy.ones(2, int))
except rlmesh_gym.errors.RemoteError as error:
    print(type(error).__name__, error)
"""
)
SERVER = (
    LIMIT
    + """
import gymnasium, rlmesh_gym
with rlmesh_gym.EnvServer(gymnasium.make("CartPole-v1")) as server:
    limit(int(sys.argv[1]))
    print(server.address, flush=True)
    sys.stdin.readline()
"""
)
NUMBERS = [list(range(1000)) for _ in range(500)]
"""Two megabytes of bytes, and many times that as messages and as Python has them."""


class LoudEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "numbers": NUMBERS}


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(120)
def test_an_answer_for_which_a_client_has_no_memory() -> None:
    with rg.EnvServer([LoudEnv(50), LoudEnv(50)]) as server:
        said = []
        for mib in (10, 40) if IS_THOROUGH else (20,):
            with child(CLIENT, server.address, str(mib)) as client:
                out, errors = client.communicate(timeout=60)
            assert client.returncode == 0, errors
            said.append(out)
    assert all("ProtocolError" in out and "cannot be read" in out for out in said), said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mib", [20])
def test_a_request_for_which_a_server_has_no_memory(mib: int) -> None:
    with child(SERVER, str(mib)) as server:
        assert server.stdout is not None
        with rg.RemoteEnv(server.stdout.readline().strip()) as env:
            with pytest.raises(RemoteError):
                env.reset(options={"numbers": NUMBERS})
            env.reset(seed=1)
            observation, *_ = env.step(env.action_space.sample())
            assert np.isfinite(observation).all()
        _, errors = server.communicate("\n", timeout=60)
        assert server.returncode == 0, errors
