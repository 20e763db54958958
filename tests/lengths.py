"""How long tests play that compare two things step by step: a part in CI, all of it on request.

A fault in a conversion shows within a few episodes, and these last two to five steps. What only
shows later is looked for by ``scripts/test-thorough``, which takes longer than CI has.
"""

from __future__ import annotations

import os

IS_THOROUGH = bool(os.environ.get("RLMESH_GYM_TEST_THOROUGH"))
_PART = 4
_SHORTEST = 15


def shortened(count: int) -> int:
    """Return how many of ``count`` steps, or examples, are played here."""
    return count if IS_THOROUGH else min(count, max(_SHORTEST, count // _PART))
