"""Messages of a pop without a handle of their own: the proxy computes it from the reply, as Apache's client does."""

import pytest

from latermq.message.ids import pack_host
from latermq.message.record_writer import encode_record
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.popped_messages import PoppedMessages, PopReply

HOST = pack_host("127.0.0.1", 10911)
TOPIC = pb.Resource(name="orders")


def record(topic: str, offset: int, properties: str = "") -> bytes:
    return encode_record(
        topic.encode(), b"body", properties.encode(), queue_id=0, queue_offset=offset, physical_offset=1_000 + offset,
        born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=2, store_host=HOST,
    )  # fmt: skip


def read(records: bytes, infos: str, topic: pb.Resource = TOPIC) -> list[pb.Message]:
    reply = PopReply(popTime=77, invisibleTime=60_000, reviveQid=0, startOffsetInfo=infos)
    popped = PoppedMessages(reply, records, "broker-a", topic)
    found = []
    while popped.unread_bytes:
        response = pb.ReceiveMessageResponse()
        popped.read(response)
        found.append(response.message)
    return found


def handles(messages: list[pb.Message]) -> list[str]:
    return [message.system_properties.receipt_handle for message in messages]


@pytest.mark.parametrize(("retry_topic", "mark"), [("%RETRY%g_orders", "1"), ("%RETRY%g+orders", "2")])
@pytest.mark.parametrize("topic", [TOPIC, pb.Resource(resource_namespace="shop", name="orders")])
def test_a_retry_as_it_is_stored_has_the_handle_of_its_retry_topic_and_the_name_of_its_topic(
    retry_topic: str, mark: str, topic: pb.Resource
) -> None:
    records = record("orders", 5) + record(retry_topic, 8) + record(retry_topic, 9)
    found = read(records, f"0 0 5;{mark} 0 8", topic)
    assert handles(found) == [
        "5 77 60000 0 0 broker-a 0 5 1005",
        f"8 77 60000 0 {mark} broker-a 0 8 1008",
        f"8 77 60000 0 {mark} broker-a 0 9 1009",
    ]
    assert [message.topic for message in found[1:]] == [topic, topic]


def test_a_retry_with_a_handle_keeps_it() -> None:
    handle = "8 77 60000 0 1 broker-a 0 8"
    assert handles(read(record("orders", 8, f"POP_CK\x01{handle}\x02"), "1 0 8")) == [f"{handle} 1008"]


def test_a_consumer_of_a_retry_topic_gets_handles_of_that_topic() -> None:
    topic = pb.Resource(name="%RETRY%g_orders")
    assert handles(read(record(topic.name, 8), "0 0 8", topic)) == ["8 77 60000 0 0 broker-a 0 8 1008"]
