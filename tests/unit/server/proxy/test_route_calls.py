"""Routes and assignments as clients get them."""

import pytest

from latermq.client.session.routes import build_route
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.routes import BrokerData, QueueData, TopicRoute
from latermq.server.proxy.brokers.topics import TopicInfo
from latermq.server.proxy.calls.route_calls import assigned_queues, message_queues

TOPIC = pb.Resource(name="t")
ENDPOINTS = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="proxy.example", port=443)])


def info(*brokers: tuple[str, int, int, int], message_type: str = "NORMAL", down: str = "") -> TopicInfo:
    """A topic with (broker, read queues, write queues, permissions) each."""
    queues = [
        QueueData(brokerName=name, readQueueNums=reads, writeQueueNums=writes, perm=perm)
        for name, reads, writes, perm in brokers
    ]
    datas = [
        BrokerData(cluster="c", brokerName=name, brokerAddrs={0: f"{name}:1"}) for name, *_ in brokers if name != down
    ]
    return TopicInfo("t", build_route("t", TopicRoute(queueDatas=queues, brokerDatas=datas)), message_type, False)


def shown(queues: list[pb.MessageQueue]) -> list[tuple[str, int, str]]:
    return [(queue.broker.name, queue.id, pb.Permission.Name(queue.permission)) for queue in queues]


def test_queues_to_read_come_before_those_to_write_and_those_for_both() -> None:
    found = message_queues(info(("b", 1, 3, 6), ("a", 2, 1, 6)), TOPIC, ENDPOINTS)
    assert shown(found) == [
        ("a", 1, "READ"), ("b", 1, "WRITE"), ("b", 2, "WRITE"), ("a", 0, "READ_WRITE"), ("b", 0, "READ_WRITE"),
    ]  # fmt: skip
    assert all(queue.broker.endpoints == ENDPOINTS for queue in found)


@pytest.mark.parametrize(("perm", "name"), [(4, "READ"), (2, "WRITE"), (6, "READ_WRITE")])
def test_the_permission_of_a_queue_is_that_of_its_topic(perm: int, name: str) -> None:
    assert shown(message_queues(info(("a", 1, 1, perm)), TOPIC, ENDPOINTS)) == [("a", 0, name)]


def test_a_topic_without_permissions_has_no_queues() -> None:
    assert message_queues(info(("a", 1, 1, 0)), TOPIC, ENDPOINTS) == []


def test_a_topic_that_cannot_be_read_has_no_assignment() -> None:
    assert assigned_queues(info(("a", 1, 1, 2)), TOPIC, ENDPOINTS, is_ordered=False) == []


def test_brokers_without_an_address_are_left_out() -> None:
    two = info(("a", 1, 1, 6), ("b", 1, 1, 6), down="b")
    assert shown(message_queues(two, TOPIC, ENDPOINTS)) == [("a", 0, "READ_WRITE")]
    assert shown(assigned_queues(two, TOPIC, ENDPOINTS, is_ordered=False)) == [("a", -1, "READ")]


def test_every_consumer_gets_each_broker_once_or_each_queue_in_order() -> None:
    two = info(("a", 2, 2, 6), ("b", 1, 1, 6))
    assert shown(assigned_queues(two, TOPIC, ENDPOINTS, is_ordered=False)) == [("a", -1, "READ"), ("b", -1, "READ")]
    in_order = assigned_queues(two, TOPIC, ENDPOINTS, is_ordered=True)
    assert shown(in_order) == [("a", 0, "READ"), ("a", 1, "READ"), ("b", 0, "READ")]


@pytest.mark.parametrize(
    ("message_type", "accepted"),
    [
        ("NORMAL", [pb.NORMAL]),
        ("FIFO", [pb.FIFO]),
        ("DELAY", [pb.DELAY]),
        ("TRANSACTION", [pb.TRANSACTION]),
        ("MIXED", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("UNSPECIFIED", [pb.MESSAGE_TYPE_UNSPECIFIED]),
        ("of-a-later-version", [pb.MESSAGE_TYPE_UNSPECIFIED]),
    ],
)
def test_a_topic_accepts_messages_of_its_type(message_type: str, accepted: list[pb.MessageType]) -> None:
    [queue] = message_queues(info(("a", 1, 1, 6), message_type=message_type), TOPIC, ENDPOINTS)
    assert list(queue.accept_message_types) == accepted
