"""Limits and times of a gRPC listener. Those of the HTTP/2 protocol are in `protocol/http2/limits.py`."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from latermq.protocol.http2.limits import Limits

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The limits of a listener and of each of its connections, with their defaults."""

    http2: Limits = field(default_factory=Limits)
    max_connections: int = 10_000
    max_connections_per_address: int = 0  # 0: no limit of its own
    # Load balancers whose connections begin with a header of the PROXY protocol. No other client may state an address.
    balancers: tuple[IPv4Network | IPv6Network, ...] = ()
    # Requests, unsent answers and open calls of all connections together. Above it, the largest holders are cut off.
    max_held_bytes: int = 256 * MIB
    # One gRPC message, after decompression. RocketMQ's largest body is 4 MiB.
    max_message_bytes: int = 8 * MIB
    # A streaming call may have this much unsent before `Call.is_writable` becomes false.
    stream_buffer_bytes: int = 256 * 1024
    # The socket's buffer, above which data waits in the streams.
    write_buffer_bytes: int = 256 * 1024
    greeting_timeout_s: float = 10.0  # for the TLS handshake, the preface and SETTINGS
    request_timeout_s: float = 60.0  # for a request with one message to arrive completely
    stall_timeout_s: float = 60.0  # a peer that has unsent data and reads none of it
    idle_timeout_s: float = 120.0  # without calls
    linger_s: float = 1.0  # for the peer to read the last frames and to close
