"""Forms of observations and actions, and the envs that a policy can act in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformObservation

import rlmesh_gym as rg
from rlmesh_gym.errors import CodecError
from rlmesh_gym.policy import RemotePolicy
from rlmesh_gym.server import EnvServer, ModelHandler, ModelServer, PredictFrames
from tests.catalogue import SPACE_IDS, SPACES
from tests.fake_envs import CountingEnv
from tests.policy.served_models import SPACES as TELLING
from tests.policy.served_models import TellingModel

if TYPE_CHECKING:
    from collections.abc import Iterator


class EchoModel(ModelHandler):
    """Answers with the observation, three times over; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.ended: list[str] = []

    def predict(self, observation: Any) -> Any:
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation: Any) -> PredictFrames:
        self.calls.append(observation)
        return PredictFrames(observation.observation, [observation.observation] * 2)

    def reset_adapter(self, env_id: str, episode_ids: Any) -> None:
        self.ended += episode_ids


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with ModelServer(EchoModel()) as server:
        yield server.address


@pytest.mark.parametrize("space", SPACES, ids=SPACE_IDS)
def test_every_space_comes_through_batched_and_unbatched(space: gym.Space[Any], echo: str) -> None:
    batched = batch_space(space, 3)
    batched.seed(1)
    space.seed(2)
    with RemotePolicy(
        echo,
        single_observation_space=space,
        single_action_space=space,
        num_envs=3,
        execution_horizon=3,
    ) as policy:
        sight = batched.sample()
        actions, _ = policy.predict(sight, episode_start=[True] * 3)
        assert data_equivalence(actions, sight)
        assert data_equivalence(policy(batched.sample()), sight)
        again = batched.sample()
        actions, _ = policy.predict(again, episode_start=[True] * 3)
        assert data_equivalence(actions, again)
    with RemotePolicy(echo, single_observation_space=space, single_action_space=space) as policy:
        single = space.sample()
        action = policy(single)
        assert data_equivalence(action, single)
        assert space.contains(action)


def test_what_the_policy_gives_and_takes_belongs_to_the_caller(echo: str) -> None:
    space = spaces.Box(-9, 9, (2,), np.float32)
    with RemotePolicy(
        echo,
        single_observation_space=space,
        single_action_space=space,
        num_envs=2,
        execution_horizon=3,
    ) as policy:
        sight = np.ones((2, 2), np.float32)
        first, _ = policy.predict(sight, episode_start=[True, True])
        first[:] = 5
        sight[:] = 6
        second = policy(sight)
        assert second.tolist() == [[1, 1], [1, 1]]
        assert second.flags.writeable
        assert second.flags.owndata or second.base is not sight


def test_one_lane_answers_in_the_form_it_was_asked(echo: str) -> None:
    discrete = spaces.Discrete(4)
    with RemotePolicy(
        echo, single_observation_space=discrete, single_action_space=discrete
    ) as policy:
        assert policy(np.array([3])).tolist() == [3]
        policy.reset()
        action = policy(2)
        assert isinstance(action, np.integer)
        assert action == 2


@pytest.mark.parametrize("lanes", [1, [1], [False, True, False], np.array([1])])
def test_reset_takes_lanes_in_every_form(lanes: Any) -> None:
    """Only the lane named plans anew; the others replay undisturbed."""
    with (
        ModelServer(TellingModel()) as server,
        RemotePolicy(server.address, **TELLING, num_envs=3, execution_horizon=4) as policy,
    ):
        sight = np.array([[lane, 0, 0, 4] for lane in range(3)], np.float32)
        policy.predict(sight, episode_start=[True] * 3)
        sight[:, 2] = 1
        policy.reset(lanes)
        assert policy(sight)[:, 2:].tolist() == [[0, 1], [1, 0], [0, 1]]


def test_the_loop_of_stable_baselines3(echo: str) -> None:
    """evaluate_policy passes these four and takes back two; its envs reset at once."""

    class BaselineEnv:
        num_envs = 2
        observation_space = spaces.Box(-9, 9, (1,), np.float32)
        action_space = spaces.Box(-9, 9, (1,), np.float32)
        metadata: dict[str, Any] = {}  # noqa: RUF012

    with RemotePolicy(echo, BaselineEnv(), execution_horizon=3) as policy:
        assert policy.num_envs == 2
        states: Any = None
        episode_starts = np.ones(2, bool)
        used = []
        for t in range(6):
            sight = np.full((2, 1), t, np.float32)
            actions, states = policy.predict(
                sight, state=states, episode_start=episode_starts, deterministic=True
            )
            used.append(actions.ravel().tolist())
            episode_starts = np.array([False, t == 1])
        assert states is None
        assert used == [[0, 0], [0, 0], [0, 2], [3, 2], [3, 2], [3, 5]]


