"""gRPC channels as this package needs them: options and credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from rlmesh_gym._version import __version__

if TYPE_CHECKING:
    from rlmesh_gym.rpc.address import Address
    from rlmesh_gym.rpc.config import TLSConfig


ChannelOptions = list[tuple[str, "int | str"]]

# gRPC's flow-control windows start at 64 KiB and grow by probing; image batches want them wide.
_WINDOW_BYTES = 16 * 1024 * 1024
_MAX_FRAME_BYTES = 4 * 1024 * 1024
MESSAGE_OPTIONS: ChannelOptions = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.http2.max_frame_size", _MAX_FRAME_BYTES),
]


def open_channel(address: Address, tls: TLSConfig | None = None) -> grpc.Channel:
    """Return a channel. Nothing is sent until the first call on it."""
    options: ChannelOptions = [
        *MESSAGE_OPTIONS,
        # Channels with equal options share one connection by default: then one peer's GOAWAY, or
        # the back-off after one failed attempt, would hit sessions that have nothing to do with it.
        ("grpc.use_local_subchannel_pool", 1),
        # A step is sent at most once.
        ("grpc.enable_retries", 0),
        # A vanished host is noticed while a request waits; a busy or a stopped process is not one.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.primary_user_agent", f"rlmesh-gym/{__version__}"),
    ]
    if address.is_loopback:
        options.append(("grpc.enable_http_proxy", 0))
    if address.kind == "unix":
        # By default the escaped path is the authority, which other HTTP/2 stacks refuse.
        options.append(("grpc.default_authority", "localhost"))
    if tls is None:
        return grpc.insecure_channel(address.target, options=options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.read("root_certificates"),
        private_key=tls.read("private_key"),
        certificate_chain=tls.read("certificate_chain"),
    )
    return grpc.secure_channel(address.target, credentials, options=options)
