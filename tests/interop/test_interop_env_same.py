"""The same raw requests to our server and to the released one: the same answers, field for field.

Left out are texts of errors, clocks, and what ours does on purpose: interrupted episodes in errors,
frames of vector envs, partial resets of vector envs (switched off here).
"""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from PIL import Image

from rlmesh_gym._proto.spaces.v1 import value_pb2
from tests.env_wire import RawClient, pb, raw_client, serving_raw
from tests.fake_envs import AllSpacesEnv, CountingEnv, FailingEnv, InfoVarietyEnv
from tests.peers import ENV_KINDS, EnvKind, env_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import gymnasium as gym

pytestmark = pytest.mark.interop

LANES = 3
FACTORIES: dict[type[gym.Env[Any, Any]], dict[str, Any]] = {
    CountingEnv: {"length": 3, "render_mode": "rgb_array"},
    InfoVarietyEnv: {"length": 3, "render_mode": "rgb_array"},
    AllSpacesEnv: {"length": 2, "zero_d": False},
    FailingEnv: {"at": 3},
}
REOPEN = "reopen"


def our_env(kind: EnvKind, factory: type[gym.Env[Any, Any]], options: dict[str, Any]) -> Any:
    make = partial(factory, **options)
    if kind == "single":
        return make()
    if kind == "lanes":
        return [make() for _ in range(LANES)]
    mode = AutoresetMode.NEXT_STEP if kind == "next_step" else AutoresetMode.DISABLED
    return SyncVectorEnv([make] * LANES, autoreset_mode=mode)


def raw_step(*leaves: bytes, lanes: tuple[int, ...] = ()) -> pb.JoinRequest:
    value = value_pb2.SpaceValue(leaves=leaves)
    return pb.JoinRequest(step=pb.StepRequest(action=value, env_indices=lanes))


def script(client: RawClient, kind: EnvKind) -> Iterator[pb.JoinRequest | str]:
    """Every request that there is, right ones and wrong ones."""
    num_envs = client.contract.num_envs
    last = num_envs - 1
    reset, step = client.reset_request, client.step_request

    def ids(episode: str) -> list[str]:
        return [f"{episode}{lane}" for lane in range(num_envs)]

    # Episodes to the end and beyond.
    yield reset(seeds=range(num_envs), ids=ids("a"))
    for count in range(6):
        yield step([1 + count % 2] * num_envs, ids=ids("a" if count < 3 else "b"))
    yield REOPEN
    # Few seeds, options, too few ids, an interrupted episode.
    yield reset(seeds=[7], ids=ids("c"), options={"level": 1, "deep": {"on": None}})
    yield step([1] * num_envs, ids=ids("c"), timeout_ms=60_000)
    yield reset(ids=["d"])
    yield step([1] * num_envs, ids=ids("c"))
    # Lanes, right and wrong.
    yield reset(lanes=[last], seeds=[3], ids=["p"])
    for wrong in ([0, 0], [9]):
        yield reset(lanes=wrong)
        yield step([2] * len(wrong), lanes=wrong)
    yield reset(lanes=[0], seeds=[1, 2])
    yield reset(lanes=[0], ids=["x", "y"])
    yield step([2], lanes=[last])
    yield step([1] * (num_envs + 1), lanes=[0])
    yield step([2] * min(num_envs, 2), lanes=[last, 0] if last else [0])
    # Actions that are none.
    yield raw_step()
    yield raw_step(b"1234")
    yield raw_step((99).to_bytes(8, "little") * num_envs)
    yield raw_step((99).to_bytes(8, "little"), lanes=(0,))
    yield pb.JoinRequest()
    if kind in {"single", "lanes"} and client.contract.render_mode is not None:
        yield pb.JoinRequest(render=pb.RenderRequest())
        yield pb.JoinRequest(render=pb.RenderRequest(env_indices=[0]))
    yield pb.JoinRequest(render=pb.RenderRequest(env_indices=[0, 1]))
    yield pb.JoinRequest(configure=pb.ConfigureEnvRequest())
    yield step([1] * num_envs)
    yield reset(lanes=range(num_envs), seeds=range(num_envs), ids=ids("z"))
    yield pb.JoinRequest(close=pb.CloseEnvsRequest())
    yield REOPEN
    yield pb.JoinRequest(configure=pb.ConfigureEnvRequest(selected_workflow_edition="1999"))
    if kind in {"single", "lanes"}:
        # The released server steps a vector before it finds that it should not have.
        yield REOPEN
        yield step([1] * num_envs)
    yield REOPEN
    yield reset(seeds=[-1] * num_envs)
    yield REOPEN
    yield reset()
    yield step([1] * num_envs)


def comparable(response: pb.JoinResponse) -> Any:
    kind = response.WhichOneof("kind")
    if kind == "error":
        return response.error.code, response.error.is_recoverable
    if kind == "render":
        if not response.render.HasField("frame"):
            return "no frame"
        return np.asarray(Image.open(BytesIO(response.render.frame))).tolist()
    if kind == "step":
        records = list(response.step.completed_episodes)
        del response.step.completed_episodes[:]
    else:
        records = list(response.close.final_episodes) if kind == "close" else []
        response.close.ClearField("final_episodes") if kind == "close" else None
    told = []
    for record in records:
        assert 0 < record.start_timestamp_ns <= record.end_timestamp_ns
        record.ClearField("start_timestamp_ns")
        record.ClearField("end_timestamp_ns")
        told.append(MessageToDict(record))
    told.sort(key=lambda record: (record.get("envIndex", 0), record.get("episodeId", "")))
    return response.request_id, kind, MessageToDict(getattr(response, kind or "")), told


def play(client: RawClient, kind: EnvKind) -> list[Any]:
    """Return the answers, and how each stream ended."""
    answers: list[Any] = []
    join = client.open()
    closed = False
    for request in script(client, kind):
        if isinstance(request, str):
            join.half_close()
            while not closed and join.inbox.get(timeout=20) is not None:
                pass
            join, closed = client.open(), False
            continue
        if closed:
            continue
        join.send(request)
        response = join.inbox.get(timeout=20)
        closed = response is None
        answers.append(str(join.status) if response is None else comparable(response))
    return answers


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
@pytest.mark.parametrize("kind", ENV_KINDS)
def test_the_same_requests_get_the_same_answers(
    kind: EnvKind, factory: type[gym.Env[Any, Any]]
) -> None:
    options = FACTORIES[factory]
    name = f"tests.fake_envs:{factory.__name__}"
    with serving_raw(our_env(kind, factory, options), partial_reset=False) as client:
        ours = play(client, kind)
        contract = client.hello.env_contract
    with (
        env_endpoint(kind, name, num_envs=LANES, kwargs=options) as peer,
        raw_client(peer.address) as client,
    ):
        theirs = play(client, kind)
        assert MessageToDict(contract) == MessageToDict(client.hello.env_contract)
    for number, (got, expected) in enumerate(zip(ours, theirs, strict=False)):
        assert got == expected, number
    assert len(ours) == len(theirs)
