"""Who can reach a server: beyond this machine only with a token, certificates, or on purpose."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import rlmesh_gym as rg
from rlmesh_gym.errors import ConfigurationError
from rlmesh_gym.rpc.host.link_serving import LinkHost
from tests.fake_envs import CountingEnv


def env_server(**options: Any) -> rg.EnvServer:
    return rg.EnvServer(CountingEnv(), **options)


def model_server(**options: Any) -> rg.ModelServer:
    return rg.ModelServer(lambda observation: observation, **options)


both = pytest.mark.parametrize("make", [env_server, model_server], ids=["env", "model"])


@both
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "some-host:0"])
def test_an_address_beyond_this_machine_asks_who_it_is(make: Any, address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"whoever reaches .*--insecure"):
        make(address=address)
    make(address=address, token="secret")


@both
def test_it_can_be_allowed_and_is_said_once(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rlmesh_gym"), make(address="0.0.0.0:0", insecure=True):
        pass
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "no token" in said[0]


@both
@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", None])
def test_this_machine_needs_nothing(make: Any, address: str | None) -> None:
    make(address=address)


@both
def test_a_unix_socket_is_its_users_own(make: Any, socket_dir: Path) -> None:
    path = socket_dir / "server.sock"
    with make(address=f"unix://{path}"):
        assert oct(os.stat(path).st_mode & 0o777) == oct(0o600)


def test_a_unix_socket_is_private_from_its_first_moment(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    chmod = os.chmod

    def looking(path: Any, mode: int, **options: Any) -> None:
        seen.append(os.stat(path).st_mode & 0o077)
        chmod(path, mode, **options)

    monkeypatch.setattr(os, "chmod", looking)
    before = os.umask(0o022)
    try:
        with env_server(address=f"unix://{socket_dir / 'server.sock'}"):
            LinkHost(str(socket_dir / "link"), lambda *_: iter(()), None).stop(0.0)  # type: ignore[arg-type]
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert seen == [0, 0]
