"""Tools for testing what is built on this package.

Servers in the test's own process, the rules of the protocol as checks for any endpoint, and
endpoints that fail on purpose::

    from rlmesh_gym.testing import check_env_endpoint, serving

    with serving(lambda: MyEnv()) as address:
        check_env_endpoint(address)
"""

from __future__ import annotations

from rlmesh_gym.testing.env_rules import ENV_RULES, check_env_endpoint, env_rule_results
from rlmesh_gym.testing.faulty import Fault, FaultyEndpoint
from rlmesh_gym.testing.model_rules import MODEL_RULES, check_model_endpoint, model_rule_results
from rlmesh_gym.testing.rules import BrokenRuleError, RuleResult
from rlmesh_gym.testing.serving import serving, serving_model
from rlmesh_gym.testing.suites import EnvEndpointRules, ModelEndpointRules

__all__ = [
    "ENV_RULES",
    "MODEL_RULES",
    "BrokenRuleError",
    "EnvEndpointRules",
    "Fault",
    "FaultyEndpoint",
    "ModelEndpointRules",
    "RuleResult",
    "check_env_endpoint",
    "check_model_endpoint",
    "env_rule_results",
    "model_rule_results",
    "serving",
    "serving_model",
]
