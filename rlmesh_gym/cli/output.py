"""What a command writes on standard output, peers' text in it included."""

from __future__ import annotations

from rlmesh_gym.printable import printable


def show(text: str, *, flush: bool = False) -> None:
    """Print, with nothing in it that a terminal would act on."""
    print(printable(text), flush=flush)