def counting_lanes(count: int) -> list[gym.Env[Any, Any]]:
    return [CountingEnv(3 + lane, base=100.0 * lane) for lane in range(count)]


class CountingModel(EchoModel):
    """A policy for CountingEnv: the observation's last digit, counting on over the chunk."""

    def predict_chunked(self, observation: Any) -> PredictFrames:
        self.calls.append(observation)
        digits = observation.observation[:, 0].astype(np.int64)
        frames = [(digits + number) % 10 for number in range(4)]
        return PredictFrames(frames[0], frames[1:])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_remote_vector_under_wrappers(mode: AutoresetMode) -> None:
    """Ids and boundaries are those of the lane table, through any stack of wrappers."""
    model = CountingModel()
    with (
        EnvServer(counting_lanes(3)) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode=mode) as remote,
        ModelServer(model) as model_server,
    ):
        envs: Any = RecordEpisodeStatistics(remote)
        with RemotePolicy(model_server.address, envs, execution_horizon=4) as policy:
            observations, _ = envs.reset(seed=[7, 8, 9])
            for _ in range(40):
                actions = policy(observations)
                for lane, phase in enumerate(remote.lane_phases):
                    if phase is rg.LanePhase.RUNNING:
                        assert actions[lane] == observations[lane, 0] % 10
                observations, _, terminations, truncations, _ = envs.step(actions)
                ended = terminations | truncations
                if mode is AutoresetMode.DISABLED and ended.any():
                    observations, _ = envs.reset(options={"reset_mask": ended})
            finished = [record.episode_id for record in remote.episodes]
        asked = {each for call in model.calls for each in call.episode_ids}
        assert len(finished) > 20
        assert set(finished) <= asked
        assert sorted(model.ended) == sorted(asked)
        assert model.calls[0].seeds == (7, 8, 9)
        assert model.calls[0].route.metadata["maker"] == "tests"
        assert model.calls[0].route.contract.env_id == remote.contract.env_id


def test_a_wrapper_that_changes_the_observation(echo: str) -> None:
    """The model is set up with what the policy sees, not with what the endpoint sends."""
    model = EchoModel()
    with (
        EnvServer(counting_lanes(2)) as server,
        rg.RemoteVectorEnv(server.address, autoreset_mode="NextStep") as remote,
        ModelServer(model) as model_server,
    ):
        narrow = spaces.Box(0, 1, (2, 1), np.float64)
        envs: Any = TransformObservation(
            remote,
            lambda observations: observations.astype(np.float64) / 1000,
            observation_space=narrow,
            single_observation_space=spaces.Box(0, 1, (1,), np.float64),
        )
        with RemotePolicy(
            model_server.address, envs, single_action_space=spaces.Box(0, 1, (1,), np.float64)
        ) as policy:
            observations, _ = envs.reset()
            assert policy(observations).tolist() == [[0.0], [0.1]]
            assert model.calls[0].route.single_observation_space.dtype == np.float64


def test_a_single_remote_env_is_unbatched_in_and_out() -> None:
    model = CountingModel()
    with (
        EnvServer(CountingEnv(5)) as server,
        rg.RemoteEnv(server.address) as env,
        ModelServer(model) as model_server,
        RemotePolicy(model_server.address, env, execution_horizon=4) as policy,
    ):
        for _ in range(3):
            observation, _ = env.reset()
            is_over = False
            while not is_over:
                action = policy(observation)
                assert isinstance(action, np.integer)
                assert action == observation[0] % 10
                observation, _, terminated, truncated, _ = env.step(action)
                is_over = terminated or truncated
        assert policy.stats.rows == 3 * 2
        assert len(model.ended) == 2


def test_a_single_local_env_is_reset_by_hand() -> None:
    model = CountingModel()
    env = CountingEnv(5)
    with (
        ModelServer(model) as model_server,
        RemotePolicy(model_server.address, env, execution_horizon=4) as policy,
    ):
        for _ in range(3):
            observation, _ = env.reset()
            policy.reset()
            is_over = False
            while not is_over:
                action = policy(observation)
                assert action == observation[0] % 10
                observation, _, is_over, _, _ = env.step(action)
        assert len(model.ended) == 2


