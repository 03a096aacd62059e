"""A broker on a memory disk with its administration handlers, called with frames and without sockets."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config
from latermq.errors import LaterMQError
from latermq.message.ids import pack_host
from latermq.message.properties import encode_properties
from latermq.model.topic import Topic
from latermq.protocol.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    read_heartbeat,
)
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.server.broker.composition import admin_requests
from latermq.server.handlers.async_replies import WhenDone, Work
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.request_tables import table_of
from tests.support.stores import SMALL

HOST = pack_host("127.0.0.1", 4711)
ADDRESS = "127.0.0.1:10911"


class FakeConnection:
    """Records the frames sent on it. The test answers its calls."""

    def __init__(self, peer_name: str = "127.0.0.1:5555") -> None:
        self.peer_name = peer_name
        self.peer_host = HOST
        self.is_closing = self.is_paused = False
        self.sent: list[Command] = []
        self.calls: list[tuple[int, dict[str, str], bytes, asyncio.Future[Command]]] = []

    def send(self, frame: bytes) -> None:
        self.sent += FrameReader().feed(frame)

    def refuse(self, command: Command, error: LaterMQError) -> bytes:
        return encode_response(command, error.code, remark=error.remark)

    def disconnect(self, reason: str) -> None:
        self.is_closing = True

    def call(
        self, code: int, *, fields: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
    ) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.calls.append((code, dict(fields or {}), body, future))
        return future


class Scene:
    """One broker. Work for a background thread runs at once or, if `defers_work` is set, is kept in `deferred`."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: Any) -> None:
        self.disk = disk or MemoryDisk()
        self.clock = SimulatedClock()
        config = Config(broker=BrokerConfig(**settings), store=SMALL)
        self.broker = Broker(config, self.disk, self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32)
        self.defers_work = False
        self.deferred: list[tuple[list[Work], WhenDone]] = []
        self.announcements: list[Callable[[], None]] = []
        sliced = SlicedRequests(self.broker.config.timer.max_lookup)
        self.service = admin_requests(
            self.broker,
            address=ADDRESS,
            program_version="1.2.3",
            run_off_loop=self._run_off_loop,
            announce=lambda on_announced: (
                self.announcements.append(on_announced) if self.defers_work else on_announced()
            ),
            sliced=sliced,
        )
        self.table = table_of(self.service, sliced=sliced)

    def _run_off_loop(self, works: list[Work], when_done: WhenDone) -> None:
        self.deferred.append((works, when_done))
        if not self.defers_work:
            self.run_deferred()

    def run_deferred(self) -> None:
        """Run the background work that was kept."""
        while self.deferred:
            works, when_done = self.deferred.pop(0)
            try:
                for work in works:
                    work()
            except LaterMQError as error:
                when_done(error)
            else:
                when_done(None)

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        """Return the response to a request, which must be immediate. An error is raised."""
        connection = self.begin(code, fields, body)
        [answer] = connection.sent
        return answer

    def begin(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> FakeConnection:
        """Start a request. Return the connection that receives the response, now or later."""
        texts = {name: str(value) for name, value in (fields or {}).items()}
        [command] = FrameReader().feed(encode_frame(code, 7, fields=texts, body=body))
        connection = FakeConnection()
        reply = self.table.serve(cast(Connection, connection), command)
        if reply is not None:
            connection.send(reply)
        assert all(answer.opaque == 7 for answer in connection.sent)
        return connection

    def make_topic(self, topic: str, queues: int = 2) -> None:
        self.broker.topics.put(Topic(name=topic, read_queues=queues, write_queues=queues))

    def send(self, topic: str, body: bytes = b"body", *, queue_id: int = 0, **properties: str) -> str:
        """Store a message and return its offset id."""
        encoded = encode_properties(properties)
        return self.broker.writer.send(topic, queue_id, body, encoded, self.clock.now_ms(), HOST)[0]

    def connect(
        self, client_id: str, *, consumer: str = "", producer: str = "", topic: str = "orders", language: str = "JAVA"
    ) -> FakeConnection:
        """Send a client's heartbeat."""
        beat = HeartbeatData(clientID=client_id)
        if consumer:
            self.broker.groups.require(consumer)
            data = ConsumerData(groupName=consumer, subscriptionDataSet=[SubscriptionData(topic=topic, subVersion=1)])
            beat.consumerDataSet.append(data)
        if producer:
            beat.producerDataSet.append(ProducerData(groupName=producer))
        connection = FakeConnection(f"127.0.0.1:{6000 + len(client_id)}")
        self.broker.members.heartbeat(
            connection, read_heartbeat(beat), language=language, version=513, clock=self.clock
        )
        return connection

    def restart(self) -> "Scene":
        """Return a broker on the disk as it would be after a crash of the process now."""
        disk = self.disk.after_process_crash()
        return Scene(disk)
