"""``python -m rlmesh_gym`` is the command ``rlmesh-gym``."""

from __future__ import annotations

import sys

from rlmesh_gym.cli import main

if __name__ == "__main__":
    sys.exit(main())
