"""A gRPC proxy that keeps the bytes of every message that passes, without knowing any schema."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Recorder", "record"]

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass
class Recorder:
    """What passed through a proxy.

    Attributes:
        address: Where the proxy listens, as ``host:port``.
        requests: ``(method, bytes)`` in order, such as ``("Join", b"...")``.
        responses: The same for the other direction.
    """

    address: str = ""
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    responses: list[tuple[str, bytes]] = field(default_factory=list)


class _Proxy(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, recorder: Recorder) -> None:
        self._channel = channel
        self._recorder = recorder

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path: Any = handler_call_details.method
        name = path.rpartition("/")[2]

        def kept(messages: Any, log: list[tuple[str, bytes]]) -> Iterator[bytes]:
            for message in messages:
                log.append((name, message))
                yield message

        def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
            self._recorder.requests.append((name, request))
            try:
                ask: Any = self._channel.unary_unary(path)
                response: bytes = ask(request)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")
            self._recorder.responses.append((name, response))
            return response

        def stream(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            # The released client waits for the headers before it sends anything.
            context.send_initial_metadata(())
            join: Any = self._channel.stream_stream(path)
            try:
                call = join(kept(requests, self._recorder.requests))
                yield from kept(call, self._recorder.responses)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")

        if name == "Join":
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


@contextlib.contextmanager
def record(address: str) -> Iterator[Recorder]:
    """Pass everything between clients of ``recorder.address`` and the server at ``address``."""
    recorder = Recorder()
    with (
        grpc.insecure_channel(address.removeprefix("tcp://"), _OPTIONS) as channel,
        ThreadPoolExecutor() as threads,
    ):
        server = grpc.server(threads, [_Proxy(channel, recorder)], options=_OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        recorder.address = f"127.0.0.1:{port}"
        server.start()
        try:
            yield recorder
        finally:
            server.stop(0).wait()
