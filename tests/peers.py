"""Real processes of the released ``rlmesh`` 0.1.0, for interop tests.

Endpoints are context managers; they wait until the process serves and end it on exit::

    with env_endpoint("lanes", "CartPole-v1", num_envs=3) as peer:
        envs = RemoteVectorEnv(peer.address)

    with env_endpoint("next_step", "tests.fake_envs:CountingEnv", num_envs=2,
                      kwargs={"length": 5}, address=f"unix://{tmp_path}/a b.sock") as peer:
        ...

    with model_endpoint("chunk") as peer:            # kinds: see MODEL_KINDS
        policy = RemotePolicy(peer.address, envs)

``peer.address``, ``peer.process`` (a Popen), ``peer.kill()`` (SIGKILL, waits), ``peer.stderr()``.

Env kinds are ``single``, ``lanes``, ``next_step`` and ``disabled``; the last two are a Gymnasium
SyncVectorEnv in that mode. A factory is ``"module:function"`` or what ``gym.make`` takes;
``kwargs`` go to it and must be JSON.

Its clients run as one process that plays a plan and hands back what it saw, numpy arrays included::

    seen = drive_env(server.address, [("reset", 5, None), ("step", 1), ("render",)])
    seen["results"][0]["observation"]
    seen = drive_env(server.address, [("reset", [1, 2], None), ("step", np.array([0, 1]))],
                     client="RemoteVectorEnv")
    seen = run_model(server.address, "predict", episodes=2, seeds=[1, 2])      # its Model.run
    seen = model_episodes(env_address, model_address, seeds=[1], execution_horizon=4)

A call that raised is ``{"error": class name, "message": text}``. All need only this module; the
test process itself never imports ``rlmesh``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tests.peer_scripts import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "CHUNK",
    "ENV_KINDS",
    "MODEL_KINDS",
    "STACK",
    "Peer",
    "drive_env",
    "env_endpoint",
    "expected_action",
    "model_endpoint",
    "model_episodes",
    "run_model",
]

EnvKind = Literal["single", "lanes", "next_step", "disabled"]
ModelKind = Literal[
    "predict",
    "batch",
    "chunk",
    "native_chunk",
    "chunk_and_batch",
    "slow",
    "failing",
    "clinging",
    "stacked",
]
ENV_KINDS: tuple[EnvKind, ...] = ("single", "lanes", "next_step", "disabled")
MODEL_KINDS: tuple[ModelKind, ...] = (
    "predict",
    "batch",
    "chunk",
    "native_chunk",
    "chunk_and_batch",
    "slow",
    "failing",
    "clinging",
    "stacked",
)

CHUNK = 4
"""Actions in one answer of the chunk models."""
STACK = 3
"""Images that the ``stacked`` model looks at."""

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 60.0


def expected_action(observation: Any, frame: int = 0, num_actions: int = 2) -> int:
    """Return what the peer's models answer for one observation, at ``frame`` of the chunk."""
    total = float(np.abs(np.asarray(observation, dtype=np.float64)).sum())
    return (int(total * 1000) + frame) % num_actions


@dataclass
class Peer:
    """A running process of the released package.

    Attributes:
        address: Where it serves.
        process: The process.
    """

    address: str
    process: subprocess.Popen[str]
    _log: Path

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stderr(self) -> str:
        """Return what it has written to stderr so far."""
        return self._log.read_text()


@contextlib.contextmanager
def env_endpoint(
    kind: EnvKind,
    factory: str = "CartPole-v1",
    *,
    num_envs: int = 1,
    kwargs: Mapping[str, Any] | None = None,
    address: str = "127.0.0.1:0",
    allow_shutdown: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Peer]:
    """Serve ``factory`` with the released package's EnvServer while the context lasts.

    Args:
        kind: One of ``ENV_KINDS``.
        factory: ``"module:function"`` or a Gymnasium id.
        num_envs: Lanes; ignored for ``single``.
        kwargs: For the factory; JSON.
        address: ``"127.0.0.1:0"`` or ``"unix:///path"``.
        allow_shutdown: Whether a client may stop it.
        environment: Further environment variables, such as ``RLMESH_VALIDATION_POLICY``.
    """
    plan = {
        "kind": kind,
        "factory": factory,
        "num_envs": num_envs,
        "kwargs": dict(kwargs or {}),
        "address": address,
        "allow_shutdown": allow_shutdown,
    }
    with _process("serve_env", json.dumps(plan), environment) as peer:
        yield peer


