"""The wire's transport: sessions for clients, a host for servers. The only code that uses gRPC."""

from __future__ import annotations

from rlmesh_gym.rpc.address import Address, parse_address, parse_bind_address
from rlmesh_gym.rpc.client.env_session import EnvSession
from rlmesh_gym.rpc.client.model_session import HistoryRows, ModelSession
from rlmesh_gym.rpc.client.pending import Pending
from rlmesh_gym.rpc.client.stream import MAX_OUTSTANDING
from rlmesh_gym.rpc.config import Timeouts, TimeoutsLike, TLSConfig, TLSLike, resolve_token
from rlmesh_gym.rpc.handshake import (
    ARRAYS,
    CONCURRENT_PREDICT,
    EDITION,
    FINAL_OBS,
    OBSERVATION_HISTORY,
    PARTIAL_RESET,
    PROTOCOL_GENERATION,
    SPACES,
    SUBSET_STEP,
    answer_handshake,
    peer_info,
)
from rlmesh_gym.rpc.host.callbacks import (
    EnvServiceCallbacks,
    JoinPeer,
    ModelServiceCallbacks,
    Refused,
)
from rlmesh_gym.rpc.host.serving import GrpcHost
from rlmesh_gym.rpc.host.silence import Patience
from rlmesh_gym.rpc.in_process import LOCAL, AnyPending, InProcessPending, InProcessSession
from rlmesh_gym.rpc.large_answers import LARGE_BYTES, assemble

__all__ = [
    "ARRAYS",
    "CONCURRENT_PREDICT",
    "EDITION",
    "FINAL_OBS",
    "LARGE_BYTES",
    "LOCAL",
    "MAX_OUTSTANDING",
    "OBSERVATION_HISTORY",
    "PARTIAL_RESET",
    "PROTOCOL_GENERATION",
    "SPACES",
    "SUBSET_STEP",
    "Address",
    "AnyPending",
    "EnvServiceCallbacks",
    "EnvSession",
    "GrpcHost",
    "HistoryRows",
    "InProcessPending",
    "InProcessSession",
    "JoinPeer",
    "ModelServiceCallbacks",
    "ModelSession",
    "Patience",
    "Pending",
    "Refused",
    "TLSConfig",
    "TLSLike",
    "Timeouts",
    "TimeoutsLike",
    "answer_handshake",
    "assemble",
    "parse_address",
    "parse_bind_address",
    "peer_info",
    "resolve_token",
]
