"""What a run plays and reports, against a plain loop that knows neither driver nor wire."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import SpaceCodec
from rlmesh_gym.errors import AutoresetError, ConfigurationError, ModelError
from rlmesh_gym.runtime import (
    RuntimeReport,
    derive_seed,
    events,
    run,
)
from rlmesh_gym.server import HistoryNeeds, ModelHandler, ModelRouteSetup, RouteNeeds
from rlmesh_gym.server.env.in_process import InProcessEnvSession
from rlmesh_gym.server.env.served_vector import ServedVector
from tests.fake_envs import AllSpacesEnv, CountingEnv, counting_vector
from tests.runtime.runtime_doubles import (
    SteadyModel,
    Witness,
    env_server,
    model_server,
    outcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")
KINDS = (*MODES, "LANES")
LENGTHS = (2, 3, 4)


def make(kind: str, num_envs: int = 3) -> Any:
    if kind == "LANES":
        return [CountingEnv(2 + lane, base=100.0 * lane) for lane in range(num_envs)]
    return counting_vector(num_envs, AutoresetMode[kind])


def play_lane(length: int, base: float, episodes: int, horizon: int) -> list[tuple[int, float]]:
    """Play one lane alone, as the model of the doubles would have it: (length, return) each."""
    env = CountingEnv(length, base=base)
    played = []
    for _ in range(episodes):
        observation, _ = env.reset()
        plan: list[int] = []
        total, steps, over = 0.0, 0, False
        while not over:
            if not plan:
                plan = [(int(observation[0]) + 2 * frame) % 10 for frame in range(horizon)]
            observation, reward, terminated, truncated, _ = env.step(plan.pop(0))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        played.append((steps, total))
    return played


def expected_numbers(episodes: int, horizon: int, num_envs: int = 3) -> list[tuple[int, float]]:
    lanes = [
        play_lane(2 + lane, 100.0 * lane, -(-episodes // num_envs), horizon)
        for lane in range(num_envs)
    ]
    return [lanes[index % num_envs][index // num_envs] for index in range(episodes)]


def numbers(report: RuntimeReport) -> list[tuple[int, float]]:
    return [(episode.length, episode.episode_return) for episode in report.episodes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("where", ["remote", "remote env", "remote model", "local"])
def test_numbers_equal_those_of_lanes_played_alone(
    socket_dir: Path, kind: str, horizon: int, where: str
) -> None:
    if kind == "LANES" and where in {"remote model", "local"}:
        pytest.skip("a list of envs is an endpoint's thing")
    with ExitStack() as stack:
        envs = make(kind)
        handler = SteadyModel(chunk=4)
        env: Any = envs
        policy: Any = handler
        if where in {"remote", "remote env"}:
            env = stack.enter_context(env_server(socket_dir, envs))
        if where in {"remote", "remote model"}:
            policy = stack.enter_context(model_server(socket_dir, handler))
        report = run(env, policy, episodes=8, execution_horizon=horizon)
    assert numbers(report) == expected_numbers(8, horizon)
    assert [episode.index for episode in report.episodes] == list(range(8))
    assert [episode.lane for episode in report.episodes] == [index % 3 for index in range(8)]
    assert report.total_steps == sum(episode.length for episode in report.episodes)
    assert report.total_reward == sum(episode.episode_return for episode in report.episodes)
    assert report.stop_reason == "max_episodes"
    assert report.error is None
    assert len({episode.episode_id for episode in report.episodes}) == 8
    # Every episode that the model knew was taken back, and none of the others.
    assert set().union(*handler.forgotten) >= set().union(*handler.predicted)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_predicted_are_as_few_as_chunks_allow(socket_dir: Path, kind: str) -> None:
    handler = SteadyModel(chunk=4)
    with env_server(socket_dir, make(kind)) as address:
        report = run(address, handler, episodes=9, execution_horizon=2)
    rows = sum(len(ids) for ids in handler.predicted)
    assert rows == sum(-(-episode.length // 2) for episode in report.episodes)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_the_horizon_reported_is_the_one_executed(chunk: int) -> None:
    handler = SteadyModel(chunk)
    report = run(make("NEXT_STEP"), handler, episodes=6, execution_horizon=4)
    assert (report.execution_horizon, report.requested_horizon) == (chunk, 4)
    assert report.predict_calls == len(handler.predicted)
    assert report.predict_rows == sum(len(ids) for ids in handler.predicted)
    assert len(report.notes) == (chunk < 4)
    assert ("longer execution horizon" in report.bottleneck.sentence) <= (chunk == 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("episodes", [0, 1, 2, 3, 5])
def test_exactly_the_episodes_asked_for(socket_dir: Path, kind: str, episodes: int) -> None:
    witness = Witness()
    with env_server(socket_dir, make(kind)) as address:
        report = run(address, SteadyModel(), episodes=episodes, hooks=witness)
    assert len(report.episodes) == episodes
    assert len(witness.of(events.EpisodeStarted)) == episodes
    assert [event.episode for event in witness.of(events.EpisodeCompleted)] == sorted(
        report.episodes, key=lambda episode: witness_order(witness, episode.episode_id)
    )


def witness_order(witness: Witness, episode_id: str) -> int:
    completed = witness.of(events.EpisodeCompleted)
    return [event.episode.episode_id for event in completed].index(episode_id)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_go_to_the_lanes_that_they_are_for(socket_dir: Path, kind: str) -> None:
    envs = make(kind)
    lanes = envs if kind == "LANES" else envs.envs
    seeds: list[list[int | None]] = [[] for _ in lanes]
    for lane, env in enumerate(lanes):
        record_seeds(env, seeds[lane])
    with env_server(socket_dir, envs) as address:
        report = run(address, SteadyModel(), episodes=6, seed=11)
    for episode in report.episodes:
        generation = episode.index // 3
        if kind in {"DISABLED", "LANES"} or generation == 0:
            assert episode.seed == derive_seed(11, "run", generation, episode.lane)
        else:
            assert episode.seed is None
        assert seeds[episode.lane][generation] == episode.seed


def record_seeds(env: CountingEnv, into: list[int | None]) -> None:
    reset = env.reset

    def recording(*, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        into.append(seed)
        return reset(seed=seed, options=options)

    env.reset = recording  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["remote", "local"])
def test_episode_seeds_reach_every_episode_in_every_mode(
    socket_dir: Path, kind: str, where: str
) -> None:
    if kind == "LANES" and where == "local":
        pytest.skip("a list of envs is an endpoint's thing")
    planned = [100 + index for index in range(8)]
    envs = make(kind)
    with ExitStack() as stack:
        env = envs if where == "local" else stack.enter_context(env_server(socket_dir, envs))
        report = run(env, SteadyModel(), episode_seeds=planned)
    assert [episode.seed for episode in report.episodes] == planned
    assert [episode.length for episode in report.episodes] == [2, 3, 4, 2, 3, 4, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_limit_truncates_and_the_env_starts_afresh(socket_dir: Path, kind: str) -> None:
    with env_server(socket_dir, make(kind)) as address:
        report = run(address, SteadyModel(), episodes=7, max_episode_steps=3)
    assert [episode.length for episode in report.episodes] == [2, 3, 3, 2, 3, 3, 2]
    # Lane 1 ends by itself with its third step; lane 2 would have gone on.
    assert [episode.truncated for episode in report.episodes] == [
        episode.lane == 2 for episode in report.episodes
    ]
    assert [episode.terminated for episode in report.episodes] == [
        episode.lane != 2 for episode in report.episodes
    ]


def test_an_episode_may_be_ended_by_the_clock(socket_dir: Path) -> None:
    with env_server(socket_dir, [CountingEnv(10**9)]) as address:
        report = run(address, SteadyModel(), episodes=2, max_episode_seconds=0.05)
    assert [episode.truncated for episode in report.episodes] == [True, True]
    assert all(episode.duration >= 0.05 for episode in report.episodes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_limit_cuts_running_episodes_off(socket_dir: Path, kind: str) -> None:
    witness = Witness()
    with env_server(socket_dir, make(kind)) as address:
        report = run(address, SteadyModel(), max_steps=7, hooks=witness)
    assert report.stop_reason == "max_steps"
    assert 7 <= report.total_steps <= 9
    assert report.total_steps == sum(episode.length for episode in report.episodes)
    interrupted = [episode for episode in report.episodes if episode.interrupted]
    assert interrupted == list(report.episodes[len(report.completed_episodes) :])
    assert not any(episode.terminated or episode.truncated for episode in interrupted)
    assert len(witness.of(events.EpisodeStarted)) == len(report.episodes)


@pytest.mark.parametrize("horizon", [1, 3])
def test_several_endpoints_of_different_modes_make_one_run(socket_dir: Path, horizon: int) -> None:
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(env_server(socket_dir, envs))
            for envs in (
                counting_vector(2, AutoresetMode.NEXT_STEP),
                [CountingEnv(4, base=200.0)],
                counting_vector(1, AutoresetMode.SAME_STEP),
                counting_vector(2, AutoresetMode.DISABLED),
            )
        ]
        report = run(addresses, SteadyModel(4), episodes=15, execution_horizon=horizon)
    assert report.num_envs == 6
    assert report.autoreset_mode == "NEXT_STEP+DISABLED+SAME_STEP"
    lanes = [(2, 0.0), (3, 100.0), (4, 200.0), (2, 0.0), (2, 0.0), (3, 100.0)]
    for episode in report.episodes:
        length, base = lanes[episode.lane]
        played = play_lane(length, base, 1 + episode.index // 6, horizon)
        assert (episode.length, episode.episode_return) == played[-1]
        assert episode.endpoint == addresses[(0, 0, 1, 2, 3, 3)[episode.lane]]


def test_endpoints_of_different_spaces_are_refused(socket_dir: Path) -> None:
    with (
        env_server(socket_dir, CountingEnv()) as first,
        env_server(socket_dir, AllSpacesEnv()) as second,
        pytest.raises(ConfigurationError, match="same spaces") as caught,
    ):
        run([first, second], SteadyModel(), episodes=1)
    assert second in str(caught.value)


def whole_only(envs: Any) -> Any:
    """A vector env that can only be reset as a whole, as the released package serves one."""
    session = InProcessEnvSession(ServedVector(envs, "whole", in_process=True))
    session.has_partial_reset = False
    return session


def test_a_vector_without_partial_reset_is_reset_when_all_have_ended() -> None:
    envs = gym.vector.SyncVectorEnv(
        [lambda: CountingEnv(3), lambda: CountingEnv(3, base=100.0)],
        autoreset_mode=AutoresetMode.DISABLED,
    )
    report = run(whole_only(envs), SteadyModel(), episodes=5, seed=3)
    assert [episode.length for episode in report.episodes] == [3] * 5
    assert [episode.seed for episode in report.episodes] == [
        derive_seed(3, "run", index // 2, index % 2) for index in range(5)
    ]


def test_and_refuses_episodes_of_different_lengths() -> None:
    envs = whole_only(counting_vector(2, AutoresetMode.DISABLED))
    with pytest.raises(AutoresetError, match=r"lanes \[0\] have ended while others have not"):
        run(envs, SteadyModel(), episodes=4)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_with_autoreset_it_waits_for_the_slowest_where_seeds_are_wanted(mode: str) -> None:
    envs = counting_vector(3, AutoresetMode[mode])
    report = run(whole_only(envs), SteadyModel(), episode_seeds=range(8), max_episode_steps=3)
    assert [episode.seed for episode in report.episodes] == list(range(8))
    assert [episode.length for episode in report.episodes] == [2, 3, 3, 2, 3, 3, 2, 3]


class RememberingModel(ModelHandler):
    """Takes history and writes down, per episode, every step that it got, in order."""

    class Setup(ModelRouteSetup):
        def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
            assert options.delivers_history
            return RouteNeeds(history=HistoryNeeds())

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}
        self.seen: dict[str, list[float]] = {}
        self.inner = SteadyModel(4)

    def route_setup(self) -> ModelRouteSetup:
        return self.Setup()

    def predict_chunked(self, observation: Any) -> Any:
        frames = [*observation.history, observation]
        for frame in frames:
            for row, episode_id in enumerate(frame.episode_ids):
                self.steps.setdefault(episode_id, []).append(frame.step)
                value = float(frame.observation[row, 0])
                self.seen.setdefault(episode_id, []).append(value)
        return self.inner.predict_chunked(observation)

    def predict(self, observation: Any) -> Any:
        return self.predict_chunked(observation).actions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("where", ["remote", "local"])
def test_a_model_with_history_gets_every_observation_once_and_in_order(
    socket_dir: Path, kind: str, horizon: int, where: str
) -> None:
    handler = RememberingModel()
    with ExitStack() as stack:
        policy: Any = handler
        if where == "remote":
            policy = stack.enter_context(model_server(socket_dir, handler))
        address = stack.enter_context(env_server(socket_dir, make(kind)))
        report = run(address, policy, episodes=7, execution_horizon=horizon)
    assert numbers(report) == expected_numbers(7, horizon)
    for episode in report.episodes:
        steps = handler.steps[episode.episode_id]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        # All that were acted on, but those replayed after the last prediction.
        assert len(steps) == (episode.length - 1) // horizon * horizon + 1
        seen = handler.seen[episode.episode_id]
        assert seen == [seen[0] + step for step in range(len(seen))]


class LookingModel(ModelHandler):
    """Keeps every observation and answers one and the same action."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.codec = SpaceCodec(action_space)
        self.action = action_space.sample()
        self.seen: list[Any] = []

    def predict(self, observation: Any) -> Any:
        self.seen.append(observation.observation)
        num_rows = observation.num_envs
        return self.codec.unflatten(self.codec.flatten_rows([self.action] * num_rows), num_rows)


