"""Requests and events of one small run, in order, in each autoreset mode, with and without chunks.

Two lanes, whose episodes last 2 and 3 steps; four episodes, so two for each lane. Episodes are
called ``lane.number``; ``>`` marks a request, everything else is an event. What every run has at
its ends stands in ``HEAD`` and ``TAIL``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.rpc import EnvSession, ModelSession
from rlmesh_gym.runtime import RuntimeDriver, RuntimeSessionSpec
from tests.fake_envs import CountingEnv, counting_vector
from tests.runtime.runtime_doubles import (
    SteadyModel,
    TapEnv,
    TapModel,
    Trace,
    TraceHooks,
    env_server,
    model_server,
)

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
    env connected, {mode}, lanes [0, 1]
    > resolve, horizon {horizon}
    model connected
    session started, 2 lanes
    > reset all: 0.0 1.0, seeded
    episode 0.0 started by reset
    episode 1.0 started by reset
"""

TAIL = """
    > release: max_episodes
    telemetry of the session
    session ended: max_episodes
"""

NEXT_STEP = """
    observed at 0: 0.0 1.0            # both lanes need an action
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    observed at 1: 0.0 1.0
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 1 done: 0.0 1.0
    episode 0.0 over after 2          # its last observation is never shown to the model
    > forget 0.0
    observed at 2: 1.0                # lane 0 rolls over: nothing to act on
    > predict 1.0
    received 1 for 1.0
    > step all: 0.1 1.0               # the new id goes down with the step that rolls
    step 2 done: 1.0                  # a roll is no step of an episode
    episode 0.1 started by the env
    episode 1.0 over after 3
    > forget 1.0
    observed at 3: 0.1                # now lane 1 rolls over
    > predict 0.1
    received 1 for 0.1
    > step all: 0.1 1.1
    step 3 done: 0.1
    episode 1.1 started by the env
    observed at 4: 0.1 1.1
    > predict 0.1 1.1
    received 1 for 0.1 1.1
    > step all: 0.1 1.1
    step 4 done: 0.1 1.1
    episode 0.1 over after 2          # lane 0 has done its share of two
    > forget 0.1
    observed at 5: 1.1
    > predict 1.1
    received 1 for 1.1
    > step all: 0.2 1.1               # the vector steps all lanes, so lane 0 goes on uncounted
    step 5 done: 1.1
    observed at 6: 1.1
    > predict 1.1
    received 1 for 1.1
    > step all: 0.2 1.1
    step 6 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""

NEXT_STEP_CHUNKED = """
    observed at 0: 0.0 1.0
    > predict 0.0 1.0
    received 3 for 0.0 1.0            # the model gave 4 frames, the horizon keeps 3
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    > step all: 0.0 1.0               # replayed: no request to the model
    step 1 done: 0.0 1.0
    episode 0.0 over after 2          # the third frame of lane 0 is dropped with its episode
    > forget 0.0
    > step all: 0.1 1.0               # lane 1 replays on while lane 0 rolls over
    step 2 done: 1.0
    episode 0.1 started by the env
    episode 1.0 over after 3
    > forget 1.0
    observed at 3: 0.1
    > predict 0.1
    received 3 for 0.1
    > step all: 0.1 1.1
    step 3 done: 0.1
    episode 1.1 started by the env
    observed at 4: 1.1                # only lane 1 is planned, lane 0 is in mid-chunk
    > predict 1.1
    received 3 for 1.1
    > step all: 0.1 1.1
    step 4 done: 0.1 1.1
    episode 0.1 over after 2
    > forget 0.1
    > step all: 0.2 1.1
    step 5 done: 1.1
    > step all: 0.2 1.1
    step 6 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""

SAME_STEP = """
    observed at 0: 0.0 1.0
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    observed at 1: 0.0 1.0
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 1 done: 0.0 1.0
    episode 0.0 over after 2
    episode 0.1 started by the env    # the done step already shows it
    > forget 0.0
    observed at 2: 0.1 1.0            # so no step is lost
    > predict 0.1 1.0
    received 1 for 0.1 1.0
    > step all: 0.1 1.0               # the endpoint learns the new id here
    step 2 done: 0.1 1.0
    episode 1.0 over after 3
    episode 1.1 started by the env
    > forget 1.0
    observed at 3: 0.1 1.1
    > predict 0.1 1.1
    received 1 for 0.1 1.1
    > step all: 0.1 1.1
    step 3 done: 0.1 1.1
    episode 0.1 over after 2          # its share is done; what the env began does not count
    > forget 0.1
    observed at 4: 1.1
    > predict 1.1
    received 1 for 1.1
    > step all: 0.2 1.1
    step 4 done: 1.1
    observed at 5: 1.1
    > predict 1.1
    received 1 for 1.1
    > step all: 0.2 1.1
    step 5 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""

SAME_STEP_CHUNKED = """
    observed at 0: 0.0 1.0
    > predict 0.0 1.0
    received 3 for 0.0 1.0
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    > step all: 0.0 1.0
    step 1 done: 0.0 1.0
    episode 0.0 over after 2
    episode 0.1 started by the env
    > forget 0.0
    observed at 2: 0.1                # planned from its new observation; lane 1 replays on
    > predict 0.1
    received 3 for 0.1
    > step all: 0.1 1.0
    step 2 done: 0.1 1.0
    episode 1.0 over after 3
    episode 1.1 started by the env
    > forget 1.0
    observed at 3: 1.1
    > predict 1.1
    received 3 for 1.1
    > step all: 0.1 1.1
    step 3 done: 0.1 1.1
    episode 0.1 over after 2
    > forget 0.1
    > step all: 0.2 1.1
    step 4 done: 1.1
    > step all: 0.2 1.1
    step 5 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""

