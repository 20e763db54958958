"""Talking to an env endpoint in raw protocol messages, for tests of servers."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from rlmesh_gym._proto.core.v1 import handshake_pb2
from rlmesh_gym._proto.env.v1 import interaction_pb2 as pb
from rlmesh_gym._proto.env.v1 import service_pb2
from rlmesh_gym.codec import EnvContract, SpaceCodec, decode_contract, decode_meta_map
from rlmesh_gym.codec import encode_meta_map as encode_options
from rlmesh_gym.server import EnvServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Code", "RawClient", "RawJoin", "infos", "masks", "pb", "raw_client", "serving_raw"]

Code = pb.EnvErrorCode
_SECONDS = 20.0


class RawJoin:
    """One Join stream: what is sent is sent, what comes back comes back."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.outbox: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[pb.JoinResponse | None] = queue.SimpleQueue()
        self.status: Any = None
        self.details: str | None = None
        self.call = client.join(iter(self.outbox.get, None), metadata=client.metadata)
        self._ids = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for response in self.call:
                self.inbox.put(response)
        except grpc.RpcError:
            pass
        self.status = self.call.code()
        self.details = self.call.details()
        self.outbox.put(None)
        self.inbox.put(None)

    def send(self, request: pb.JoinRequest) -> str:
        if not request.request_id:
            self._ids += 1
            request.request_id = f"r{self._ids}"
        self.outbox.put(request)
        return request.request_id

    def take(self, timeout: float = _SECONDS) -> pb.JoinResponse:
        response = self.inbox.get(timeout=timeout)
        assert response is not None, f"the stream has ended: {self.status} {self.details}"
        return response

    def ask(self, request: pb.JoinRequest) -> pb.JoinResponse:
        request_id = self.send(request)
        response = self.take()
        assert response.request_id == request_id
        return response

    def take_end(self) -> grpc.StatusCode:
        """Wait for the end of the stream, with nothing before it."""
        assert self.inbox.get(timeout=_SECONDS) is None
        assert isinstance(self.status, grpc.StatusCode)
        return self.status

    # Requests

    def send_reset(self, **fields: Any) -> str:
        return self.send(self.client.reset_request(**fields))

    def reset(self, **fields: Any) -> pb.ResetResponse:
        response = self.ask(self.client.reset_request(**fields))
        assert response.WhichOneof("kind") == "reset", response
        return response.reset

    def send_step(self, actions: Sequence[Any], **fields: Any) -> str:
        return self.send(self.client.step_request(actions, **fields))

    def step(self, actions: Sequence[Any], **fields: Any) -> pb.StepResponse:
        response = self.ask(self.client.step_request(actions, **fields))
        assert response.WhichOneof("kind") == "step", response
        return response.step

    def refused(self, request: pb.JoinRequest) -> pb.EnvError:
        response = self.ask(request)
        assert response.WhichOneof("kind") == "error", response
        return response.error

    def close(self, reason: str = "test") -> list[pb.EpisodeMetadata]:
        response = self.ask(pb.JoinRequest(close=pb.CloseEnvsRequest(reason=reason)))
        return list(response.close.final_episodes)

    def half_close(self) -> None:
        self.outbox.put(None)

    def cancel(self) -> None:
        self.call.cancel()
        self.outbox.put(None)


class RawClient:
    """A channel to an env endpoint, its contract and codecs."""

    def __init__(self, address: str, token: str | None = None) -> None:
        target = address.removeprefix("tcp://")
        self.channel = grpc.insecure_channel(
            target,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.default_authority", "localhost"),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.metadata = None if token is None else (("authorization", token),)
        service = "/rlmesh.env.v1.EnvService"
        self.join = self.channel.stream_stream(
            f"{service}/Join",
            request_serializer=pb.JoinRequest.SerializeToString,
            response_deserializer=pb.JoinResponse.FromString,
        )
        self._handshake = self.channel.unary_unary(
            f"{service}/Handshake",
            request_serializer=service_pb2.HandshakeRequest.SerializeToString,
            response_deserializer=service_pb2.HandshakeResponse.FromString,
        )
        self._shutdown = self.channel.unary_unary(
            f"{service}/Shutdown",
            request_serializer=service_pb2.ShutdownRequest.SerializeToString,
            response_deserializer=service_pb2.ShutdownResponse.FromString,
        )
        self.hello = self.handshake()
        self.contract: EnvContract = decode_contract(self.hello.env_contract)
        self.capabilities = dict(self.hello.base.capabilities)
        self.actions = SpaceCodec(self.contract.single_action_space)
        self.observations = SpaceCodec(self.contract.single_observation_space)

    def handshake(self, generation: str = "rlmesh-wire-v1") -> service_pb2.HandshakeResponse:
        base = handshake_pb2.HandshakeRequest(protocol_generation=generation)
        request = service_pb2.HandshakeRequest(base=base)
        return self._handshake(
            request, metadata=self.metadata, timeout=_SECONDS, wait_for_ready=True
        )

    def shutdown(self, reason: str = "") -> handshake_pb2.ShutdownResponse:
        base = handshake_pb2.ShutdownRequest(reason=reason)
        request = service_pb2.ShutdownRequest(base=base)
        response = self._shutdown(request, metadata=self.metadata, timeout=_SECONDS)
        return response.base

    def open(self) -> RawJoin:
        return RawJoin(self)

    def reset_request(
        self,
        seeds: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        lanes: Sequence[int] = (),
        ids: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> pb.JoinRequest:
        reset = pb.ResetRequest(
            seeds=seeds, env_indices=lanes, episode_ids=ids, timeout_ms=timeout_ms
        )
        if options is not None:
            reset.options.CopyFrom(encode_options(options))
        return pb.JoinRequest(reset=reset)

    def step_request(
        self,
        actions: Sequence[Any],
        lanes: Sequence[int] = (),
        ids: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> pb.JoinRequest:
        value = self.actions.encode(self.actions.flatten_rows(actions), len(actions))
        return pb.JoinRequest(
            step=pb.StepRequest(
                action=value, env_indices=lanes, episode_ids=ids, timeout_ms=timeout_ms
            )
        )

    def rows(self, message: pb.ResetResponse | pb.StepResponse, num_rows: int) -> list[Any]:
        """Return the observations of a reply as samples."""
        leaves = self.observations.decode(message.observation, num_rows)
        return [self.observations.unflatten_row(leaves, row) for row in range(num_rows)]

    def numbers(self, message: pb.ResetResponse | pb.StepResponse) -> list[float]:
        """Return the observations of a reply, each one number."""
        data = message.observation.leaves[0]
        dtype = self.contract.single_observation_space.dtype
        return np.frombuffer(data, dtype=dtype).astype(float).tolist()  # type: ignore[no-any-return]


def infos(message: pb.ResetResponse | pb.StepResponse) -> dict[str, Any]:
    return decode_meta_map(message.infos)


def masks(message: pb.StepResponse) -> tuple[list[bool], list[bool]]:
    return [flag != 0 for flag in message.terminated_mask], [
        flag != 0 for flag in message.truncated_mask
    ]


@contextmanager
def raw_client(address: str, token: str | None = None) -> Iterator[RawClient]:
    client = RawClient(address, token)
    try:
        yield client
    finally:
        client.channel.close()


@contextmanager
def serving_raw(env: Any, address: str | None = None, **options: Any) -> Iterator[RawClient]:
    """Serve ``env`` in this process and connect to it."""
    with EnvServer(env, address, **options) as server, raw_client(server.address) as client:
        yield client
