"""The generated messages: where they live, and that they get along with the released package's."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from google.protobuf import descriptor_pool

import rlmesh_gym._proto

_MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(rlmesh_gym._proto.__path__, "rlmesh_gym._proto.")
    if not info.ispkg
]


@pytest.mark.parametrize("module", _MODULES, ids=lambda module: module.__name__)
def test_names(module: ModuleType) -> None:
    """Canonical names for the wire, names of ours for Python."""
    descriptor = module.DESCRIPTOR
    path = module.__name__.removeprefix("rlmesh_gym._proto.").removesuffix("_pb2")
    assert descriptor.name == f"rlmesh/{path.replace('.', '/')}.proto"
    assert descriptor.package == f"rlmesh.{path.rpartition('.')[0]}"
    assert descriptor_pool.Default().FindFileByName(descriptor.name) is descriptor
    for name in descriptor.message_types_by_name:
        assert getattr(module, name).__module__ == module.__name__


@pytest.mark.parametrize("module", _MODULES, ids=lambda module: module.__name__)
def test_pickle(module: ModuleType) -> None:
    for name in module.DESCRIPTOR.message_types_by_name:
        message = getattr(module, name)()
        again = pickle.loads(pickle.dumps(message))
        assert type(again) is type(message)
        assert again == message


def test_the_codec_imports_neither_grpc_nor_the_released_package() -> None:
    code = "import rlmesh_gym.codec, sys; print({'grpc', 'rlmesh'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
