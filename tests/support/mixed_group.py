"""A broker without sockets and one group whose members partly pull, with frames, and partly pop."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from latermq.broker.broker import Broker
from latermq.broker.pop.acknowledgements import Place
from latermq.broker.pop.pop_request import PopRequest
from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.group.pop.operations import Outcome
from latermq.message.names import retry_topic
from latermq.message.record import Message, decode_records
from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from latermq.server.broker.composition import broker_service
from latermq.server.remoting.connection import Connection
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import HOST, FakeConnection
from tests.support.stores import SMALL

TOPIC, GROUP, QUEUES = "orders", "readers", 4
RETRY_QUEUE = retry_topic(GROUP), 0
INVISIBLE_MS = 30_000
Queue = tuple[str, int]


class MixedGroup:
    """One broker on a memory disk, and the messages that all members together have consumed."""

    def __init__(self, random_fraction: Callable[[], float] = lambda: 0.5) -> None:
        self.clock = SimulatedClock()
        self.random_fraction = random_fraction
        self.disk = MemoryDisk()
        self.sent: list[str] = []
        self.consumed: Counter[str] = Counter()
        self.pullers: list[PullMember] = []
        self._open()
        self.broker.topics.put(Topic(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES))
        self.broker.groups.require(GROUP)
        self.broker.topics.create_retry_topic(retry_topic(GROUP), 1, b"")
        self.broker.tables.save()

    def _open(self) -> None:
        self.broker = Broker(
            Config(store=SMALL), self.disk, self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32,
            random_fraction=self.random_fraction,
        )  # fmt: skip
        self._table = broker_service(self.broker).table

    def crash(self, disk: MemoryDisk | None = None) -> None:
        """Start again as after a crash. Members that pull reconnect and continue where they were."""
        self.disk = disk or self.disk.after_process_crash()
        self._open()
        for member in self.pullers:
            member.connect()

    def send(self, count: int = 1, queue_id: int = 0) -> None:
        for _ in range(count):
            body = f"m{len(self.sent)}"
            self.sent.append(body)
            self.broker.writer.send(TOPIC, queue_id, body.encode(), "", self.clock.now_ms(), HOST)

    def call(self, connection: FakeConnection, code: Request, fields: dict[str, str]) -> Command:
        [command] = FrameReader().feed(encode_frame(code, 7, fields=fields))
        reply = self._table.serve(cast(Connection, connection), command)
        assert reply is not None
        [answer] = FrameReader().feed(reply)
        return answer

    def advance(self, time_ms: int) -> None:
        """Let time pass, in steps in which members that pull do so."""
        while time_ms > 0:
            step_ms = min(time_ms, 5_000)
            time_ms -= step_ms
            self.clock.advance(step_ms)
            self.broker.pulled_queues.forget_old()
            for member in self.pullers:
                member.commit_all()
            for _ in range(20):
                if self.broker.pop_expiry.run() > 0:
                    break

    # Pops

    def pop(self, count: int = 32, queue_id: int = -1, invisible_ms: int = INVISIBLE_MS) -> list[tuple[Message, Place]]:
        popped = self.broker.pops.pop(PopRequest(GROUP, TOPIC, queue_id, count, invisible_ms))
        self.broker.pop_positions.commit()
        return [
            (message, Place(GROUP, part.queue.topic, part.queue.queue_id, message.queue_offset, popped.pop_ms))
            for part in popped.parts
            for piece in part.pieces
            for message in decode_records(piece)
        ]

    def pop_bodies(self) -> list[str]:
        return sorted(message.body.decode() for message, _ in self.pop())

    def ack(self, message: Message, place: Place) -> Outcome:
        self.consumed[message.body.decode()] += 1
        outcome = self.broker.acknowledgements.ack(place)
        self.broker.pop_positions.commit()
        return outcome

    def floor(self, queue: Queue) -> int:
        return self.broker.offsets.get(GROUP, *queue)


@dataclass
class _Held:
    """A queue as a client sees it: where it pulls next, and what it has not processed yet."""

    next_offset: int
    messages: dict[int, Message] = field(default_factory=dict)


class PullMember:
    """A 4.x client that pulls its queues, and commits the lowest offset that it has not processed."""

    def __init__(self, group: MixedGroup, client_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self.queues: dict[Queue, _Held] = {}
        group.pullers.append(self)
        self.connect()

    def connect(self) -> None:
        self.connection = FakeConnection(f"127.0.0.1:{hash(self._client_id) % 50_000}")
        topics = (TOPIC, retry_topic(GROUP))
        consumer = Consumer(
            group=GROUP,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from=None,
            subscriptions=[Subscription(topic=topic) for topic in topics],
        )
        beat = Heartbeat(client_id=self._client_id, consumers=[consumer])
        broker = self._group.broker
        broker.members.heartbeat(self.connection, beat, language="JAVA", version=513, clock=broker.client_clock)

    def own(self, *queues: Queue) -> None:
        """Take over queues from where the group is."""
        for queue in queues:
            self.queues[queue] = _Held(max(0, self._group.broker.progress.committed(GROUP, *queue)))

    def give_up(self, queue: Queue, *, commits: bool = True) -> None:
        """Leave a queue. What is not processed is dropped."""
        if commits:
            self.commit(queue)
        del self.queues[queue]

    def pull(self, queue: Queue, count: int = 32) -> list[str]:
        """Pull once, and return what was found."""
        held = self.queues[queue]
        fields = {
            "consumerGroup": GROUP, "topic": queue[0], "queueId": str(queue[1]), "queueOffset": str(held.next_offset),
            "maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        reply = self._group.call(self.connection, Request.PULL_MESSAGE, fields)
        held.next_offset = int(reply.text_fields()["nextBeginOffset"])
        found = list(decode_records(reply.body)) if reply.code == Response.SUCCESS else []
        held.messages |= {message.queue_offset: message for message in found}
        return [message.body.decode() for message in found]

    def process(self, queue: Queue, count: int = 1_000) -> None:
        """Consume messages that were pulled."""
        held = self.queues[queue].messages
        for offset in list(held)[:count]:
            self._group.consumed[held.pop(offset).body.decode()] += 1

    def commit(self, queue: Queue) -> None:
        held = self.queues[queue]
        fields = {
            "consumerGroup": GROUP, "topic": queue[0], "queueId": str(queue[1]),
            "commitOffset": str(min(held.messages, default=held.next_offset)),
        }  # fmt: skip
        assert self._group.call(self.connection, Request.UPDATE_CONSUMER_OFFSET, fields).code == Response.SUCCESS

    def commit_all(self) -> None:
        for queue in self.queues:
            self.commit(queue)

    def leave(self, *, commits: bool = True) -> None:
        """Disconnect, cleanly or as if the client had died."""
        if commits:
            self.commit_all()
        self._group.pullers.remove(self)
        self._group.broker.members.disconnected(self.connection)
