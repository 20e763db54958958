from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env import RemoteEnv, RemoteVectorEnv
from rlmesh_gym.errors import AuthenticationError, ConfigurationError, UnavailableError
from rlmesh_gym.registration import REMOTE_ID, register
from rlmesh_gym.server import EnvServer
from tests.fake_envs import CountingEnv

ID = f"rlmesh_gym:{REMOTE_ID}"


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with EnvServer(lambda: [CountingEnv(3), CountingEnv(4)], max_sessions=4) as server:
        yield server


def test_registering_twice_is_quiet() -> None:
    register()
    spec = gym.registry[REMOTE_ID]
    register()
    assert gym.registry[REMOTE_ID] is spec


def test_import_is_cheap_and_registers() -> None:
    code = (
        "import sys, rlmesh_gym, gymnasium\n"
        f"assert {REMOTE_ID!r} in gymnasium.registry\n"
        "assert 'grpc' not in sys.modules\n"
        "assert not any(name.startswith('google.protobuf') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_make_vec(server: EnvServer) -> None:
    envs = gym.make_vec(ID, num_envs=2, address=server.address, autoreset_mode="SameStep")
    assert isinstance(envs, RemoteVectorEnv)
    assert envs.spec is not None
    assert envs.spec.id == REMOTE_ID
    assert envs.spec.kwargs["address"] == server.address
    assert repr(envs) == f"RemoteVectorEnv({REMOTE_ID}, num_envs=2)"
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in RemoteVectorEnv.metadata
    text = envs.spec.to_json()
    envs.close()
    for spec in (envs.spec, EnvSpec.from_json(text)):
        again = gym.make_vec(spec)
        assert isinstance(again, RemoteVectorEnv)
        assert again.autoreset_mode is AutoresetMode.SAME_STEP
        assert again.spec == spec
        again.reset()
        again.step([0, 0])
        again.close()


def test_make(server: EnvServer) -> None:
    with EnvServer(lambda: CountingEnv(3), max_sessions=3) as single:
        env = gym.make(ID, address=single.address)
        assert isinstance(env.unwrapped, RemoteEnv)
        env.reset(seed=1)
        assert env.step(1)[1] == 1.0
        env.close()
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        again.reset()
        again.close()
        both = gym.make_vec(ID, num_envs=2, vectorization_mode="sync", address=single.address)
        assert both.reset()[0].shape == (2, 1)
        both.close()


def test_one_is_not_said(server: EnvServer) -> None:
    with gym.make_vec(ID, address=server.address) as envs:  # type: ignore[attr-defined]
        assert envs.num_envs == 2
    with pytest.raises(ConfigurationError, match=r"num_envs=3, but .* has 2 lanes in total"):
        gym.make_vec(ID, num_envs=3, address=server.address)
    with pytest.raises(ValueError, match="num_envs=5"):
        RemoteVectorEnv(addresses=[server.address, server.address], num_envs=5)


def test_the_variable(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLMESH_GYM_ADDRESS", f" {server.address} , {server.address},")
    envs = gym.make_vec(ID, num_envs=4)
    assert envs.reset()[0].shape == (4, 1)
    envs.close()
    # What is said comes before it.
    monkeypatch.setenv("RLMESH_GYM_ADDRESS", "127.0.0.1:1")
    with RemoteVectorEnv(server.address) as other:
        assert other.num_envs == 2
    with RemoteVectorEnv(server.address, env_id="NoSuchEnv-v0", length=3) as other:
        assert other.num_envs == 2
    with RemoteVectorEnv(env_id="tests.fake_envs:RlmeshTest/Counting-v0") as other:
        assert other.num_envs == 1


def test_no_endpoint_names_all_ways() -> None:
    for make in (RemoteVectorEnv, RemoteEnv):
        with pytest.raises(ConfigurationError) as caught:
            make()
        message = str(caught.value)
        assert all(way in message for way in ("address", "env_id", "RLMESH_GYM_ADDRESS"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"address": "h:1", "addresses": ["h:2"]}, "not both"),
        ({"addresses": "h:1,h:2"}, "sequence of addresses"),
        ({"addresses": []}, "empty"),
        ({"addresses": [7]}, "must be text"),
        ({"address": ["h:1", "h:2"]}, "several go to addresses="),
        ({"adress": "h:1"}, "unknown: adress"),
        ({"env_id": "CartPole-v1", "num_envs": "8"}, "whole numbers, got '8'"),
        ({"address": "https://h:1"}, "https"),
        ({"address": "h:1", "gravity": 3}, "unknown arguments: gravity"),
        ({"address": "h:1", "timeouts": {"stepp": 1}}, "stepp"),
        ({"address": "h:1", "timeouts": -1}, "more than 0"),
        ({"address": "h:1", "tls": 3}, "tls"),
        ({"address": "h:1", "token": "a\nb"}, "token must be printable"),
        ({"addresses": 7}, "sequence of addresses, got 7"),
        ({"address": "h:1", "max_episode_steps": "5"}, "1 or more, got '5'"),
        ({"address": "h:1", "max_episode_steps": 2.5}, "1 or more, got 2.5"),
        ({"address": "h:1", "episodes_kept": -1}, "episodes_kept must be 0 or more"),
        ({"address": "h:1", "episodes_kept": "x"}, "episodes_kept must be 0 or more"),
        ({"address": "h:1", "on_failure": "restart", "restart_patience": "x"}, "must be seconds"),
    ],
    ids=range(19),
)
def test_wrong_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        RemoteVectorEnv(**arguments)