@contextlib.contextmanager
def model_endpoint(
    kind: ModelKind,
    *,
    address: str | None = None,
    allow_shutdown: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Peer]:
    """Serve a model of ``tests/peer_scripts/models.py`` while the context lasts.

    Args:
        kind: One of ``MODEL_KINDS``.
        address: ``"tcp://host:port"`` or ``"unix:///path"``; a free port of 127.0.0.1 by default.
        allow_shutdown: Whether a client may stop it.
        environment: Further environment variables.
    """
    if address is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    plan = {"kind": kind, "address": address, "allow_shutdown": allow_shutdown}
    with _process("serve_model", json.dumps(plan), environment) as peer:
        yield peer


def drive_env(
    address: str,
    calls: Sequence[Sequence[Any]],
    *,
    client: Literal["RemoteEnv", "RemoteVectorEnv"] = "RemoteEnv",
    timeout: float = 60.0,
    **options: Any,
) -> dict[str, Any]:
    """Play ``calls`` on the endpoint with one of the released package's clients.

    Args:
        address: The endpoint.
        calls: ``("reset", seed, options)``, ``("step", action)``, ``("render",)``,
            ``("shutdown", reason)``.
        client: The class of ``rlmesh.numpy``.
        timeout: Seconds for the whole of it.
        **options: For the client, such as ``request_timeout_seconds``.

    Returns:
        ``env_id``, ``num_envs``, ``render_mode``, ``metadata``, the spaces as text, and
        ``results``, one per call.
    """
    plan = {
        "address": address,
        "calls": [list(call) for call in calls],
        "client": client,
        "options": options,
    }
    return _result("drive_env", plan, timeout)


def run_model(
    env_address: str, model: ModelKind = "predict", *, timeout: float = 60.0, **options: Any
) -> dict[str, Any]:
    """Run the released package's ``Model.run`` on an env endpoint.

    Args:
        env_address: The endpoint.
        model: One of ``MODEL_KINDS``.
        timeout: Seconds for the whole of it.
        **options: For ``run``: ``episodes``, ``seeds``, ``max_episode_steps``, ...

    Returns:
        ``episodes`` (seed, steps, reward, terminated, truncated, success) and ``steps`` (action,
        reward).
    """
    return _result(
        "run_model", {"env_address": env_address, "model": model, "options": options}, timeout
    )


def model_episodes(
    env_address: str,
    model_address: str,
    *,
    seeds: Sequence[int],
    max_steps: int = 1000,
    timeout: float = 60.0,
    **options: Any,
) -> dict[str, Any]:
    """Play episodes with the released package's ``RemoteEnv`` and ``RemoteModel.session``.

    Args:
        env_address: An endpoint with one lane.
        model_address: A model endpoint on TCP; the package takes no Unix socket here.
        seeds: One episode for each.
        max_steps: Most steps of an episode.
        timeout: Seconds for the whole of it.
        **options: For ``session``: ``execution_horizon``, ...

    Returns:
        ``episodes``: seed, steps (action, reward, observation), terminated, truncated.
    """
    plan = {
        "env_address": env_address,
        "model_address": model_address,
        "seeds": list(seeds),
        "max_steps": max_steps,
        "options": options,
    }
    return _result("run_model", plan, timeout)


def _command(script: str, argument: str) -> list[str]:
    return [sys.executable, "-m", f"tests.peer_scripts.{script}", argument]


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    # Without an edition named, the package warns at every start.
    return {**os.environ, "RLMESH_WORKFLOW_EDITION": "2026.06", **(more or {})}


def _result(script: str, plan: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    done = subprocess.run(
        _command(script, exchange.dumps(dict(plan))),
        cwd=_ROOT,
        env=_environment(None),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            answer: dict[str, Any] = exchange.loads(line.removeprefix("RESULT "))
            return answer
    message = f"{script} ended with {done.returncode}:\n{done.stderr}"
    raise AssertionError(message)


@contextlib.contextmanager
def _process(script: str, argument: str, environment: Mapping[str, str] | None) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory(prefix="rlmesh-peer-") as directory:
        log = Path(directory) / "stderr"
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                _command(script, argument),
                cwd=_ROOT,
                env=_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            try:
                yield Peer(_address(process, log), process, log)
            finally:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        # It reads on to the end, so that the process never blocks on a full pipe.
        stdout = process.stdout
        if stdout is not None:
            for line in stdout:
                lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, name="peer-stdout", daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=_START_SECONDS)
        except queue.Empty:
            line = None
        if line is None:
            message = f"the peer did not start:\n{log.read_text()}"
            raise AssertionError(message)
        if line.startswith("ADDRESS "):
            return line.removeprefix("ADDRESS ")
