"""Our sessions against processes of the released package, on the wire itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import SpaceCodec, encode_env_spec
from rlmesh_gym.errors import (
    EnvError,
    ModelError,
    ProtocolError,
    ResetNeededError,
    SessionRefusedError,
    UnavailableError,
)
from rlmesh_gym.rpc import EnvSession, ModelSession
from tests.peers import CHUNK, env_endpoint, expected_action, model_endpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop
WAIT = 20.0


def decode(session: EnvSession, value: Any, rows: int) -> np.ndarray[Any, Any]:
    leaves: list[np.ndarray[Any, Any]] = SpaceCodec(
        session.contract.single_observation_space
    ).decode(value, rows)
    return leaves[0]


def encode(session: EnvSession, actions: list[int]) -> Any:
    codec = SpaceCodec(session.contract.single_action_space)
    return codec.encode([np.array(actions, np.int64)], len(actions))


def follow(session: EnvSession, seeds: list[int], steps: int) -> None:
    """Step the endpoint and local envs side by side, until one of them ends."""
    envs = [gym.make("CartPole-v1") for _ in seeds]
    rows = len(seeds)
    expected = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    reset = session.reset(seeds=seeds, episode_ids=[f"e{lane}" for lane in range(rows)])
    np.testing.assert_array_equal(decode(session, reset.result(WAIT).observation, rows), expected)
    for step in range(steps):
        actions = [(step + lane) % 2 for lane in range(rows)]
        results = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        answer = session.step(encode(session, actions)).result(WAIT)
        observed = decode(session, answer.observation, rows)
        np.testing.assert_array_equal(observed, np.stack([result[0] for result in results]))
        assert list(answer.rewards) == [result[1] for result in results]
        assert list(answer.terminated_mask) == [result[2] for result in results]
        assert list(answer.truncated_mask) == [result[3] for result in results]
        if any(result[2] or result[3] for result in results):
            break
    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("kind", "num_envs", "mode"),
    [
        ("single", 1, AutoresetMode.DISABLED),
        ("lanes", 3, AutoresetMode.DISABLED),
        ("next_step", 2, AutoresetMode.NEXT_STEP),
        ("disabled", 2, AutoresetMode.DISABLED),
    ],
)
def test_env_kinds(kind: Any, num_envs: int, mode: AutoresetMode) -> None:
    with (
        env_endpoint(kind, "CartPole-v1", num_envs=num_envs) as peer,
        EnvSession.open(peer.address) as session,
    ):
        assert session.endpoint == peer.address
        if kind in {"single", "lanes"}:  # It has no name for vector envs.
            assert session.contract.env_id == "CartPole-v1"
        assert (session.contract.num_envs, session.contract.autoreset_mode) == (num_envs, mode)
        assert session.has_lane_operations is (kind in {"single", "lanes"})
        assert session.peer.language
        assert session.request_shutdown("no")[0] is False
        follow(session, [5 + lane for lane in range(num_envs)], 60)


@pytest.mark.parametrize("relative", [False, True])
def test_unix_socket_with_spaces(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
) -> None:
    path = socket_dir / "a b %20 #.sock"
    with env_endpoint("lanes", num_envs=2, address=f"unix://{path}") as peer:
        monkeypatch.chdir(socket_dir)
        address = f"unix://{path.name}" if relative else peer.address
        with EnvSession.open(address) as session:
            assert session.endpoint == f"unix://{path}"
            follow(session, [1, 2], 20)


def test_lane_operations_overlap() -> None:
    with (
        env_endpoint("lanes", num_envs=2) as peer,
        EnvSession.open(peer.address) as session,
    ):
        session.reset(seeds=[1, 2]).result(WAIT)
        pendings = [
            session.step(encode(session, [0]), env_indices=[lane]) for lane in (0, 1) for _ in "ab"
        ]
        assert [list(pending.result(WAIT).env_indices) for pending in pendings] == [
            [0],
            [0],
            [1],
            [1],
        ]
        partial = session.reset(seeds=[9], env_indices=[1], episode_ids=["new"]).result(WAIT)
        env = gym.make("CartPole-v1")
        np.testing.assert_array_equal(
            decode(session, partial.observation, 1)[0], env.reset(seed=9)[0]
        )
        env.close()
        with pytest.raises(EnvError, match="INVALID_ACTION") as raised:
            session.step(encode(session, [0]), env_indices=[7]).result(WAIT)
        assert raised.value.is_recoverable


def test_second_session_then_a_free_slot() -> None:
    with (
        env_endpoint("single") as peer,
        EnvSession.open(peer.address) as first,
        EnvSession.open(peer.address, timeouts={"connect": 5.0}) as second,
    ):
        first.reset().result(WAIT)
        with pytest.raises(SessionRefusedError, match="active Join session"):
            second.reset().result(WAIT)
        first.close()
        second.reset().result(WAIT)


def test_error_that_ends_the_session() -> None:
    with (
        env_endpoint("next_step", num_envs=2) as peer,
        EnvSession.open(peer.address) as session,
    ):
        with pytest.raises(EnvError, match="INTERNAL") as raised:  # A step before any reset.
            session.step(encode(session, [0, 0])).result(WAIT)
        assert not raised.value.is_recoverable
        assert session._connection.stream is not None
        assert session._connection.stream.wait_ended(WAIT)
        with pytest.raises(ResetNeededError, match="after its error"):
            session.step(encode(session, [0, 0]))
        follow(session, [3, 4], 10)


def test_killed_process() -> None:
    with env_endpoint("single") as peer:
        # Nothing here may wait for a timeout of its own.
        session = EnvSession.open(peer.address, timeouts={"connect": 600.0, "close": 600.0})
        session.reset().result(WAIT)
        peer.kill()
        with pytest.raises((UnavailableError, ResetNeededError)):
            session.step(encode(session, [0])).result(WAIT)
        with pytest.raises(UnavailableError):
            session.reset().result(WAIT)
        session.close()


def test_accepted_shutdown() -> None:
    with env_endpoint("single", allow_shutdown=True) as peer:
        with EnvSession.open(peer.address) as session:
            assert session.request_shutdown("done")[0] is True
        assert peer.process.wait(WAIT) == 0


def test_kinds_are_told_apart() -> None:
    with env_endpoint("single") as peer, pytest.raises(ProtocolError, match="an env endpoint"):
        ModelSession.open(peer.address)
    with model_endpoint("predict") as peer, pytest.raises(ProtocolError, match="a model endpoint"):
        EnvSession.open(peer.address)


@pytest.fixture
def cartpole() -> Any:
    env = gym.make("CartPole-v1")
    yield env
    env.close()


def test_model_predicts(cartpole: gym.Env[Any, Any]) -> None:
    spec = encode_env_spec("CartPole-v1", cartpole.observation_space, cartpole.action_space, {})
    codec = SpaceCodec(cartpole.observation_space)
    actions = SpaceCodec(cartpole.action_space)
    rows = np.stack([cartpole.reset(seed=seed)[0] for seed in range(4)])
    with model_endpoint("predict") as peer, ModelSession.open(peer.address) as session:
        session.resolve_adapter("env-1", spec).result(WAIT)
        answer = session.predict(
            "env-1", codec.encode([rows], 4), [(f"e{row}", row) for row in range(4)]
        ).result(WAIT)
        predicted = actions.decode(answer.actions[0], 4)[0]
        assert predicted.tolist() == [expected_action(row) for row in rows]
        session.reset_adapter("env-1", ["e0"]).result(WAIT)
        session.release_adapter("env-1").result(WAIT)
        with pytest.raises(ModelError, match="not resolved") as raised:
            session.predict("env-1", codec.encode([rows[:1]], 1), [("e9", None)]).result(WAIT)
        assert raised.value.env_id == "env-1"
        # Adapters are the server's, not the stream's: another session's closing drops none.
        session.resolve_adapter("env-1", spec).result(WAIT)
        with ModelSession.open(peer.address) as other:
            other.resolve_adapter("env-2", spec).result(WAIT)
        session.predict("env-1", codec.encode([rows[:1]], 1), [("e9", None)]).result(WAIT)


def test_model_chunk_over_a_unix_socket(cartpole: gym.Env[Any, Any], socket_dir: Path) -> None:
    spec = encode_env_spec("CartPole-v1", cartpole.observation_space, cartpole.action_space, {})
    codec = SpaceCodec(cartpole.observation_space)
    row = cartpole.reset(seed=1)[0]
    with (
        model_endpoint("native_chunk", address=f"unix://{socket_dir}/m.sock") as peer,
        ModelSession.open(peer.address) as session,
    ):
        resolved = session.resolve_adapter("env-1", spec, execution_horizon=3).result(WAIT)
        assert resolved.native_chunk == CHUNK
        answer = session.predict("env-1", codec.encode([row[None]], 1), [("e", None)]).result(WAIT)
        assert len(answer.actions) == 3


def test_health_is_no_way_to_probe_an_env() -> None:
    path = "/grpc.health.v1.Health/Check"
    with env_endpoint("single") as peer:
        channel: Any = grpc.insecure_channel(peer.address.removeprefix("tcp://"))
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(path)(b"", timeout=WAIT)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        channel.close()