def test_tokens_never_show() -> None:
    token = "s3cret-t0ken"
    with EnvServer(lambda: [CountingEnv(3), CountingEnv(3)], max_sessions=3, token=token) as server:
        with pytest.raises(AuthenticationError) as caught:
            RemoteVectorEnv(server.address, token="wr0ng")
        assert "wr0ng" not in str(caught.value)
        envs = gym.make_vec(ID, num_envs=2, address=server.address, token=token)
        try:
            envs.reset()
            assert envs.spec is not None
            shown = [envs.spec.to_json(), repr(envs), str(envs.spec), repr(envs.spec)]
            shown += [repr(envs.unwrapped.__reduce__()), json.dumps(envs.spec.kwargs)]
            assert not any(token in text for text in shown)
        finally:
            envs.close()


def test_tokens_never_show_in_single_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "s3cret-t0ken"
    with EnvServer(lambda: CountingEnv(3), max_sessions=3, token=token) as server:
        env = gym.make(ID, address=server.address, token=token)
        env.reset()
        assert env.spec is not None
        text = env.spec.to_json()
        env.close()
        assert token not in text
        with pytest.raises(AuthenticationError):
            gym.make(EnvSpec.from_json(text))
        monkeypatch.setenv("RLMESH_GYM_TOKEN", token)
        again = gym.make(EnvSpec.from_json(text))
        again.reset()
        again.close()


def test_tokens_never_show_in_errors_of_make() -> None:
    token = "s3cret-t0ken"
    for arguments in ({"address": "127.0.0.1:1"}, {"address": 5}, {"timeouts": "soon"}):
        with pytest.raises((ConfigurationError, UnavailableError)) as caught:
            gym.make(ID, token=token, **arguments)
        error: BaseException | None = caught.value
        while error is not None:
            assert token not in str(error)
            error = error.__cause__ or error.__context__


def test_spaces_must_agree(server: EnvServer) -> None:
    with (
        EnvServer(gym.make("CartPole-v1")) as other,
        pytest.raises(ConfigurationError, match="must serve the same spaces") as caught,
    ):
        RemoteVectorEnv(addresses=[server.address, other.address])
    assert server.address in str(caught.value)
    assert other.address in str(caught.value)


def test_paths_of_sockets(socket_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(socket_dir)
    for address in (f"unix://{socket_dir}/with space.sock", "unix://relative.sock"):
        with (
            EnvServer([CountingEnv(3)], address) as server,
            RemoteVectorEnv(address) as envs,
        ):
            assert server.address.startswith("unix:///")
            assert np.array_equal(envs.reset()[0], [[0.0]])
