"""A client of the 5.x protocol for tests: grpcio with the generated messages, without an official client's logic."""

import contextlib
import queue
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from latermq.access.signatures import grpc_header
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.proxy.calls.call_table import SERVICE

TIMEOUT_S = 20.0
M = TypeVar("M", bound=Message)


class GrpcClient:
    """One client id on one channel."""

    def __init__(self, channel: grpc.Channel, address: str, client_id: str | None = "test-client") -> None:
        self.channel = channel
        self.client_id = client_id
        self.user, self.secret = "", ""  # that it signs as
        host, _, port = address.rpartition(":")
        self.endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])

    def metadata(self) -> list[tuple[str, str]]:
        fields = [("x-mq-client-id", self.client_id)] if self.client_id is not None else []
        if self.user:
            date_time = time.strftime("%Y%m%dT%H%M%SZ")
            fields += [("authorization", grpc_header(self.user, self.secret, date_time)), ("x-mq-date-time", date_time)]
        return fields

    def call(self, method: str, request: Message, reply: type[M], timeout_s: float = TIMEOUT_S) -> M:
        """Make a unary call."""
        invoke = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        answer: M = invoke(request, timeout=timeout_s, metadata=self.metadata())
        return answer

    def stream(self, method: str, request: Message, reply: type[M], timeout_s: float = TIMEOUT_S) -> Iterator[M]:
        """Make a call with several answers."""
        invoke = self.channel.unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        answers: Iterator[M] = invoke(request, timeout=timeout_s, metadata=self.metadata())
        return answers

    def telemetry(self, *commands: pb.TelemetryCommand) -> "TelemetryStream":
        """Open a telemetry stream and send commands on it."""
        return TelemetryStream(self, commands)

    def route(self, topic: str, namespace: str = "") -> pb.QueryRouteResponse:
        resource = pb.Resource(name=topic, resource_namespace=namespace)
        return self.call(
            "QueryRoute", pb.QueryRouteRequest(topic=resource, endpoints=self.endpoints), pb.QueryRouteResponse
        )


class TelemetryStream:
    """A telemetry stream. `next` returns the next command of the server."""

    def __init__(self, client: GrpcClient, commands: Sequence[pb.TelemetryCommand]) -> None:
        self._outgoing: queue.SimpleQueue[pb.TelemetryCommand | None] = queue.SimpleQueue()
        for command in commands:
            self._outgoing.put(command)
        invoke = client.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        # The deadline keeps a test from waiting forever for a command that does not come.
        self.call: Any = invoke(iter(self._outgoing.get, None), metadata=client.metadata(), timeout=120.0)

    def send(self, command: pb.TelemetryCommand) -> None:
        self._outgoing.put(command)

    def next(self) -> pb.TelemetryCommand:
        command: pb.TelemetryCommand = next(self.call)
        return command

    def end(self) -> None:
        """Send no more commands."""
        self._outgoing.put(None)

    def close(self) -> None:
        self.end()
        self.call.cancel()


@contextlib.contextmanager
def grpc_client(address: str, client_id: str | None = "test-client", tls: bool = False) -> Iterator[GrpcClient]:
    """A client with a channel of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    host, _, port = address.rpartition(":")
    if tls:
        # grpcio always verifies the certificate, so it gets the server's own as an authority.
        authority = ssl.get_server_certificate((host, int(port))).encode()
        options.append(("grpc.ssl_target_name_override", "localhost"))  # type: ignore[arg-type]
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options=options)
    else:
        channel = grpc.insecure_channel(address, options=options)
    with channel:
        yield GrpcClient(channel, address, client_id)
