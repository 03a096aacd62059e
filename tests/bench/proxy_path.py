"""CPU time of sends, receives and acknowledgements in the proxy without sockets, with frames like those of grpc-go.

A broker without sockets answers the proxy's requests; its own CPU time is a separate figure.
"""

import asyncio
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, cast

import uvloop
from hpack import Encoder

from latermq.client.session.connection import Connection as BrokerConnection
from latermq.clock import SystemClock
from latermq.config import Config
from latermq.protocol.http2.frames import (
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_WINDOW_BYTES,
    PREFACE,
    SETTINGS_ACK,
    frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.grpc.messages import PREFIX_BYTES, message_prefix
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from latermq.server.collector import tune_garbage_collector
from latermq.server.http2.connection import Http2Connection
from latermq.server.http2.listener import Http2Listener, grpc_handler
from latermq.server.proxy.calls.call_table import SERVICE
from latermq.server.proxy.composition import ProxyParts
from latermq.server.proxy.process import transport_limits
from tests.bench.path import QUEUES, TOPIC, SocketlessBroker, StubTransport

GROUP = "bench-proxy-path-group"
BROKER = "broker-a"
CLIENT_ID = b"host@1234@0@abcdefgh"
BATCH = 32
CALLS_PER_READ = 8  # in one read of a busy connection
_READ_WRITE = 6
_WARM_PART = 10
_BROKER_ADDRESS = "127.0.0.1:10911"
_MAX_TURNS = 100  # of the event loop, for the answer to a request

Figures = dict[str, float]


class RecordingTransport(StubTransport):
    """Keeps what was written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[bytes] = []

    def write(self, data: Any) -> None:
        self._written.append(data)

    def abort(self) -> None:
        raise AssertionError("the connection was closed")

    close = abort

    def take(self) -> bytes:
        data = b"".join(self._written)
        self._written.clear()
        return data


class _NameServer:
    """Answers look-ups in the place of `Routes`."""

    async def call_name_server(self, code: int, *_: object) -> bytes:
        data = BrokerData(cluster="bench", brokerName=BROKER, brokerAddrs={0: _BROKER_ADDRESS})
        return encode_body(ClusterInfo(brokerAddrTable={BROKER: data}, clusterAddrTable={"bench": [BROKER]}))

    async def lookup(self, topic: str) -> TopicRoute:
        data = BrokerData(cluster="bench", brokerName=BROKER, brokerAddrs={0: _BROKER_ADDRESS})
        queues = QueueData(brokerName=BROKER, readQueueNums=QUEUES, writeQueueNums=QUEUES, perm=_READ_WRITE)
        return TopicRoute(brokerDatas=[data], queueDatas=[queues])

    async def close(self) -> None:
        pass


class SocketlessProxy:
    """A proxy with one connection of a client and one to a broker. `spent_ns` is CPU time since the last `reset`."""

    def __init__(self, folder: Path, body_bytes: int) -> None:
        self._replies = RecordingTransport()
        self._broker = SocketlessBroker(folder, body_bytes, transport=self._replies)
        config, clock = Config(), SystemClock()
        self._parts = ProxyParts(config, "127.0.0.1:9876", clock)
        link = self._parts.link
        self._requests = RecordingTransport()
        self._link = BrokerConnection(_BROKER_ADDRESS, lambda connection, command: None, lambda connection: None)
        self._link.connection_made(self._requests)
        cast(Any, link).name_servers = _NameServer()
        cast(Any, link.connections).open = self._open
        self._listener = Http2Listener(
            grpc_handler(self._parts.table.methods), transport_limits(config.proxy), clock, None
        )
        self.answers = RecordingTransport()
        self._client = Http2Connection(self._listener, grpc_handler(self._parts.table.methods))
        self._client.connection_made(self.answers)
        self._encoder = Encoder()
        self._encoder.header_table_size = 0  # as clients do after the proxy's settings
        self._stream_ids = count(1, 2)
        self._numbers = count(1)
        self._body = b"x" * body_bytes
        self.proxy_ns = self.broker_ns = 0

    async def _open(self, address: str, deadline_s: float | None = None) -> BrokerConnection:
        return self._link

    async def start(self) -> None:
        """Connect the parts with each other, and create the topic and the group."""
        settings = settings_frame({INITIAL_WINDOW_SIZE: MAX_WINDOW_BYTES})
        window = window_update(0, MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self._client.data_received(PREFACE + settings + SETTINGS_ACK + window)
        self._broker.connection.data_received(self._broker.send_frames(1))  # creates the topic
        self._replies.take()
        await self._parts.start(1.0)
        await self.call(self.send_frames(1), 1)

    async def close(self) -> None:
        await self._parts.close()
        self._broker.close()

    def reset(self) -> None:
        self._broker.upkeep()
        self.proxy_ns = self.broker_ns = 0

    async def call(self, frames: bytes, calls: int) -> bytes:
        """Pass the frames of some calls to the proxy, and return its answers when the calls have ended."""
        started_ns = time.thread_time_ns()
        wanted = self._client.http2.finished_calls + calls
        self._client.data_received(frames)
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
            requests = self._requests.take()
            if requests:
                asked_ns = time.thread_time_ns()
                self._broker.connection.data_received(requests)
                reply = self._replies.take()
                answered_ns = time.thread_time_ns()
                self.broker_ns += answered_ns - asked_ns
                started_ns += answered_ns - asked_ns
                if reply:
                    self._link.data_received(reply)
            elif self._client.http2.finished_calls == wanted:
                break
        await asyncio.sleep(0)
        self.proxy_ns += time.thread_time_ns() - started_ns
        assert self._client.http2.finished_calls == wanted, "a call was not answered"
        return self.answers.take()

    # Frames of calls

    def send_frames(self, calls: int) -> bytes:
        return self._frames("SendMessage", [self._send_request() for _ in range(calls)])

    def receive_frames(self) -> bytes:
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=GROUP),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=TOPIC), id=-1, broker=pb.Broker(name=BROKER)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=BATCH,
        )
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(5)
        return self._frames("ReceiveMessage", [request])

    def ack_frames(self, messages: Iterable[pb.Message]) -> bytes:
        """One call per message."""
        return self._frames(
            "AckMessage",
            [
                pb.AckMessageRequest(
                    group=pb.Resource(name=GROUP),
                    topic=pb.Resource(name=TOPIC),
                    entries=[
                        pb.AckMessageEntry(
                            message_id=message.system_properties.message_id,
                            receipt_handle=message.system_properties.receipt_handle,
                        )
                    ],
                )
                for message in messages
            ],
        )

    def _send_request(self) -> pb.SendMessageRequest:
        number = next(self._numbers)
        system = pb.SystemProperties(
            message_id=f"0156F7E71C361B21BC04BDA{number:011X}",
            body_encoding=pb.IDENTITY,
            body_digest=pb.Digest(type=pb.CRC32, checksum="3BBAC0C8"),
            message_type=pb.NORMAL,
            born_host="host",
        )
        system.born_timestamp.FromMilliseconds(1_800_000_000_000 + number)
        message = pb.Message(topic=pb.Resource(name=TOPIC), system_properties=system, body=self._body)
        return pb.SendMessageRequest(messages=[message])

    def _frames(self, method: str, requests: list[Any]) -> bytes:
        frames = []
        for request in requests:
            stream_id = next(self._stream_ids)
            fields = (
                (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/{SERVICE}/{method}".encode()),
                (b":authority", b"127.0.0.1:8081"), (b"content-type", b"application/grpc"),
                (b"user-agent", b"grpc-go/1.75.0"), (b"te", b"trailers"), (b"grpc-timeout", b"2999876u"),
                (b"x-mq-language", b"GO"), (b"x-mq-protocol", b"v2"), (b"x-mq-client-version", b"5.1.4"),
                (b"x-mq-request-id", b"%032x" % stream_id), (b"x-mq-client-id", CLIENT_ID),
                (b"x-mq-date-time", b"20261116T233000Z"), (b"x-mq-namespace", b""),
            )  # fmt: skip
            frames.append(frame(HEADERS, END_HEADERS, stream_id, self._encoder.encode(fields)))
            data = request.SerializeToString()
            frames.append(frame(DATA, END_STREAM, stream_id, message_prefix(data) + data))
        return b"".join(frames)


def messages_of(answers: bytes) -> list[pb.Message]:
    """The messages in the frames of one receive."""
    data = b""
    at = 0
    while at < len(answers):
        stop = at + HEAD_BYTES + int.from_bytes(answers[at : at + 3], "big")
        if answers[at + 3] == DATA:
            data += answers[at + HEAD_BYTES : stop]
        at = stop
    messages = []
    at = 0
    while at < len(data):
        stop = at + PREFIX_BYTES + int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
        response = pb.ReceiveMessageResponse.FromString(data[at + PREFIX_BYTES : stop])
        if response.HasField("message"):
            messages.append(response.message)
        at = stop
    return messages


async def _measure(folder: Path, messages: int, body_bytes: int) -> Figures:
    proxy = SocketlessProxy(folder, body_bytes)
    await proxy.start()
    tune_garbage_collector()
    sent = 0
    for part in (messages // _WARM_PART, messages):
        proxy.reset()
        for _ in range(0, part, CALLS_PER_READ):
            await proxy.call(proxy.send_frames(CALLS_PER_READ), CALLS_PER_READ)
            sent += CALLS_PER_READ
    figures = {
        "send, proxy (µs/message)": proxy.proxy_ns / 1000 / messages,
        "send, broker (µs/message)": proxy.broker_ns / 1000 / messages,
    }
    spent = {"receive": [0, 0], "ack": [0, 0]}
    receives = sent // BATCH
    for number in range(receives):
        proxy.reset()
        received = messages_of(await proxy.call(proxy.receive_frames(), 1))
        assert len(received) == BATCH, f"{len(received)} messages were received"
        is_measured = number >= receives // _WARM_PART
        _count(spent["receive"], proxy, is_measured)
        proxy.reset()
        for at in range(0, BATCH, CALLS_PER_READ):
            await proxy.call(proxy.ack_frames(received[at : at + CALLS_PER_READ]), CALLS_PER_READ)
        _count(spent["ack"], proxy, is_measured)
    measured = receives - receives // _WARM_PART
    for name, (proxy_ns, broker_ns) in spent.items():
        for part_name, spent_ns in (("proxy", proxy_ns), ("broker", broker_ns)):
            figures[f"{name}, {part_name} (µs/message)"] = spent_ns / 1000 / measured / BATCH
    await proxy.close()
    return figures


def _count(spent: list[int], proxy: SocketlessProxy, is_measured: bool) -> None:
    if is_measured:
        spent[0] += proxy.proxy_ns
        spent[1] += proxy.broker_ns


def measure_proxy_path(folder: Path, messages: int, body_bytes: int) -> Figures:
    """All figures of one repeat, on a new store."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(folder, messages, body_bytes))
