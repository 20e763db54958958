"""Play episodes with the released package: ``Model.run``, or a session with a served model.

Started by ``tests.peers.run_model`` and ``tests.peers.model_episodes``. It prints one line of JSON:
the episodes' results and every step's action and reward.
"""

from __future__ import annotations

import sys
from typing import Any

import rlmesh
import rlmesh.numpy

from tests.peer_scripts.exchange import dumps, loads
from tests.peer_scripts.models import MODELS


def native(plan: dict[str, Any]) -> dict[str, Any]:
    """Run a local model on an env endpoint with the package's own loop."""
    steps: list[Any] = []

    class Hooks(rlmesh.RunHooks):
        def on_step(self, event: Any) -> None:
            steps.append({"action": event.action, "reward": event.reward})

    result = MODELS[plan["model"]]().run(plan["env_address"], hooks=Hooks(), **plan["options"])
    episodes = [
        {
            "seed": episode.seed,
            "steps": episode.steps,
            "reward": episode.reward,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "success": episode.success,
        }
        for episode in result.episodes
    ]
    return {"episodes": episodes, "steps": steps}


def served(plan: dict[str, Any]) -> dict[str, Any]:
    """Play an env endpoint with a model endpoint through the package's session."""
    env = rlmesh.numpy.RemoteEnv(plan["env_address"])
    model = rlmesh.numpy.RemoteModel(plan["model_address"])
    episodes = []
    with model.session(env, **plan["options"]) as session:
        for seed in plan["seeds"]:
            observation, _ = session.reset(seed=seed)
            steps: list[Any] = []
            while True:
                action = session.predict(observation)
                observation, reward, terminated, truncated, _ = session.step(action)
                steps.append({"action": action, "reward": reward, "observation": observation})
                if terminated or truncated or len(steps) >= plan["max_steps"]:
                    break
            episodes.append(
                {"seed": seed, "steps": steps, "terminated": terminated, "truncated": truncated}
            )
    env.close()
    return {"episodes": episodes}


def main() -> None:
    """Play the plan in the first argument."""
    plan = loads(sys.argv[1])
    answer = served(plan) if "model_address" in plan else native(plan)
    print(f"RESULT {dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
