from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import rlmesh_gym
from rlmesh_gym import cli
from rlmesh_gym.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Outcome

COMMANDS = ["serve", "serve-model", "ping", "check", "demo", "run", "merge", "bench"]


def test_help_lists_every_command(program: Callable[..., Outcome]) -> None:
    shown = program("--help")
    assert shown.code == 0
    for command in COMMANDS:
        assert f"    {command} " in shown.out
    assert "RLMESH_GYM_TOKEN" in shown.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(program: Callable[..., Outcome], command: str) -> None:
    shown = program(command, "--help")
    assert shown.code == 0
    assert f"usage: rlmesh-gym {command} " in shown.out
    # An example, or what happens, beyond the list of options.
    assert len(shown.out.splitlines()) > 12


def test_version(program: Callable[..., Outcome]) -> None:
    assert program("--version").out == f"rlmesh-gym {rlmesh_gym.__version__}\n"


def test_no_command_shows_the_help(program: Callable[..., Outcome]) -> None:
    shown = program()
    assert shown.code == 2
    assert "commands:" in shown.out


@pytest.mark.parametrize("arguments", [["frobnicate"], ["serve"], ["ping", "a:1", "--count", "0"]])
def test_wrong_usage(program: Callable[..., Outcome], arguments: list[str]) -> None:
    shown = program(*arguments)
    assert shown.code == 2
    assert "usage: rlmesh-gym" in shown.err
    assert "Traceback" not in shown.err


def test_the_module_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlmesh_gym", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"rlmesh-gym {rlmesh_gym.__version__}\n"


def test_help_does_not_wait_for_grpc() -> None:
    script = (
        "import sys\n"
        "from rlmesh_gym.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "sys.exit('grpc' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("a\n b"), 2),
        (UnavailableError("a\n b", endpoint="tcp://h:1"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_a_line_and_a_code(
    program: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    from rlmesh_gym.cli import ping

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(ping, "execute", fail)
    shown = program("ping", "h:1")
    assert shown.code == code
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    if code != 130:
        assert shown.err.startswith("rlmesh-gym: ")
        assert shown.err.endswith("a b\n")
        for arguments in (["-v", "ping", "h:1"], ["ping", "h:1", "--verbose"]):
            detailed = program(*arguments)
            assert detailed.code == code
            assert "Traceback" in detailed.err
            assert detailed.error_line == shown.error_line


def test_defects_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlmesh_gym.cli import ping

    def fail(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(ping, "execute", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["ping", "h:1"])


def test_a_closed_pipe_is_no_traceback() -> None:
    script = f"{sys.executable} -m rlmesh_gym --help | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_terminal_without_unicode(tmp_path: object) -> None:
    script = "from rlmesh_gym.cli import main\nmain([])\nprint('─ µs …')\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert done.stdout.endswith(b"\n? ?s ?\n")
