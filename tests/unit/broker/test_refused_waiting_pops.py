"""Pops that wait while their group or topic is deleted or closed: they get no message that a new pop would not get."""

from collections.abc import Callable

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config
from latermq.model.group import Group
from latermq.model.topic import WRITE, Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FrameReader, encode_frame
from latermq.server.broker.composition import broker_service
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.listener import Listener
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, send
from tests.support.collecting_transport import CollectingTransport
from tests.support.pop_parts import GROUP


class Scene:
    """A broker that creates no groups, and a connection with a request that waits for messages."""

    def __init__(self, code: int) -> None:
        config = Config(store=STORE, broker=BrokerConfig(auto_create_groups=False))
        clock = SimulatedClock()
        self.broker = Broker(config, MemoryDisk(), clock, host="127.0.0.1", port=10911, new_store_id="s" * 32)
        self.broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
        self.broker.groups.put(Group(name=GROUP))
        self._soon: list[Callable[[], None]] = []
        service = broker_service(self.broker, later=self._soon.append)
        self._transport = CollectingTransport(("127.0.0.1", 40_000))
        connection = Connection(service, Listener(service, config.server, clock))
        connection.connection_made(self._transport)
        fields = {
            "consumerGroup": GROUP, "topic": "orders", "queueId": "0", "maxMsgNums": "1", "invisibleTime": "60000",
            "pollTime": "20000",
        }  # fmt: skip
        connection.data_received(encode_frame(code, 1, fields=fields))
        assert self.replies() == []

    def replies(self) -> list[tuple[int, dict[str, str]]]:
        self.broker.waiting_pops.wake()
        while self._soon:
            self._soon.pop()()
        return [(reply.code, reply.text_fields()) for reply in FrameReader().feed(self._transport.written)]


def delete_group(broker: Broker) -> None:
    broker.group_admin.delete(GROUP, clean_offsets=True)


def disable_group(broker: Broker) -> None:
    broker.groups.put(Group(name=GROUP, can_consume=False))


def close_topic(broker: Broker) -> None:
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1, permissions=WRITE))


CHANGES: dict[Callable[[Broker], None], Response] = {
    delete_group: Response.SUBSCRIPTION_GROUP_NOT_EXIST,
    disable_group: Response.NO_PERMISSION,
    close_topic: Response.NO_PERMISSION,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_waiting_pop_gets_the_refusal_of_a_new_one(change: Callable[[Broker], None]) -> None:
    scene = Scene(Request.POP_MESSAGE)
    change(scene.broker)
    send(scene.broker, b"late")
    assert [code for code, _ in scene.replies()] == [CHANGES[change]]
    assert not scene.broker.in_flight.queues
    assert scene.broker.offsets.get(GROUP, "orders", 0) == -1


@pytest.mark.parametrize("change", CHANGES)
def test_a_waiting_notification_says_that_there_is_nothing(change: Callable[[Broker], None]) -> None:
    scene = Scene(Request.NOTIFICATION)
    change(scene.broker)
    send(scene.broker, b"late")
    assert [fields["hasMsg"] for _, fields in scene.replies()] == ["false"]
