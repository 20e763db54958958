"""The played env and its model, given to a run in every way that there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

import rlmesh_gym as rg
from rlmesh_gym.plain_data import jsonable
from rlmesh_gym.rpc import EnvSession, ModelSession
from tests.runtime.played_env import ENV_ID, PlayedEnv, frame, picture

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

CHUNK = 4
MODULE_ID = f"tests.runtime.played_env:{ENV_ID}"


class PlayedModel(rg.ModelHandler):
    """Answers with :func:`frame` and writes down what it sees of every episode, in order."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: dict[str, list[tuple[Any, ...]]] = {}

    def predict(self, observation: Any) -> Any:
        return self.predict_chunked(observation).actions

    def predict_chunked(self, observation: Any) -> rg.PredictFrames:
        self.calls += 1
        rows = observation.observation
        for row, episode_id in enumerate(observation.episode_ids):
            if "picture" in rows:
                seen = rows["picture"][row]
                assert np.array_equal(seen, picture(int(rows["t"][row]), len(seen)))
            sight = int(rows["t"][row]), rows["pose"][row].tolist(), observation.seeds[row]
            self.seen.setdefault(episode_id, []).append(sight)
        frames = [frame(rows, number) for number in range(CHUNK)]
        return rg.PredictFrames(frames[0], frames[1:])

    def of(self, episodes: Any, *, seeds: bool = True) -> list[list[tuple[Any, ...]]]:
        """What it saw of these episodes."""
        found = [self.seen[episode.episode_id] for episode in episodes]
        return found if seeds else [[sight[:2] for sight in one] for one in found]


def told(episode: Any) -> dict[str, Any]:
    """What of a record must not depend on who plays, where and when."""
    names = ("seed", "length", "episode_return", "terminated", "truncated", "interrupted")
    told = {name: getattr(episode, name) for name in (*names, "success")}
    return {**told, "final_info": jsonable(episode.final_info)}


@dataclass
class Played:
    """An episode played by hand."""

    seed: int | None
    length: int = 0
    episode_return: float = 0.0
    terminated: bool = False
    truncated: bool = False
    interrupted: bool = False
    success: bool | None = None
    final_info: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[Any, ...]] = field(default_factory=list)


def play_by_hand(seed: int, horizon: int = 1) -> Played:
    """Play one episode with nothing but Gymnasium, as the model would have it."""
    env = PlayedEnv()
    observation, _ = env.reset(seed=seed)
    played = Played(seed)
    plan: list[Any] = []
    while not (played.terminated or played.truncated):
        batch = {"t": np.array([observation["t"]]), "pose": observation["pose"][None]}
        if not plan:
            played.seen.append((observation["t"], observation["pose"].tolist(), seed))
            plan = [frame(batch, number)[0] for number in range(min(horizon, CHUNK))]
        step = env.step(plan.pop(0))
        observation, reward, played.terminated, played.truncated, played.final_info = step
        played.length += 1
        played.episode_return += reward
    played.success = played.final_info["is_success"]
    return played


# Envs


