"""Running the program: inside this process, or as a process that serves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlmesh_gym.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line that tells what went wrong; progress bars aside."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("rlmesh-gym: ")]
        return line


Program = "Callable[..., Outcome]"


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process; paths may be given as they are."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@contextlib.contextmanager
def started(*arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """The program as a process of its own, killed at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlmesh_gym", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that a serving process prints in its first line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " at " in line, line + (process.stderr.read() if process.stderr else "")
    return line.split(" at ")[1].split()[0]
