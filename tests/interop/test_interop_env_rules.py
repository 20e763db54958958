"""The protocol's rules on endpoints of the released package: it keeps what we ask of ourselves."""

from __future__ import annotations

import pytest

from rlmesh_gym.testing import ENV_RULES, check_env_endpoint
from tests.peers import ENV_KINDS, EnvKind, env_endpoint

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", ENV_KINDS)
def test_the_released_server_keeps_the_rules(kind: EnvKind) -> None:
    with env_endpoint(kind, num_envs=3) as peer:
        assert len(check_env_endpoint(peer.address)) == len(ENV_RULES)
