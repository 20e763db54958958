"""What a user may import, and what importing costs."""

import inspect
import subprocess
import sys

import gymnasium as gym
import pytest

import rlmesh_gym as rg


def test_all_names_resolve() -> None:
    for name in rg.__all__:
        assert getattr(rg, name) is not None
    assert sorted(rg.__all__) == dir(rg)
    assert rg.__all__ == sorted(rg.__all__)


def test_lazy_names_are_the_public_ones() -> None:
    assert set(rg._HOME) == set(rg.__all__) - {"__version__", "errors"}


def test_submodules_need_no_import_of_their_own() -> None:
    script = (
        "import rlmesh_gym as rg\n"
        "for name in rg._MODULES: assert getattr(rg, name).__name__ == f'rlmesh_gym.{name}', name\n"
        "print(rg.runtime.RuntimeReport.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "RuntimeReport"


def test_names_stand_where_a_user_looks() -> None:
    events = set(rg.runtime.events.__all__)
    assert events <= set(rg.__all__)
    assert events <= set(rg.runtime.__all__)
    for name in events:
        assert getattr(rg, name) is getattr(rg.runtime.events, name)
        assert getattr(rg.runtime, name) is getattr(rg, name)
    assert rg.EpisodeSummary is rg.EpisodeRecord is rg.runtime.EpisodeSummary
    for name in ("ModelRoute", "HistoryFrame", "EpisodeLog", "ConformanceWarning"):
        assert name in rg.__all__


def test_environments_can_be_looked_over() -> None:
    with rg.RemoteVectorEnv(env_id="CartPole-v1", num_envs=2) as envs:
        assert not hasattr(envs, "np_random")
        with pytest.raises(rg.errors.UnsupportedCallError, match="live at the endpoints"):
            envs.np_random  # noqa: B018
        names = {name for name, _ in inspect.getmembers(envs)}
        assert {"episodes", "lane_phases", "step"} <= names
    assert inspect.getmembers(envs)
    env = rg.RemoteEnv(env_id="CartPole-v1")
    env.close()
    assert inspect.getmembers(env)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rg.Nothing  # noqa: B018


def test_every_error_is_exported_and_under_the_root() -> None:
    for name in rg.errors.__all__:
        assert issubclass(getattr(rg.errors, name), rg.errors.Error)
    assert issubclass(rg.errors.Error, gym.error.Error)


def test_import_is_light() -> None:
    heavy = ("grpc", "google.protobuf", "torch", "rlmesh", "matplotlib", "pandas")
    script = (
        "import sys, rlmesh_gym, gymnasium; gymnasium.spec('rlmesh/Remote-v0'); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_messages_live_under_our_package() -> None:
    from rlmesh_gym._proto.env.v1 import interaction_pb2

    message = interaction_pb2.JoinRequest
    assert message.__module__ == "rlmesh_gym._proto.env.v1.interaction_pb2"
    assert message.DESCRIPTOR.full_name == "rlmesh.env.v1.JoinRequest"
