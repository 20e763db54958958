"""Who speaks, and which protocol: what both ends say before anything else."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import google.protobuf
import grpc
import gymnasium
import numpy as np

from rlmesh_gym._proto.core.v1 import handshake_pb2
from rlmesh_gym._version import __version__
from rlmesh_gym.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable


PROTOCOL_GENERATION = "rlmesh-wire-v1"
EDITION = "2026.06"

SUBSET_STEP = "subset_step"
"""An env endpoint steps and resets the lanes that a request names."""
PARTIAL_RESET = "rlmesh_gym.partial_reset"
"""An env endpoint resets the lanes that a request names."""
FINAL_OBS = "rlmesh_gym.final_obs"
"""An env endpoint sends terminal observations under SAME_STEP as one-row values."""
ARRAYS = "rlmesh_gym.arrays"
"""Arrays, numpy scalars, tuples and sets in infos and reset options stay what they are, between an
env endpoint and its client; see :mod:`rlmesh_gym.codec.typed_values`."""
SPACES = "rlmesh_gym.spaces"
"""Discrete and MultiDiscrete keep their dtype and start, between an endpoint and its client; see
:mod:`rlmesh_gym.codec.spaces.space_encoding`."""
CLIENT_CAPABILITIES_KEY = "rlmesh-gym-capabilities"
"""Request metadata of a Join: what of ours the client uses, separated by commas. A Join has no
handshake of its own, and a server may have clients of several kinds."""
OBSERVATION_HISTORY = "rlmesh.model.observation_history.v1"
"""A model endpoint takes the observations of replayed steps."""
CONCURRENT_PREDICT = "rlmesh.model.concurrent_predict.v1"
"""A model endpoint takes further requests while one is in work."""


def peer_info(component: str) -> handshake_pb2.PeerInfo:
    """Return what this process says about itself; ``component`` is its role, such as ``env``."""
    return handshake_pb2.PeerInfo(
        component=component,
        package_version=__version__,
        language="python",
        language_version=platform.python_version(),
        os=platform.system().lower(),
        os_version=platform.release(),
        arch=platform.machine(),
        framework_versions={
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
            "grpcio": grpc.__version__,
            "protobuf": google.protobuf.__version__,
        },
        extra={"package": "rlmesh-gym"},
    )


def _introduction(component: str, capabilities: Iterable[str]) -> dict[str, Any]:
    return {
        "peer_info": peer_info(component),
        "capabilities": dict.fromkeys(capabilities, "true"),
        "supported_workflow_editions": [EDITION],
        "preferred_workflow_edition": EDITION,
    }


def handshake_request(
    component: str, capabilities: Iterable[str] = ()
) -> handshake_pb2.HandshakeRequest:
    """Return a client's first words."""
    return handshake_pb2.HandshakeRequest(
        protocol_generation=PROTOCOL_GENERATION, **_introduction(component, capabilities)
    )


def answer_handshake(
    request: handshake_pb2.HandshakeRequest,
    component: str,
    capabilities: Iterable[str] = (),
) -> handshake_pb2.HandshakeResponse:
    """Return a server's answer to the ``base`` of a client's message.

    Only the protocol generation decides; editions are stated, never required.
    """
    response = handshake_pb2.HandshakeResponse(
        compatible=request.protocol_generation == PROTOCOL_GENERATION,
        **_introduction(component, capabilities),
    )
    if not response.compatible:
        response.error_message = (
            f"protocol generation {request.protocol_generation!r} does not fit this server, "
            f"which speaks {PROTOCOL_GENERATION!r}"
        )
    return response


def check_handshake(response: handshake_pb2.HandshakeResponse, endpoint: str) -> None:
    """Check that a server's answer says that it fits, and shares an edition with us."""
    if not response.compatible:
        problem = (
            f"the endpoint does not accept clients of {PROTOCOL_GENERATION}: "
            f"{response.error_message or 'it gave no reason'}"
        )
    elif EDITION not in response.supported_workflow_editions:
        problem = (
            f"no workflow edition in common: this client speaks {EDITION}, the endpoint offers "
            f"{', '.join(response.supported_workflow_editions) or 'none'}; use releases of both "
            "that share one"
        )
    else:
        return
    raise ProtocolError(problem, endpoint=endpoint, operation="handshake")
