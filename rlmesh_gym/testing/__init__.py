"""Tools for testing what is built on this package.

Servers in the test's own process, and the rules of the protocol as checks for any endpoint::

    from rlmesh_gym.testing import check_env_endpoint, serving

    with serving(lambda: MyEnv()) as address:
        check_env_endpoint(address)
"""

from __future__ import annotations

from rlmesh_gym.testing.env_rules import ENV_RULES, check_env_endpoint
from rlmesh_gym.testing.rules import BrokenRuleError
from rlmesh_gym.testing.serving import serving, serving_model

__all__ = ["ENV_RULES", "BrokenRuleError", "check_env_endpoint", "serving", "serving_model"]
