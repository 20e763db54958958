"""Endpoints of every kind, ours and the released package's, started once and used again and again.

One session at a time; ``SeededEnv`` forgets all of the last one at the next seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from typing_extensions import Self

from rlmesh_gym.server import EnvServer
from tests.env.seeded_env import SeededEnv

__all__ = ["OWN_MODE", "EndpointKind", "SharedEndpoints"]

EndpointKind = Literal["single", "lanes", "next_step", "same_step", "disabled"]

OWN_MODE: dict[EndpointKind, AutoresetMode] = {
    "single": AutoresetMode.DISABLED,
    "lanes": AutoresetMode.DISABLED,
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class _Plan:
    kind: EndpointKind
    num_envs: int
    kwargs: tuple[tuple[str, Any], ...]
    copy: int


class SharedEndpoints:
    """Starts endpoints of ``SeededEnv`` on demand; use it as a context manager."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[bool, _Plan], str] = {}
        self._resources = contextlib.ExitStack()
        self._released: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def address(
        self,
        kind: EndpointKind,
        num_envs: int = 1,
        *,
        released: bool = False,
        copy: int = 0,
        **kwargs: Any,
    ) -> str:
        """Return the address of such an endpoint.

        Args:
            kind: What it serves; the last three are a SyncVectorEnv in that mode.
            num_envs: Lanes.
            released: Served by the released package, in a process of its own.
            copy: Tells several of the same kind apart.
            **kwargs: For ``SeededEnv``; JSON.
        """
        plan = _Plan(kind, num_envs, tuple(sorted(kwargs.items())), copy)
        if (released, plan) not in self._addresses:
            start = self._start_released if released else self._start_ours
            self._addresses[released, plan] = start(plan)
        return self._addresses[released, plan]

    def _start_ours(self, plan: _Plan) -> str:
        make = partial(SeededEnv, **dict(plan.kwargs))
        if plan.kind == "single":
            env: Any = make()
        elif plan.kind == "lanes":
            env = [make() for _ in range(plan.num_envs)]
        else:
            env = SyncVectorEnv([make] * plan.num_envs, autoreset_mode=OWN_MODE[plan.kind])
        return self._resources.enter_context(EnvServer(env)).address

    def _start_released(self, plan: _Plan) -> str:
        if self._released is None:
            self._released = self._resources.enter_context(_released_process())
        process = self._released
        line = {"kind": plan.kind, "num_envs": plan.num_envs, "kwargs": dict(plan.kwargs)}
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        address = process.stdout.readline().strip()
        assert address, "the released server ended; see its stderr"
        return address


@contextlib.contextmanager
def _released_process() -> Any:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.env.serve_released"],
        cwd=_ROOT,
        # Without an edition named, the package warns at every start.
        env={**os.environ, "RLMESH_WORKFLOW_EDITION": "2026.06"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
