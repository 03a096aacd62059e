"""Many clients of a proxy, each with a connection and a telemetry stream, which they open again when it is lost.

They speak frames without a gRPC library, because ten thousand of its channels need more than the proxy itself.
"""

import asyncio
import contextlib
import ssl
import struct
import time

from latermq.protocol.http2.frames import DATA, HEADERS, PREFACE, SETTINGS, SETTINGS_ACK, frame, settings_frame
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.proxy.calls.call_table import SERVICE

_END_HEADERS, _ACK = 4, 1


def consumer_settings(topic: str, group: str) -> pb.Settings:
    """The settings of a push consumer of one topic."""
    subscription = pb.Subscription(
        group=pb.Resource(name=group), subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name=topic))]
    )
    return pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)


class TelemetryCrowd:
    """The clients, and how many of them have a stream whose settings were answered."""

    def __init__(self, host: str, port: int, *, retry_s: float = 1.0, tls: bool = False) -> None:
        self.host = host
        self.port = port
        self.retry_s = retry_s
        self.context: ssl.SSLContext | None = None
        if tls:
            self.context = ssl._create_unverified_context(ssl.PROTOCOL_TLS_CLIENT)
            self.context.set_alpn_protocols(["h2"])
        self.answered_s: dict[str, float] = {}  # client id → when its current stream was answered
        self.refusals = 0
        self.is_ending = False
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, client_id: str, settings: pb.Settings) -> None:
        self._tasks.append(asyncio.create_task(self._live(client_id, settings)))

    async def wait_for(self, count: int, timeout_s: float) -> None:
        """Wait until so many streams were answered."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.answered_s) < count:
            assert time.monotonic() < deadline_s, f"{len(self.answered_s)} of {count} streams after {timeout_s:g} s"
            await asyncio.sleep(0.02)

    async def wait_for_the_cut(self, timeout_s: float) -> None:
        """Wait until no stream is left."""
        deadline_s = time.monotonic() + timeout_s
        while self.answered_s:
            assert time.monotonic() < deadline_s, f"{len(self.answered_s)} streams are still open"
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.is_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self, client_id: str, settings: pb.Settings) -> None:
        """Open the stream again, as soon as it ends, and after a pause if it cannot be opened."""
        loop = asyncio.get_running_loop()
        while True:
            stream = _Stream(self, client_id, settings)
            try:
                with contextlib.suppress(OSError):
                    await loop.create_connection(lambda: stream, self.host, self.port, ssl=self.context)  # noqa: B023
                    await stream.lost
                if client_id not in self.answered_s:
                    self.refusals += 1
                    await asyncio.sleep(self.retry_s)
                self.answered_s.pop(client_id, None)
            finally:
                stream.close()


class _Stream(asyncio.Protocol):
    def __init__(self, crowd: TelemetryCrowd, client_id: str, settings: pb.Settings) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd = crowd
        self._client_id = client_id
        self._settings = settings
        self._transport: asyncio.BaseTransport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{SERVICE}/Telemetry".encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"x-mq-client-id", self._client_id.encode()),
        ]
        message = pb.TelemetryCommand(settings=self._settings).SerializeToString()
        transport.write(
            PREFACE
            + settings_frame({})
            + frame(HEADERS, _END_HEADERS, 1, encode_fields(fields))
            + frame(DATA, 0, 1, b"\0" + struct.pack(">I", len(message)) + message)
        )

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            self._received = self._received[9 + size :]
            if kind == DATA:
                self._crowd.answered_s.setdefault(self._client_id, time.monotonic())
            elif kind == SETTINGS and not flags & _ACK:
                assert isinstance(self._transport, asyncio.Transport)
                self._transport.write(SETTINGS_ACK)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