def test_observations_of_every_space_come_through_unchanged(socket_dir: Path) -> None:
    def lanes() -> list[AllSpacesEnv]:
        return [AllSpacesEnv(4, composite_action=True), AllSpacesEnv(6, composite_action=True)]

    seen = []
    for where in ("remote", "remote env", "local"):
        handler = LookingModel(lanes()[0].action_space)
        envs = lanes()
        with ExitStack() as stack:
            policy: Any = handler
            if where == "remote":
                policy = stack.enter_context(model_server(socket_dir, handler))
            if where == "local":
                env: Any = gym.vector.SyncVectorEnv(
                    [partial(envs.__getitem__, 0), partial(envs.__getitem__, 1)],
                    autoreset_mode=AutoresetMode.DISABLED,
                )
            else:
                env = stack.enter_context(env_server(socket_dir, envs))
            run(env, policy, episodes=4, seed=5)
        seen.append(handler.seen)
    assert len(seen[0]) > 4
    for other in seen[1:]:
        assert len(other) == len(seen[0])
        for left, right in zip(seen[0], other, strict=True):
            assert data_equivalence(left, right)


def test_success_and_final_info_are_the_lanes_own(socket_dir: Path) -> None:
    class Judged(CountingEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return (*rest, {**info, "is_success": self.base > 0, "path": np.arange(3)})

    def lanes() -> list[Callable[[], Judged]]:
        return [lambda: Judged(2), lambda: Judged(3, base=100.0)]

    results = []
    for mode in AutoresetMode:
        with env_server(
            socket_dir, gym.vector.SyncVectorEnv(lanes(), autoreset_mode=mode)
        ) as address:
            results.append(run(address, SteadyModel(), episodes=4))
        results.append(
            run(gym.vector.SyncVectorEnv(lanes(), autoreset_mode=mode), SteadyModel(), episodes=4)
        )
    with env_server(socket_dir, [make_lane() for make_lane in lanes()]) as address:
        results.append(run(address, SteadyModel(), episodes=4))
    for report in results:
        assert [episode.success for episode in report.episodes] == [False, True, False, True]
        infos = [episode.final_info for episode in report.episodes]
        assert [info["t"] for info in infos] == [2, 3, 2, 3]
        assert all(info["kind"] == "step" and info["path"] == [0, 1, 2] for info in infos)


@pytest.mark.parametrize("kind", ["NEXT_STEP", "LANES"])
def test_a_model_whose_actions_do_not_fit_is_named(socket_dir: Path, kind: str) -> None:
    def wrong_shape(observation: Any) -> Any:
        return np.zeros((len(observation), 2), np.int64)

    def out_of_domain(observation: Any) -> Any:
        return np.full(len(observation), 10)

    with env_server(socket_dir, make(kind)) as address:
        for policy, text in ((wrong_shape, "expected shape"), (out_of_domain, "row 0")):
            with pytest.raises(ModelError, match=text):
                run(address, policy, episodes=1)
            with model_server(socket_dir, policy) as model, pytest.raises(ModelError, match=text):
                run(address, model, episodes=1)


@pytest.mark.parametrize("rows", ["together", "apart"])
def test_rows_go_together_or_apart_with_the_same_result(socket_dir: Path, rows: str) -> None:
    handler = SteadyModel(4)
    with (
        env_server(socket_dir, make("LANES")) as address,
        model_server(socket_dir, handler) as model,
    ):
        report = run(address, model, episodes=7, execution_horizon=2, predict_rows=rows)  # type: ignore[arg-type]
    assert numbers(report) == expected_numbers(7, 2)
    sizes = {len(ids) for ids in handler.predicted}
    assert sizes == {1} if rows == "apart" else max(sizes) == 3


def test_more_rows_apart_than_go_in_flight_at_a_time(socket_dir: Path) -> None:
    envs = [CountingEnv(2, base=float(lane)) for lane in range(70)]
    with (
        env_server(socket_dir, envs) as address,
        model_server(socket_dir, SteadyModel()) as model,
    ):
        apart = run(address, model, episodes=140, predict_rows="apart")
        together = run(address, model, episodes=140)
    # The env's own count of episodes goes on between the two runs.
    assert [episode.length for episode in apart.episodes] == [2] * 140
    assert len(together.episodes) == 140


def test_local_handlers_are_told_of_their_episodes_and_asked_for_no_more_than_they_have() -> None:
    class Short(SteadyModel):
        class Setup(ModelRouteSetup):
            def __init__(self) -> None:
                self.released: list[str] = []

            def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
                return RouteNeeds(native_chunk=2)

            def release_adapter(self, env_id: str) -> None:
                self.released.append(env_id)

        def __init__(self) -> None:
            super().__init__(2)
            self.setup = self.Setup()

        def route_setup(self) -> ModelRouteSetup:
            return self.setup

    handler = Short()
    envs = make("NEXT_STEP")
    with pytest.raises(ModelError, match="at most 2"):
        run(envs, handler, episodes=1, execution_horizon=3)
    report = run(envs, handler, episodes=3, execution_horizon=2)
    assert len(report.episodes) == 3
    assert handler.setup.released == [report.run_id]


def test_run_says_what_it_takes() -> None:
    with pytest.raises(ConfigurationError, match="env must be an address"):
        run(3, SteadyModel(), episodes=1)
    with pytest.raises(ConfigurationError, match="policy must be an address"):
        run(make("NEXT_STEP"), 3, episodes=1)
    with pytest.raises(ConfigurationError, match="say when to end"):
        run(make("NEXT_STEP"), SteadyModel())
    with pytest.raises(ConfigurationError, match="at least one env"):
        run([], SteadyModel(), episodes=1)
    twice = make("NEXT_STEP")
    with pytest.raises(ConfigurationError, match="twice"):
        run([twice, twice], SteadyModel(), episodes=1)


def test_a_single_local_env_is_a_run_of_one_lane() -> None:
    env = CountingEnv(3)
    report = run(env, SteadyModel(), episodes=2, seed=1)
    assert [episode.length for episode in report.episodes] == [3, 3]
    assert env.close_calls == 0
    assert report.env_endpoints == ("local",)


def test_a_vector_that_takes_one_seed_is_seeded_as_a_whole() -> None:
    def play(seed: int | None = None, **options: Any) -> Any:
        envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
        report = run(envs, lambda rows: (rows[:, 2] > 0).astype(np.int64), seed=seed, **options)
        envs.close()
        return [episode.length for episode in report.episodes], report

    lengths, report = play(7, episodes=6)
    assert lengths == play(7, episodes=6)[0]
    assert lengths != play(8, episodes=6)[0]
    # No lane began with a seed that a record could name.
    assert [episode.seed for episode in report.episodes] == [None] * 6
    with pytest.raises(ConfigurationError, match="one seed for all"):
        play(episode_seeds=[1, 2, 3])


def test_local_envs_are_named_by_what_they_are(socket_dir: Path) -> None:
    import rlmesh_gym as rg

    def name_of(env: Any) -> str:
        report = run(env, lambda rows: np.zeros(len(rows), np.int64), episodes=0)
        env.close()
        return report.env_id

    cart_poles = [partial(gym.make, "CartPole-v1")] * 2
    assert name_of(gym.make("CartPole-v1")) == "CartPole-v1"
    assert name_of(gym.vector.SyncVectorEnv(cart_poles)) == "CartPole-v1"
    with env_server(socket_dir, [make_one() for make_one in cart_poles]) as address:
        assert name_of(rg.RemoteVectorEnv(address)) == "CartPole-v1"
        assert name_of(gym.make_vec("rlmesh/Remote-v0", address=address)) == "CartPole-v1"


def test_a_driver_runs_again(socket_dir: Path) -> None:
    from rlmesh_gym.runtime import RuntimeDriver, RuntimeSessionSpec

    with (
        env_server(socket_dir, make("LANES")) as address,
        model_server(socket_dir, SteadyModel()) as model,
    ):
        driver = RuntimeDriver(RuntimeSessionSpec(max_episodes=3, base_seed=1), address, model)
        first, second = driver.run(), driver.run()
    assert [episode.seed for episode in first.episodes] == [
        episode.seed for episode in second.episodes
    ]
    assert first.run_id != second.run_id
    assert numbers(first) == expected_numbers(3, 1)


def test_open_sessions_are_used_and_left_open(socket_dir: Path) -> None:
    from rlmesh_gym.rpc import EnvSession, ModelSession

    with (
        env_server(socket_dir, make("LANES")) as address,
        model_server(socket_dir, SteadyModel()) as model,
        EnvSession.open(address) as env_session,
        ModelSession.open(model) as model_session,
    ):
        reports = [run(env_session, model_session, episodes=3) for _ in range(2)]
        assert not env_session.is_closed
        assert not model_session.is_closed
    assert all(len(report.episodes) == 3 for report in reports)


def test_remote_policies_and_vector_envs_do_as_they_are(socket_dir: Path) -> None:
    import rlmesh_gym as rg

    with (
        env_server(socket_dir, make("LANES")) as address,
        model_server(socket_dir, SteadyModel(4)) as model,
    ):
        for mode in AutoresetMode:
            envs = rg.RemoteVectorEnv(address, autoreset_mode=mode)
            policy = rg.RemotePolicy(model, envs, execution_horizon=3)
            report = run(envs, policy, episodes=6)
            assert report.execution_horizon == 3
            assert report.autoreset_mode == mode.name
            assert [episode.length for episode in report.episodes] == [2, 3, 4, 2, 3, 4]
            policy.close()
            envs.close()


def test_the_report_says_what_bound_the_run(socket_dir: Path) -> None:
    from tests.fake_envs import SleepEnv

    with env_server(socket_dir, [SleepEnv(5, seconds=0.02)]) as address:
        report = run(address, SteadyModel(), episodes=2)
    assert report.bottleneck.sentence.startswith("The environment bound this run")
    assert sum(report.bottleneck.shares.values()) == pytest.approx(1)
    assert max(report.bottleneck.shares, key=report.bottleneck.shares.__getitem__) == "env"
    episode = report.episodes[0]
    assert 5 * 0.02 <= episode.env_time <= report.duration
    assert episode.policy_time < episode.env_time


def same(reports: Sequence[RuntimeReport]) -> None:
    assert all(outcome(report) == outcome(reports[0]) for report in reports)


def test_setting_up_is_no_part_of_what_bound_the_run() -> None:
    class Slow(ModelHandler):
        def predict(self, observation: Any) -> Any:
            time.sleep(0.02)
            return np.zeros(observation.num_envs, np.int64)

        def route_setup(self) -> ModelRouteSetup:
            return Setup()

    class Setup(ModelRouteSetup):
        def resolve_adapter(self, env_id: str, contract: Any, options: Any) -> RouteNeeds:
            time.sleep(0.4)  # Longer than all predictions together.
            return RouteNeeds()

    report = run(make("NEXT_STEP"), Slow(), episodes=3)
    assert report.bottleneck.sentence.startswith("The policy bound this run")


def test_results_are_equal_wherever_the_ends_are(socket_dir: Path) -> None:
    def policy(observation: Any) -> Any:
        return (observation[:, 2] > 0).astype(np.int64)

    def vector() -> Any:
        return gym.make_vec(
            "CartPole-v1",
            num_envs=3,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
        )

    local = vector()
    with (
        env_server(socket_dir, [gym.make("CartPole-v1") for _ in range(3)]) as lanes,
        env_server(socket_dir, vector()) as served,
        model_server(socket_dir, policy) as model,
    ):
        same(
            [
                run(env, end, episodes=7, seed=7)
                for env in (local, lanes, served)
                for end in (policy, model)
            ]
        )
    local.close()
