from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest

import rlmesh_gym as rg
from tests.cli.conftest import Outcome, address_of, started
from tests.peers import env_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLICY = (
    "import numpy as np\ndef act(observations):\n    return (observations[:, 2] > 0).astype(int)\n"
)


def ended(process: object) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=20)  # type: ignore[attr-defined]
    return process.returncode, out, err  # type: ignore[attr-defined]


@pytest.mark.usefixtures("interruptible")
def test_serve_ping_step_and_stop(program: Callable[..., Outcome], socket_dir: Path) -> None:
    where = f"unix://{socket_dir}/env.sock"
    with started("serve", "CartPole-v1", "--num-envs", "3", "--address", where) as server:
        address = address_of(server)
        assert address == where
        shown = program("ping", address)
        assert shown.code == 0
        facts = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
        assert facts["kind"] == "env"
        assert facts["lanes"] == "3"
        assert facts["autoreset"] == "NEXT_STEP"
        assert facts["action"] == "Discrete(2)"
        assert "rlmesh-gym" in facts["peer"]
        with rg.RemoteVectorEnv(address) as envs:
            observations, _ = envs.reset(seed=1)
            assert observations.shape == (3, 4)
            envs.step(envs.action_space.sample())
            # A ping takes no session, so it may look at an endpoint that is in use.
            assert program("ping", address).code == 0
        server.send_signal(signal.SIGINT)
        code, out, err = ended(server)
    assert code == 0
    assert out == "stopping\n"
    assert "Traceback" not in err


def test_serve_model_as_json_and_sigterm(
    program: Callable[..., Outcome], tmp_path: Path, socket_dir: Path
) -> None:
    (tmp_path / "policy.py").write_text(POLICY)
    where = f"unix://{socket_dir}/model.sock"
    with started("serve-model", "policy:act", "--address", where, cwd=tmp_path) as server:
        address = address_of(server)
        shown = program("ping", address, "--json", "--count", "3")
        assert shown.code == 0
        facts = json.loads(shown.out)
        assert facts["kind"] == "model"
        assert facts["round_trip"]["count"] == 3
        assert 0 < facts["round_trip"]["least"] <= facts["round_trip"]["greatest"]
        assert facts["peer"]["package"] == "rlmesh-gym"
        server.send_signal(signal.SIGTERM)
        code, out, _ = ended(server)
    assert (code, out) == (0, "stopping\n")


@pytest.mark.usefixtures("interruptible")
def test_two_signals_in_a_row_end_it_too(socket_dir: Path) -> None:
    with started("serve", "CartPole-v1", "--address", f"unix://{socket_dir}/env.sock") as server:
        address_of(server)
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        code, _, err = ended(server)
    assert code in {0, 130}
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "serving CartPole-v1 at tcp://127.0.0.1:"),
        (("--num-envs", "2", "--lanes"), "serving CartPole-v1 (2 lanes, one by one) at"),
        (
            ("--num-envs", "1", "--autoreset-mode", "same-step"),
            "serving CartPole-v1 (1 lane, SAME_STEP) at",
        ),
    ],
)
def test_what_is_served(
    program: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.setattr("rlmesh_gym.cli.signals.wait_or_interrupt", lambda wait: True)
    shown = program("serve", "CartPole-v1", *options)
    assert shown.code == 0
    assert shown.out.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("NoSuch-v0",), "NoSuch"),
        (("CartPole-v1", "--env-kwargs", "size"), "expected name=value"),
        (("CartPole-v1", "--env-kwargs", "colour=red"), "making 'CartPole-v1' failed"),
        (("CartPole-v1", "--autoreset-mode", "disabled"), "need a vector"),
        (("CartPole-v1", "--num-envs", "2", "--lanes", "--processes"), "need a vector"),
        (("CartPole-v1", "--address", "nowhere"), "nowhere"),
        (("CartPole-v1", "--tls-cert", "only.pem"), "come as a pair"),
    ],
)
def test_what_cannot_be_served(
    program: Callable[..., Outcome], arguments: tuple[str, ...], text: str
) -> None:
    shown = program("serve", *arguments)
    assert shown.code in {1, 2}
    assert text in shown.error_line
    assert "Traceback" not in shown.err


