"""Minutes of chaos, in each mode, with a policy and through runs; see ``scripts/test-chaos``."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gymnasium.vector import AutoresetMode
from tqdm import tqdm

from tests.chaos.fleet import env_fleet, model_fleet
from tests.chaos.play import Tally, play_run, play_vector

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINTS = 8
STEPS = 1500
PAUSE = 0.4
"""Mean seconds between two faults."""


def vector_round(mode: AutoresetMode, *, with_model: bool) -> Callable[[Path, int, float], Tally]:
    """A part in which a loop of ours plays."""

    def play(folder: Path, seed: int, until: float) -> Tally:
        native = mode.value if seed % 2 else None
        with env_fleet(folder, ENDPOINTS, seed, PAUSE, native) as fleet:
            if not with_model:
                return play_vector(fleet, mode, steps=STEPS, until=until, seed=seed)
            with model_fleet(folder, seed, 4 * PAUSE) as models:
                return play_vector(fleet, mode, steps=STEPS, until=until, seed=seed, models=models)

    return play


def run_round(folder: Path, seed: int, until: float) -> Tally:
    """A part in which a run plays."""
    del until  # It ends with its last episode.
    seeds = list(range(1000 * seed, 1000 * seed + 1000))
    with (
        env_fleet(folder, ENDPOINTS, seed, PAUSE) as envs,
        model_fleet(folder, seed, 4 * PAUSE) as model,
    ):
        return play_run(envs, model, seeds)


PARTS = {
    **{f"{mode.name}": vector_round(mode, with_model=False) for mode in AutoresetMode},
    **{f"{mode.name}, policy": vector_round(mode, with_model=True) for mode in AutoresetMode},
    "run": run_round,
}


def main() -> int:
    """Play in turn until the time is over; print what was seen, and fail if any of it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("rlmesh_gym").setLevel(logging.ERROR)
    until = time.monotonic() + 60 * options.minutes
    tallies = {name: Tally() for name in PARTS}
    with tqdm(total=round(60 * options.minutes), unit="s", bar_format="{l_bar}{bar}|") as bar:
        for number, (name, part) in enumerate(itertools.cycle(PARTS.items())):
            if time.monotonic() >= until:
                break
            with tempfile.TemporaryDirectory(prefix="rg-") as folder:
                tallies[name].add(part(Path(folder), options.seed + number, until))
            bar.set_description(name)
            bar.update(round(60 * options.minutes - (until - time.monotonic())) - bar.n)
    total = Tally()
    print(f"{'':20}{'steps':>9}{'transitions':>13}{'episodes':>10}{'interrupted':>13}  faults")
    for name, tally in tallies.items():
        total.add(tally)
        _show(name, tally)
    _show("all", total)
    for text in total.violations[:20]:
        print(text)
    print(f"{len(total.violations)} violations")
    return 1 if total.violations else 0


def _show(name: str, tally: Tally) -> None:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.faults.items()))
    print(
        f"{name:20}{tally.steps:9}{tally.transitions:13}{tally.episodes:10}"
        f"{tally.interrupted:13}  {faults}"
    )


if __name__ == "__main__":
    sys.exit(main())