DISABLED = """
    observed at 0: 0.0 1.0
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    observed at 1: 0.0 1.0
    > predict 0.0 1.0
    received 1 for 0.0 1.0
    > step all: 0.0 1.0
    step 1 done: 0.0 1.0
    episode 0.0 over after 2
    > forget 0.0
    > reset lanes: 0.1, seeded        # the driver resets the ended lane alone
    episode 0.1 started by reset
    observed at 2: 0.1 1.0
    > predict 0.1 1.0
    received 1 for 0.1 1.0
    > step all: 0.1 1.0
    step 2 done: 0.1 1.0
    episode 1.0 over after 3
    > forget 1.0
    > reset lanes: 1.1, seeded
    episode 1.1 started by reset
    observed at 3: 0.1 1.1
    > predict 0.1 1.1
    received 1 for 0.1 1.1
    > step all: 0.1 1.1
    step 3 done: 0.1 1.1
    episode 0.1 over after 2
    > forget 0.1
    observed at 4: 1.1
    > predict 1.1
    received 1 for 1.1
    > step lanes: 1.1                 # lane 0 has done its share and is left alone
    step 4 done: 1.1
    observed at 5: 1.1
    > predict 1.1
    received 1 for 1.1
    > step lanes: 1.1
    step 5 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""

DISABLED_CHUNKED = """
    observed at 0: 0.0 1.0
    > predict 0.0 1.0
    received 3 for 0.0 1.0
    > step all: 0.0 1.0
    step 0 done: 0.0 1.0
    > step all: 0.0 1.0
    step 1 done: 0.0 1.0
    episode 0.0 over after 2
    > forget 0.0
    > reset lanes: 0.1, seeded
    episode 0.1 started by reset
    observed at 2: 0.1
    > predict 0.1
    received 3 for 0.1
    > step all: 0.1 1.0
    step 2 done: 0.1 1.0
    episode 1.0 over after 3
    > forget 1.0
    > reset lanes: 1.1, seeded
    episode 1.1 started by reset
    observed at 3: 1.1
    > predict 1.1
    received 3 for 1.1
    > step all: 0.1 1.1
    step 3 done: 0.1 1.1
    episode 0.1 over after 2
    > forget 0.1
    > step lanes: 1.1
    step 4 done: 1.1
    > step lanes: 1.1
    step 5 done: 1.1
    episode 1.1 over after 3
    > forget 1.1
"""


def _lines(text: str) -> list[str]:
    return [line.split("#")[0].strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    ("mode", "horizon", "expected"),
    [
        ("NEXT_STEP", 1, NEXT_STEP),
        ("NEXT_STEP", 3, NEXT_STEP_CHUNKED),
        ("SAME_STEP", 1, SAME_STEP),
        ("SAME_STEP", 3, SAME_STEP_CHUNKED),
        ("DISABLED", 1, DISABLED),
        ("DISABLED", 3, DISABLED_CHUNKED),
    ],
)
def test_trace(socket_dir: Path, mode: str, horizon: int, expected: str) -> None:
    trace = Trace()
    envs = (
        [CountingEnv(2), CountingEnv(3, base=100.0)]
        if mode == "DISABLED"
        else counting_vector(2, AutoresetMode[mode])
    )
    spec = RuntimeSessionSpec(max_episodes=4, base_seed=1, execution_horizon=horizon)
    with (
        env_server(socket_dir, envs) as env_address,
        model_server(socket_dir, SteadyModel(chunk=4)) as model_address,
        EnvSession.open(env_address) as env,
        ModelSession.open(model_address) as model,
    ):
        RuntimeDriver(spec, TapEnv(env, trace), TapModel(model, trace), TraceHooks(trace)).run()
    head = HEAD.format(mode=mode, horizon=horizon)
    assert trace.lines == _lines(head) + _lines(expected) + _lines(TAIL)