def test_an_address_in_use(program: Callable[..., Outcome]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shown = program("serve", "CartPole-v1", "--address", f"127.0.0.1:{port}")
    assert shown.code == 2
    assert "address in use" in shown.error_line
    assert str(port) in shown.error_line


def test_ping_says_what_is_wrong(program: Callable[..., Outcome], socket_dir: Path) -> None:
    nothing = program("ping", f"unix://{socket_dir}/nothing.sock")
    assert nothing.code == 1
    assert "nothing listens there" in nothing.error_line
    assert "nothing.sock" in nothing.error_line
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        other = program("ping", f"127.0.0.1:{port}", "--timeout", "1")
    assert other.code == 1
    assert other.error_line != nothing.error_line


def test_tokens_are_asked_for_and_never_shown(
    program: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "swordfish-9d2"
    with rg.ModelServer(lambda observations: observations, token=secret) as server:
        refused = program("ping", server.address)
        assert refused.code == 1
        assert "RLMESH_GYM_TOKEN" in refused.error_line
        wrong = program("-v", "ping", server.address, "--token", "wrong-4711")
        assert wrong.code == 1
        assert "4711" not in wrong.out + wrong.err
        assert program("ping", server.address, "--token", secret).code == 0
        monkeypatch.setenv("RLMESH_GYM_TOKEN", secret)
        for arguments in (["ping"], ["ping", "--json"], ["-v", "ping"]):
            shown = program(*arguments, server.address)
            assert shown.code == 0
            assert secret not in shown.out + shown.err


@pytest.mark.interop
def test_ping_of_the_released_package(program: Callable[..., Outcome]) -> None:
    with env_endpoint("lanes", "CartPole-v1", num_envs=2) as peer:
        shown = program("ping", peer.address)
    assert shown.code == 0
    facts = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert (facts["kind"], facts["lanes"], facts["autoreset"]) == ("env", "2", "DISABLED")
    assert "subset_step" in facts["capabilities"]
    assert "0.1.0" in facts["peer"]


@pytest.mark.parametrize(("what", "key", "value"), [("pool", "sum", 12), ("worker", "status", -15)])
def test_an_env_with_processes_of_its_own(
    what: str, key: str, value: int, socket_dir: Path
) -> None:
    where = f"unix://{socket_dir}/env.sock"
    arguments = ("--env-kwargs", f"what={what}", "--address", where)
    with started("serve", "tests.env.hosted_env:Hosted-v0", *arguments) as server:
        with rg.RemoteEnv(address_of(server)) as env:
            # Of workers that were forked beside gRPC's threads, some have crashed.
            assert [env.reset()[1][key] for _ in range(40)] == [value] * 40
            env.step(0)
        server.send_signal(signal.SIGTERM)
        code, out, err = ended(server)
    assert (code, out) == (0, "stopping\n"), err


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_env_on_the_main_thread(
    number: signal.Signals, socket_dir: Path, tmp_path: Path
) -> None:
    where = f"unix://{socket_dir}/env.sock"
    closed = tmp_path / "closed"
    arguments = ("--env-kwargs", "what=alarm", "--env-kwargs", f"closed={closed}")
    env_id = "tests.env.hosted_env:Hosted-v0"
    with started("serve", env_id, "--thread", "main", "--address", where, *arguments) as server:
        with rg.RemoteEnv(address_of(server)) as env:
            env.reset()
            env.step(1)
        with rg.RemoteEnv(where) as env:
            env.reset()
            server.send_signal(number)
            code, out, err = ended(server)
    assert (code, out) == (0, "stopping\n"), err
    assert closed.read_text() == "closed\n"