@pytest.mark.parametrize("num_envs", [None, 1, 2])
def test_who_never_tells_where_episodes_begin_is_warned_once(num_envs: int | None) -> None:
    """Else a chunk would silently go on into the next episode."""
    envs: Any = CountingEnv(5)
    if num_envs is not None:
        envs = SyncVectorEnv([partial(CountingEnv, 5)] * num_envs)
    with (
        ModelServer(CountingModel()) as server,
        RemotePolicy(server.address, envs, execution_horizon=4) as policy,
    ):
        observation, _ = envs.reset()
        policy(observation)
        with pytest.warns(UserWarning, match="cannot see where the episodes") as told:
            policy(observation)
        assert [each.filename for each in told] == [__file__]
        policy(observation)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_local_vector_that_tells_its_steps(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv(
        [partial(CountingEnv, 3 + lane, base=100.0 * lane) for lane in range(3)],
        autoreset_mode=mode,
    )
    with (
        ModelServer(CountingModel()) as server,
        RemotePolicy(server.address, envs, execution_horizon=4) as policy,
    ):
        observations, _ = envs.reset()
        idle = np.zeros(3, np.bool_)
        for _ in range(30):
            actions = policy(observations)
            assert (actions == observations[:, 0] % 10)[~idle].all()
            observations, _, terminations, truncations, _ = envs.step(actions)
            policy.observe_step(terminations, truncations)
            if mode is AutoresetMode.NEXT_STEP:
                idle = terminations | truncations
        assert (policy.stats.idle_rows > 0) == (mode is AutoresetMode.NEXT_STEP)
    envs.close()


def test_idle_lanes_get_a_legal_action() -> None:
    """Zero is no member of this space, and no answer is asked for."""
    space = spaces.Dict({"a": spaces.Discrete(3, start=5), "b": spaces.Box(2, 3, (1,))})
    with (
        ModelServer(lambda observations: pytest.fail("asked for an idle lane")) as server,
        RemotePolicy(
            server.address,
            single_observation_space=spaces.Discrete(2),
            single_action_space=space,
            num_envs=2,
        ) as policy,
    ):
        policy._episodes._is_idle[:] = True  # type: ignore[attr-defined]
        policy._episodes._is_fresh[:] = False  # type: ignore[attr-defined]
        actions = policy(np.array([0, 1]))
        assert batch_space(space, 2).contains(actions)
        assert policy.stats.calls == 0


def test_statistics_add_up(echo: str) -> None:
    space = spaces.Box(-9, 9, (2,), np.float32)
    with RemotePolicy(
        echo,
        single_observation_space=space,
        single_action_space=space,
        num_envs=4,
        execution_horizon=3,
    ) as policy:
        for t in range(9):
            policy.predict(np.zeros((4, 2), np.float32), episode_start=[t == 0] * 4)
        stats = policy.stats
        assert (stats.steps, stats.calls, stats.rows, stats.replayed_rows) == (9, 3, 12, 24)
        assert all(value > 0 for value in stats.milliseconds.values())
        assert stats.milliseconds["model"] <= stats.milliseconds["endpoint"]
        stats.milliseconds["wait"] = -1
        assert policy.stats.milliseconds["wait"] > 0
        assert policy.stats.to_dict()["rows"] == 12
        assert repr(policy).startswith("RemotePolicy('tcp://127.0.0.1:")


def test_ids_of_two_policies_never_meet(echo: str) -> None:
    space = spaces.Discrete(2)
    arguments: dict[str, Any] = {"single_observation_space": space, "single_action_space": space}
    with RemotePolicy(echo, **arguments) as one, RemotePolicy(echo, **arguments) as other:
        assert one.env_id != other.env_id
        assert one(1) == 1
        assert other(0) == 0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Dict({}), "b": spaces.Box(0, 1, (2,))}),
        spaces.Tuple((spaces.Tuple(()), spaces.Discrete(3))),
        spaces.Dict({"a": spaces.Tuple((spaces.Dict({}),)), "b": spaces.Text(4)}),
    ],
)
def test_one_observation_is_known_by_the_first_leaf_there_is(
    space: gym.Space[Any], echo: str
) -> None:
    with RemotePolicy(echo, single_observation_space=space, single_action_space=space) as policy:
        observation = space.sample()
        assert data_equivalence(policy(observation), observation)


@pytest.mark.parametrize("wrong", [(), {}, None, 3, ({},), {"a": ()}])
def test_a_value_of_another_form_is_refused(wrong: Any, echo: str) -> None:
    for space in (
        spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(3))),
        spaces.Dict({"a": spaces.Tuple((spaces.Discrete(3),))}),
    ):
        with (
            RemotePolicy(echo, single_observation_space=space, single_action_space=space) as policy,
            pytest.raises(CodecError, match="observation"),
        ):
            policy(wrong)


def test_metadata_without_wire_form_is_left_out_with_a_warning(echo: str) -> None:
    env = CountingEnv(5)
    env.metadata = {**env.metadata, "maker": object(), "rank": 3}
    with pytest.warns(UserWarning, match=r"metadata\['maker'\] of the env is not told") as told:
        policy = RemotePolicy(echo, env)
    policy.close()
    assert [each.filename for each in told] == [__file__]
