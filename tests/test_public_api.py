"""What a user may import, and what importing costs."""

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
