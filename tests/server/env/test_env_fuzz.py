"""Whatever a client sends, the server answers or ends the stream, and serves the next client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlmesh_gym._proto.spaces.v1 import value_pb2
from tests.env_wire import RawClient, pb, serving_raw
from tests.fake_envs import AllSpacesEnv, CountingEnv, counting_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: dict[str, Callable[[], Any]] = {
    "single": lambda: CountingEnv(3),
    "lanes": lambda: [CountingEnv(3), CountingEnv(4), CountingEnv(5)],
    "vector": lambda: counting_vector(3),
    "composite": lambda: AllSpacesEnv(composite_action=True),
}

indices = st.lists(st.integers(0, 4), max_size=4)
ids = st.lists(st.text(max_size=4), max_size=4)
timeouts = st.sampled_from([0, 0, 0, 60_000])
leaves = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.lists(st.integers(-2, 12), max_size=4).map(
            lambda numbers: b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)
        ),
    ),
    max_size=5,
)
resets = st.builds(
    pb.ResetRequest,
    seeds=st.lists(st.integers(-3, 2**62), max_size=4),
    env_indices=indices,
    episode_ids=ids,
    timeout_ms=timeouts,
)
steps = st.builds(
    pb.StepRequest,
    action=st.builds(value_pb2.SpaceValue, leaves=leaves),
    env_indices=indices,
    episode_ids=ids,
    timeout_ms=timeouts,
)
requests = st.one_of(
    st.builds(pb.JoinRequest, reset=resets),
    st.builds(pb.JoinRequest, step=steps),
    st.builds(pb.JoinRequest, step=steps),
    st.builds(pb.JoinRequest, render=st.builds(pb.RenderRequest, env_indices=indices)),
    st.builds(pb.JoinRequest),
    st.just(pb.JoinRequest(configure=pb.ConfigureEnvRequest(selected_workflow_edition="2026.06"))),
)


@pytest.fixture(scope="module", params=list(KINDS))
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    with serving_raw(KINDS[request.param]()) as raw:
        yield raw


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(sequence=st.lists(requests, min_size=1, max_size=8), half_close=st.booleans())
def test_random_requests(
    client: RawClient, sequence: list[pb.JoinRequest], half_close: bool
) -> None:
    join = client.open()
    sent = [join.send(pb.JoinRequest.FromString(r.SerializeToString())) for r in sequence]
    if half_close:
        join.half_close()
    else:
        sent.append(join.send(pb.JoinRequest(close=pb.CloseEnvsRequest())))
    answered: list[str] = []
    last: pb.JoinResponse | None = None
    while (response := join.inbox.get(timeout=20)) is not None:
        answered.append(response.request_id)
        assert response.WhichOneof("kind") is not None
        last = response
    assert str(join.status) == "StatusCode.OK", join.details
    assert len(set(answered)) == len(answered)
    assert set(answered) <= set(sent)
    if len(answered) < len(sent):
        assert last is not None
        assert last.WhichOneof("kind") == "error"
        assert not last.error.is_recoverable
    # The next client finds a working server.
    following = client.open()
    num_envs = client.contract.num_envs
    reset = following.reset(seeds=[1] * num_envs, ids=["x"] * num_envs)
    assert len(client.rows(reset, num_envs)) == num_envs
    following.close()
    following.take_end()


def test_a_flood_is_worked_off() -> None:
    with serving_raw([CountingEnv(10_000), CountingEnv(10_000)]) as raw:
        join = raw.open()
        join.reset()
        sent = [join.send_step([1, 1]) for _ in range(500)]
        assert [join.take().request_id for _ in sent] == sent
        sent = [join.send_step([1], lanes=[number % 2]) for number in range(500)]
        assert sorted(join.take().request_id for _ in sent) == sorted(sent)
        assert sum(len(record.episode_id) for record in join.close()) == 0


def test_clients_that_come_and_go() -> None:
    with serving_raw(CountingEnv(50)) as raw:
        for number in range(40):
            join = raw.open()
            join.send_reset()
            if number % 3:
                join.take()
            join.send_step([1])
            join.cancel()
        join = raw.open()
        join.reset()
        join.step([1])
