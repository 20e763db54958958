"""``on_failure="restart"``: a run goes on when an endpoint or the model was lost and comes back."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode

import rlmesh_gym as rg
import rlmesh_gym.restarts
from rlmesh_gym.errors import ConfigurationError, UnavailableError
from rlmesh_gym.rpc import ModelSession
from tests.runtime.ends import PlayedModel, lanes, play_by_hand, told, vector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEEDS = [3, 14, 15, 92, 65, 35, 89, 79]
SERVED: dict[str, Callable[[], Any]] = {
    "lanes": lanes,
    "one lane": lambda: lanes(1),
    **{mode.name: partial(vector, mode) for mode in AutoresetMode},
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlmesh_gym.restarts, "_FIRST_PAUSE", 0.001)


class Endpoint:
    """A server at a socket that can go down, and come back."""

    def __init__(
        self, stack: ExitStack, make: Callable[[str], Any], folder: Path, name: str
    ) -> None:
        self.address = f"unix://{folder}/{name}.sock"
        self.make = make
        self.server: Any = None
        self.times_up = 0
        stack.callback(self.down)
        self.up()

    def up(self) -> None:
        self.times_up += 1
        self.server = self.make(self.address)
        self.server.start()

    def down(self) -> None:
        self.server.stop()

    def bounce(self) -> None:
        self.down()
        self.up()


class At(rg.RuntimeHooks):
    """Does something after some steps of a run."""

    def __init__(self, *actions: tuple[int, Callable[[], Any]]) -> None:
        self.actions = dict(actions)
        self.steps = 0
        self.logs: list[str] = []
        self.completed: list[Any] = []
        self.on_loss: Callable[[], Any] = lambda: None

    def step_completed(self, event: Any) -> None:
        self.steps += 1
        if self.steps in self.actions:
            self.actions[self.steps]()

    def episode_completed(self, event: Any) -> None:
        self.completed.append(event.episode)

    def log(self, event: Any) -> None:
        self.logs.append(event.message)
        if "lost" in event.message:
            self.on_loss()


@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("served", SERVED)
def test_an_env_that_comes_back(served: str, other: bool, socket_dir: Path) -> None:
    seeded: dict[str, Any] = (
        {"episode_seeds": SEEDS} if served == "lanes" else {"episodes": 8, "seed": 5}
    )
    with ExitStack() as stack:
        shaky = Endpoint(
            stack, lambda address: rg.EnvServer(SERVED[served](), address), socket_dir, "env"
        )
        envs: Any = shaky.address
        if other:
            steady = stack.enter_context(rg.EnvServer(SERVED[served]()))
            envs = [shaky.address, steady.address]
        hooks = At((3, shaky.bounce), (9, shaky.bounce))
        model = PlayedModel()
        report = rg.run(envs, model, on_failure="restart", hooks=hooks, **seeded)
    assert report.stop_reason == "max_episodes"
    assert shaky.times_up == 3
    assert len(report.completed_episodes) == 8
    assert sorted(one.index for one in report.completed_episodes) == list(range(8))
    cut_off = [one for one in report.episodes if one.interrupted]
    assert cut_off or served == "one lane"  # It may be lost between two episodes.
    assert all(one.endpoint == shaky.address for one in cut_off)
    assert report.total_steps == sum(one.length for one in report.episodes)
    assert {one.episode_id for one in report.episodes} == {
        one.episode_id for one in hooks.completed
    }
    for episode in report.completed_episodes:
        assert not episode.truncated or "actions" in episode.final_info
        if served == "lanes":
            expected = play_by_hand(SEEDS[episode.index])
            assert told(episode) == told(expected)


@pytest.mark.parametrize("given", ["address", "policy", "session"])
@pytest.mark.parametrize("horizon", [1, 3])
def test_a_model_that_comes_back(given: str, horizon: int, socket_dir: Path) -> None:
    handler = PlayedModel()
    with ExitStack() as stack:
        shaky = Endpoint(
            stack, lambda address: rg.ModelServer(handler, address), socket_dir, "model"
        )
        envs = stack.enter_context(
            rg.RemoteVectorEnv(stack.enter_context(rg.EnvServer(lanes())).address)
        )
        policy: Any = shaky.address
        if given == "policy":
            policy = stack.enter_context(
                rg.RemotePolicy(shaky.address, envs, execution_horizon=horizon)
            )
        elif given == "session":
            policy = stack.enter_context(ModelSession.open(shaky.address))
        # It stays away until the run waits for it.
        hooks = At((3, shaky.down), (9, shaky.down))
        hooks.on_loss = shaky.up
        report = rg.run(
            envs,
            policy,
            episode_seeds=SEEDS,
            execution_horizon=horizon,
            on_failure="restart",
            hooks=hooks,
        )
    assert shaky.times_up == 3
    assert [told(one) for one in report.episodes] == [
        told(play_by_hand(seed, horizon)) for seed in SEEDS
    ]
    assert len([text for text in hooks.logs if "lost; waiting for it" in text]) == 2


def test_without_restart_the_run_ends(socket_dir: Path) -> None:
    with ExitStack() as stack:
        shaky = Endpoint(stack, lambda address: rg.EnvServer(lanes(), address), socket_dir, "env")
        with pytest.raises(UnavailableError) as raised:
            rg.run(shaky.address, PlayedModel(), episodes=8, hooks=At((3, shaky.bounce)))
    report = raised.value.report  # type: ignore[attr-defined]
    assert report.stop_reason == "failed"


@pytest.mark.parametrize("end", ["env", "model"])
def test_patience_ends_and_a_cancellation_does_not_wait_for_it(end: str, socket_dir: Path) -> None:
    def make(address: str) -> Any:
        if end == "env":
            return rg.EnvServer(lanes(), address)
        return rg.ModelServer(PlayedModel(), address)

    def run(patience: float, **options: Any) -> Any:
        with ExitStack() as stack:
            shaky = Endpoint(stack, make, socket_dir, end)
            env: Any = shaky.address if end == "env" else lanes(1)[0]
            policy: Any = shaky.address if end == "model" else PlayedModel()
            return rg.run(
                env,
                policy,
                episodes=8,
                on_failure="restart",
                limits=rg.RuntimeLimits(restart_patience=patience),
                hooks=At((3, shaky.down)),
                **options,
            )

    with pytest.raises(UnavailableError):
        run(0.05)
    cancellation = rg.runtime.Cancellation()
    timer = threading.Timer(0.2, cancellation.cancel)
    timer.start()
    try:
        report = run(1000.0, cancellation=cancellation)
    finally:
        timer.join()
    assert report.stop_reason == "cancelled"


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="on_failure"):
        rg.run(lanes(1)[0], PlayedModel(), episodes=1, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="restart_patience"):
        rg.run(
            lanes(1)[0],
            PlayedModel(),
            episodes=1,
            limits=rg.RuntimeLimits(restart_patience=-1.0),
        )
