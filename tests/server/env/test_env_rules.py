"""The protocol's rules, as the package ships them, on our server and on broken ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmesh_gym.errors import UnavailableError
from rlmesh_gym.rpc import ModelSession
from rlmesh_gym.server.env.operations import Operations, Reply
from rlmesh_gym.testing import (
    ENV_RULES,
    BrokenRuleError,
    check_env_endpoint,
    serving,
    serving_model,
)
from tests.env_wire import pb
from tests.fake_envs import (
    ActionTypeEnv,
    AllSpacesEnv,
    CountingEnv,
    ImageEnv,
    InfoVarietyEnv,
    counting_vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS: dict[str, Callable[[], Any]] = {
    "single": partial(CountingEnv, 4, render_mode="rgb_array"),
    "lanes": lambda: [CountingEnv(3 + lane) for lane in range(3)],
    "composite": partial(AllSpacesEnv, composite_action=True),
    "image": lambda: [ImageEnv(3), ImageEnv(3)],
    "next step": counting_vector,
    "same step": partial(counting_vector, 3, AutoresetMode.SAME_STEP),
    "disabled": partial(counting_vector, 3, AutoresetMode.DISABLED),
    "infos": partial(counting_vector, 2, AutoresetMode.SAME_STEP, env=InfoVarietyEnv),
    "no actions": lambda: [ActionTypeEnv(spaces.Dict({}), 4) for _ in range(2)],
    "vector of one": partial(counting_vector, 1),
    "vector with frames": partial(counting_vector, 2, render_mode="rgb_array"),
}


@pytest.mark.parametrize("make", ENVS.values(), ids=list(ENVS))
def test_our_server_keeps_the_rules(make: Callable[[], Any]) -> None:
    with serving(make()) as address:
        assert len(check_env_endpoint(address)) == len(ENV_RULES)


def test_several_sessions_keep_the_rules() -> None:
    with serving(ENVS["lanes"], max_sessions=2, token="t") as address:
        check_env_endpoint(address, token="t")


def test_nobody_there() -> None:
    with serving(CountingEnv()) as address:
        pass
    with pytest.raises(UnavailableError):
        check_env_endpoint(address)


def drop_reward(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step":
        del response.step.rewards[-1:]


def wild_mask(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step":
        response.step.terminated_mask = b"\x07" * len(response.step.terminated_mask)


def short_observation(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "reset":
        response.reset.observation.leaves[0] = response.reset.observation.leaves[0][:-1]


def name_lanes(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step" and not response.step.env_indices:
        response.step.env_indices.append(0)


def reverse_lanes(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step":
        lanes = list(response.step.env_indices)
        del response.step.env_indices[:]
        response.step.env_indices.extend(lanes[::-1])


def forget_episodes(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step":
        del response.step.completed_episodes[:]


def miscount(response: pb.JoinResponse) -> None:
    for record in response.step.completed_episodes if response.HasField("step") else ():
        record.step_count += 1


def bare_infos(response: pb.JoinResponse) -> None:
    kind = response.WhichOneof("kind")
    if kind in {"reset", "step"}:
        getattr(response, kind).infos.ClearField("entries")


def no_picture(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "render":
        response.render.frame = b"\x89PNG nonsense"


def no_terminal_observations(response: pb.JoinResponse) -> None:
    if response.WhichOneof("kind") == "step" and "final_obs" in response.step.infos.entries:
        del response.step.infos.entries["final_obs"]


BROKEN: dict[str, tuple[Callable[[pb.JoinResponse], None], str, str]] = {
    "reward": (drop_reward, "lanes", "step: expected 3 rewards, got 2"),
    "mask": (wild_mask, "lanes", r"step: the masks hold bytes \[7\]"),
    "observation": (short_observation, "single", "reset: the observation does not fit"),
    "lane list": (name_lanes, "single", r"step: a whole step names lanes \[0\]"),
    "lane order": (reverse_lanes, "lanes", r"lanes: asked \[2, 0\], got \[0, 2\]"),
    "no records": (forget_episodes, "single", r"episodes: lanes \[0\] ended, \[\] were reported"),
    "miscounted": (miscount, "single", "episodes: step_count is 5, expected 4"),
    "infos": (bare_infos, "lanes", "infos: final_info has no list of 3 lanes"),
    "same step": (no_terminal_observations, "same step", "same step: .* hold no final_obs"),
    "frame": (no_picture, "single", "render: the frame is no image"),
}


@pytest.mark.parametrize(("tamper", "env", "match"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_rule_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tamper: Callable[[pb.JoinResponse], None],
    env: str,
    match: str,
) -> None:
    honest = Operations.answer

    def answer(self: Operations, request: pb.JoinRequest, **options: Any) -> Reply:
        reply = honest(self, request, **options)
        assert isinstance(reply.response, pb.JoinResponse)
        tamper(reply.response)
        return reply

    monkeypatch.setattr(Operations, "answer", answer)
    with (
        serving(ENVS[env]()) as address,
        pytest.raises(BrokenRuleError, match=f"^{match}") as broken,
    ):
        check_env_endpoint(address)
    assert match.startswith(broken.value.rule)


def test_a_model_can_be_served_in_a_test() -> None:
    with (
        serving_model(lambda observation: np.zeros(len(observation))) as address,
        ModelSession.open(address) as session,
    ):
        assert session.ping() > 0
