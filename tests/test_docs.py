"""Every Python example of the README and the guides runs as it stands, on real endpoints."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlmesh_gym as rg

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/autoreset.md",
    "docs/evaluation.md",
    "docs/policies.md",
    "docs/reliability.md",
    "docs/serving.md",
)
EXAMPLES = [
    (page, number, source)
    for page in PAGES
    for number, source in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    )
]


def _cart_poles() -> gym.vector.VectorEnv:
    return gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")


def _policy(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] > 0).astype(np.int64)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Addresses that the pages name, and where they are here."""
    monkeypatch.setenv("RLMESH_WORKFLOW_EDITION", "2026.06")  # The released package asks for one.
    with (
        rg.EnvServer(_cart_poles, max_sessions=4) as one,
        rg.EnvServer(_cart_poles) as two,
        rg.ModelServer(_policy) as model,
    ):
        yield {
            "127.0.0.1:5555": one.address,
            "127.0.0.1:5556": two.address,
            "127.0.0.1:5557": f"127.0.0.1:{_free_port()}",
            "127.0.0.1:6000": model.address,
        }


@pytest.mark.parametrize(
    ("page", "number", "source"), EXAMPLES, ids=[f"{page}-{number}" for page, number, _ in EXAMPLES]
)
def test_example(page: str, number: int, source: str, addresses: dict[str, str]) -> None:
    page_text = source

    def real_address(match: re.Match[str]) -> str:
        # A page that serves there finds the port free; one that connects finds an endpoint.
        is_served_here = f'], "{match[0]}") as server' in page_text
        return "127.0.0.1:0" if is_served_here else addresses[match[0]]

    source = re.sub("|".join(map(re.escape, addresses)), real_address, source)
    scope: dict[str, object] = {"rg": rg}
    if "envs" in source and "envs =" not in source and "as envs" not in source:
        with rg.RemoteVectorEnv(addresses["127.0.0.1:5555"]) as envs:
            exec(compile(source, f"{page}[{number}]", "exec"), {**scope, "envs": envs})
    else:
        exec(compile(source, f"{page}[{number}]", "exec"), scope)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert os.path.exists((ROOT / page).parent / target), target


def test_the_files_of_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", text)
    named += re.findall(r"^ {2}[│▼ ]*([a-z_/]+\.py)", text, re.MULTILINE)
    assert len(named) > 50
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "rlmesh_gym" / name).exists(), name