def vector(mode: AutoresetMode, num_envs: int = 2, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([partial(PlayedEnv, **options)] * num_envs, autoreset_mode=mode)


def lanes(num_envs: int = 2, **options: Any) -> list[PlayedEnv]:
    return [PlayedEnv(**options) for _ in range(num_envs)]


def _address(stack: ExitStack, envs: Any, **options: Any) -> str:
    return stack.enter_context(rg.EnvServer(envs, **options)).address


def _wrapped(envs: Any) -> Any:
    return VectorWrapper(envs)


def _envs_of_mode(mode: AutoresetMode) -> dict[str, Callable[[ExitStack], Any]]:
    """Two lanes that come in one autoreset mode."""

    def remote(stack: ExitStack, **options: Any) -> Any:
        return stack.enter_context(rg.RemoteVectorEnv(autoreset_mode=mode, **options))

    def several(stack: ExitStack, served: Callable[[], Any]) -> Any:
        return remote(stack, addresses=[_address(stack, served()) for _ in range(2)])

    ends: dict[str, Callable[[ExitStack], Any]] = {
        "local": lambda stack: stack.enter_context(closing(vector(mode))),
        "local, wrapped": lambda stack: _wrapped(stack.enter_context(closing(vector(mode)))),
        "address": lambda stack: _address(stack, vector(mode)),
        "factory": lambda stack: _address(stack, partial(vector, mode), max_sessions=2),
        "session": lambda stack: stack.enter_context(
            EnvSession.open(_address(stack, vector(mode)))
        ),
        "object": lambda stack: remote(stack, address=_address(stack, vector(mode))),
        "object, lanes": lambda stack: remote(stack, address=_address(stack, lanes())),
        "object, endpoints": lambda stack: several(stack, partial(lanes, 1)),
        "object, wrapped": lambda stack: _wrapped(remote(stack, address=_address(stack, lanes()))),
        "object, threads": lambda stack: remote(
            stack, address=_address(stack, lanes(), overlap=True)
        ),
    }
    return ends


class closing:  # noqa: N801 - as contextlib has it, for what is closed once
    """Close a local vector at the end."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs

    def __enter__(self) -> Any:
        return self.envs

    def __exit__(self, *_: object) -> None:
        self.envs.close()


BY_MODE = {mode: _envs_of_mode(mode) for mode in AutoresetMode}

ENVS: dict[str, Callable[[ExitStack], Any]] = {
    **{
        f"{mode.name}: {name}": end for mode in AutoresetMode for name, end in BY_MODE[mode].items()
    },
    "single": lambda _: PlayedEnv(),
    "single, wrapped": lambda _: gym.wrappers.OrderEnforcing(PlayedEnv()),
    "list of singles": lambda _: lanes(),
    "list of vectors": lambda _: [
        vector(AutoresetMode.SAME_STEP, 1),
        vector(AutoresetMode.DISABLED),
    ],
    "processes": lambda stack: stack.enter_context(closing(AsyncVectorEnv([PlayedEnv] * 2))),
    "address of one": lambda stack: _address(stack, PlayedEnv()),
    "address of lanes": lambda stack: _address(stack, lanes()),
    "factory of lanes": lambda stack: _address(stack, lanes, max_sessions=2),
    "addresses": lambda stack: [
        _address(stack, lanes(1)),
        _address(stack, vector(AutoresetMode.NEXT_STEP)),
    ],
    "RemoteEnv": lambda stack: stack.enter_context(rg.RemoteEnv(_address(stack, PlayedEnv()))),
    "RemoteEnv, wrapped": lambda stack: gym.wrappers.OrderEnforcing(
        stack.enter_context(rg.RemoteEnv(_address(stack, PlayedEnv())))
    ),
    "mixed list": lambda stack: [PlayedEnv(), _address(stack, lanes())],
    "embedded": lambda stack: stack.enter_context(rg.RemoteVectorEnv(env_id=MODULE_ID, num_envs=2)),
    "embedded, workers": lambda stack: stack.enter_context(
        rg.RemoteVectorEnv(env_id=MODULE_ID, num_envs=2, workers=2, autoreset_mode="SameStep")
    ),
    "embedded, single": lambda stack: stack.enter_context(rg.RemoteEnv(env_id=MODULE_ID)),
    "make_vec": lambda stack: stack.enter_context(
        gym.make_vec("rlmesh/Remote-v0", address=_address(stack, lanes()))  # type: ignore[arg-type]
    ),
}

# Models


class Louder(rg.RemotePolicy):
    """Counts its calls; what it answers is the model's."""

    predictions = 0

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        self.predictions += 1
        return super().predict(*args, **kwargs)


def policy_for(
    address: str, envs: Any = 1, *, kind: type[rg.RemotePolicy] = rg.RemotePolicy, **options: Any
) -> rg.RemotePolicy:
    """Make a policy for an env, or for some lanes of any."""
    if isinstance(envs, int):
        options |= {
            "single_observation_space": PlayedEnv().observation_space,
            "single_action_space": PlayedEnv().action_space,
            "num_envs": envs,
        }
        envs = None
    return kind(address, envs, **options)


def _served(stack: ExitStack, model: Any) -> str:
    return stack.enter_context(rg.ModelServer(model)).address


MODELS: dict[str, Callable[[ExitStack, PlayedModel, int, int], Any]] = {
    "handler": lambda stack, model, n, horizon: model,
    "address": lambda stack, model, n, horizon: _served(stack, model),
    "session": lambda stack, model, n, horizon: stack.enter_context(
        ModelSession.open(_served(stack, model))
    ),
    "policy": lambda stack, model, n, horizon: stack.enter_context(
        policy_for(_served(stack, model), n, execution_horizon=horizon)
    ),
    "subclass": lambda stack, model, n, horizon: stack.enter_context(
        policy_for(_served(stack, model), n, execution_horizon=horizon, kind=Louder)
    ),
}
