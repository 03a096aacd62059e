"""Producers of transactions, and what the broker sends to them, without sockets."""

from dataclasses import dataclass, field

from latermq.broker.broker import Broker
from latermq.broker.transactions.half_writer import StoredHalf
from latermq.group.members import Channel
from latermq.message.properties import encode_properties
from latermq.message.record import Message
from latermq.model.heartbeat import Heartbeat
from latermq.model.transaction import Decision, EndTransaction
from tests.support.brokers_in_memory import HOST

GROUP = "producers"


@dataclass(eq=False)
class FakeChannel:
    """A connection that keeps what is sent over it."""

    frames: list[bytes] = field(default_factory=list)
    peer_name: str = "127.0.0.1:1"
    is_closing: bool = False
    is_paused: bool = False

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def disconnect(self, reason: str) -> None:
        self.is_closing = True


def connect(broker: Broker, group: str = GROUP, client_id: str = "client") -> FakeChannel:
    """Connect a producer as its first heartbeat does."""
    channel = FakeChannel()
    beat = Heartbeat(client_id=client_id, producer_groups=[group], consumers=[])
    broker.members.heartbeat(channel, beat, language="JAVA", version=400, clock=broker.client_clock)
    broker.transaction_checks.note_connected([group])
    return channel


def send_half(
    broker: Broker, body: bytes, topic: str = "orders", queue_id: int = 0, key: str = "", **properties: str
) -> StoredHalf:
    known = {"UNIQ_KEY": key or body.decode(), "PGROUP": GROUP, "TRAN_MSG": "true"} | properties
    return broker.half_writer.send(topic, queue_id, body, encode_properties(known), 1_700_000_000_000, HOST)


def end(broker: Broker, half: StoredHalf, decision: Decision, group: str = GROUP) -> int:
    offset = int(half.message_id[-16:], 16)
    return broker.decisions.end(EndTransaction(group, decision, offset, half.queue_offset, "", ""))


def commit(broker: Broker, half: StoredHalf) -> int:
    return end(broker, half, Decision.COMMIT)


def roll_back(broker: Broker, half: StoredHalf) -> int:
    return end(broker, half, Decision.ROLL_BACK)


def end_by_key(broker: Broker, key: str, decision: Decision, group: str = GROUP, topic: str = "") -> int:
    return broker.decisions.end(EndTransaction(group, decision, None, None, key, topic))


def run_checks(broker: Broker) -> list[tuple[Channel, Message]]:
    """Run the checks that are due now, and return who was asked for what."""
    asked: list[tuple[Channel, Message]] = []
    while broker.transaction_checks.run(lambda channel, half: asked.append((channel, half))) == 0:
        pass
    return asked
