"""What hostile endpoints, and clients, cost: each in a process of its own, its peak above rest."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from rlmesh_gym._proto.env.v1 import interaction_pb2 as env_pb2
from rlmesh_gym.codec import encode_contract, encode_meta_map, encode_space
from rlmesh_gym.errors import ModelError
from rlmesh_gym.rpc import ModelSession
from tests.rpc.raw_endpoints import CONTRACT, env_answer, env_handshake, env_host
from tests.rpc.test_rpc_limits import MOST, PEAK, child, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")

CLIENT = (
    PEAK
    + """
import sys, warnings, numpy, rlmesh_gym, rlmesh_gym.errors
warnings.simplefilter("ignore")
with rlmesh_gym.EnvServer(lambda: __import__("gymnasium").make("CartPole-v1")) as server:
    with rlmesh_gym.RemoteVectorEnv(server.address) as envs:  # What any connection costs.
        envs.reset()
rest, said = peak(), "nothing"
try:
    with rlmesh_gym.RemoteVectorEnv(
        sys.argv[1], autoreset_mode="disabled", timeouts={"connect": 20.0, "reset": 20.0}
    ) as envs:
        for call in (envs.reset, lambda: envs.step(numpy.zeros(2, int)), envs.render):
            call()
except rlmesh_gym.errors.Error as error:
    said = type(error).__name__
print(said, peak() - rest, flush=True)
"""
)
SERVER = (
    PEAK
    + """
import sys, numpy, rlmesh_gym
with rlmesh_gym.ModelServer(lambda observation: numpy.zeros(len(observation))) as server:
    rest = peak()
    print(server.address, flush=True)
    sys.stdin.readline()
    print(peak() - rest, flush=True)
"""
)


def claiming(change: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return a handshake with another contract."""

    def handshake(request: Any) -> Any:
        response = env_handshake(request)
        change(response.env_contract)
        return response

    return handshake


def huge_box(contract: Any) -> None:
    spec = encode_space(spaces.Box(0, 1, (2,), np.float32))
    del spec.shape[:]
    spec.shape.extend([64, 1024, 1024])
    contract.spec.observation_space.CopyFrom(spec)


def many_keys(contract: Any) -> None:
    spec = encode_space(spaces.Dict(key=spaces.Discrete(2)))
    member = spec.dict.spaces[0]
    for number in range(60_000):
        spec.dict.keys.append(f"key{number}")
        spec.dict.spaces.append(member)
    contract.spec.observation_space.CopyFrom(spec)


def many_lanes(contract: Any) -> None:
    contract.num_envs = 2**31 - 1


def renders(contract: Any) -> None:
    contract.render_mode = "rgb_array"


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of few bytes with very many black pixels."""
    packed = io.BytesIO()
    Image.new("RGB", (width, height)).save(packed, "PNG")
    return packed.getvalue()


def plain_join(requests: Any, peer: Any) -> Iterator[Any]:
    del peer
    for request in requests:
        yield env_answer(request)


def bomb_join(requests: Any, peer: Any) -> Iterator[Any]:
    del peer
    frame = bomb(9000, 9000)
    for request in requests:
        response = env_answer(request)
        if request.HasField("render"):
            response.render.frame = frame
            response.render.format = env_pb2.RENDER_FORMAT_PNG
        yield response


def wordy_join(requests: Any, peer: Any) -> Iterator[Any]:
    del peer
    told = encode_meta_map({f"key{key}": list(range(500)) for key in range(200)})
    for request in requests:
        response = env_answer(request)
        for kind in ("reset", "step"):
            if request.HasField(kind):
                getattr(response, kind).infos.CopyFrom(told)
        yield response


CASES: dict[str, tuple[Callable[[Any], None], Any, str]] = {
    "a box": (huge_box, plain_join, "ProtocolError"),
    "keys": (many_keys, plain_join, "ProtocolError"),
    "lanes": (many_lanes, plain_join, "ProtocolError"),
    "a picture": (renders, bomb_join, "ProtocolError"),
    "infos": (lambda contract: None, wordy_join, "nothing"),
}


@pytest.mark.parametrize(("change", "join", "expected"), CASES.values(), ids=list(CASES))
def test_what_an_env_endpoint_costs_its_client(
    change: Callable[[Any], None], join: Any, expected: str
) -> None:
    with (
        env_host(join, handshake=claiming(change)) as address,
        child(CLIENT, address) as client,
    ):
        name, grown = said(client).split()
    assert name == expected
    assert int(grown) < MOST


@pytest.mark.parametrize("change", [huge_box, many_keys], ids=["a box", "keys"])
def test_what_a_client_costs_a_model_server(change: Callable[[Any], None]) -> None:
    contract: Any = encode_contract(CONTRACT)
    change(contract)
    with child(SERVER) as server:
        address = said(server)
        with ModelSession.open(address) as session:
            for number in range(10):
                with pytest.raises(ModelError):
                    session.resolve_adapter(f"env{number}", contract.spec).result(30)
        assert server.stdin is not None
        server.stdin.write("\n")
        server.stdin.flush()
        assert int(said(server)) < MOST
