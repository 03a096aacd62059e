"""Small parts of the client: errors, routes, subscriptions, offsets, and the state of an assigned queue."""

import asyncio
from pathlib import Path

import pytest

from latermq import errors
from latermq.client import Sql
from latermq.client.consumer.assigned_queue import AssignedQueue
from latermq.client.consumer.consumer_settings import ConsumerSettings
from latermq.client.consumer.keyed_tables import keyed_table
from latermq.client.consumer.offsets import LocalOffsets
from latermq.client.consumer.subscription import matches_tags, subscription_data
from latermq.client.session import failures
from latermq.client.session.connection import split_address
from latermq.client.session.routes import build_route
from latermq.message.record import Message
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.routes import BrokerData, QueueData, TopicRoute

QUEUE = MessageQueue("t", "broker-a", 0)


def message_at(offset: int, size_bytes: int = 100) -> Message:
    return Message("t", b"", queue_offset=offset, size_bytes=size_bytes)


def assigned(max_messages: int = 10, max_bytes: int = 10_000) -> AssignedQueue:
    return AssignedQueue(QUEUE, subscription_data("t"), 0, max_messages, max_bytes)


@pytest.mark.parametrize(
    ("code", "type_", "retriable"),
    [
        (1, failures.BrokerFailed, False),
        (2, errors.Busy, True),
        (13, errors.IllegalMessage, False),
        (14, errors.ServiceUnavailable, True),
        (17, errors.TopicNotFound, False),
        (25, errors.SubscriptionOutdated, True),
        (206, errors.ConsumerOffline, False),
        (604, errors.IllegalOperation, False),
        (605, failures.UnknownResponse, False),
    ],
)
def test_every_response_code_has_its_error(code: int, type_: type[Exception], retriable: bool) -> None:
    error = failures.error_from_wire(code, "the reason", "host:1")
    assert isinstance(error, type_)
    assert (error.code, error.retriable) == (code, retriable)
    assert error.message == f"the reason (host:1 answered {code})"


def test_a_response_without_a_remark_gets_a_complete_message() -> None:
    for code in (*errors.error_codes(), 605):
        message = failures.error_from_wire(code, None, "host:1").message
        assert message.endswith(f" (host:1 answered {code})")
        assert not message.startswith(" ")
        assert ". (" not in message


@pytest.mark.parametrize("address", ["localhost", "", "host:port", "host:"])
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9876"):
        split_address(address)


def test_a_route_lists_queues_by_permission_and_by_name() -> None:
    data = TopicRoute(
        queueDatas=[
            QueueData(brokerName="b", readQueueNums=1, writeQueueNums=2, perm=6),
            QueueData(brokerName="a", readQueueNums=2, writeQueueNums=1, perm=4),
            QueueData(brokerName="slaves", readQueueNums=1, writeQueueNums=1, perm=6),
        ],
        brokerDatas=[
            BrokerData(cluster="c", brokerName="a", brokerAddrs={0: "a:1"}),
            BrokerData(cluster="c", brokerName="b", brokerAddrs={0: "b:1", 1: "b:2"}),
            BrokerData(cluster="c", brokerName="slaves", brokerAddrs={2: "s:2", 1: "s:1"}),
        ],
    )
    route = build_route("t", data)
    assert [(queue.brokerName, queue.queueId) for queue in route.writable] == [("b", 0), ("b", 1)]
    assert [(queue.brokerName, queue.queueId) for queue in route.readable] == [
        ("a", 0), ("a", 1), ("b", 0), ("slaves", 0),
    ]  # fmt: skip
    assert route.addresses == {"a": "a:1", "b": "b:1", "slaves": "s:1"}


def test_an_order_setting_decides_where_a_topic_is_written() -> None:
    data = TopicRoute(
        orderTopicConf="a:2;b:1",
        queueDatas=[QueueData(brokerName="a", readQueueNums=8, writeQueueNums=8, perm=6)],
        brokerDatas=[BrokerData(cluster="c", brokerName="a", brokerAddrs={0: "a:1"})],
    )
    assert [(queue.brokerName, queue.queueId) for queue in build_route("t", data).writable] == [
        ("a", 0), ("a", 1), ("b", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "queues", "reason"),
    [
        ("a:2000000000", 8, "lists 2000000008 queues"),
        ("", 2_000_000_000, "lists 2000000000 queues"),
        ("a:x", 8, "the order setting of topic 't' at the name server is not valid: 'a:x'"),
        ("a:1:2", 8, "the order setting of topic 't'"),
        (f"a:{'9' * 5000}", 8, "the order setting of topic 't'"),
    ],
)
def test_an_impossible_route_is_refused_before_its_queues_are_listed(order: str, queues: int, reason: str) -> None:
    data = TopicRoute(
        orderTopicConf=order,
        queueDatas=[QueueData(brokerName="a", readQueueNums=8, writeQueueNums=queues, perm=6)],
        brokerDatas=[BrokerData(cluster="c", brokerName="a", brokerAddrs={0: "a:1"})],
    )
    with pytest.raises(errors.MalformedRequest, match=reason):
        build_route("t", data)


def test_expressions_become_subscriptions() -> None:
    assert subscription_data("t", "").subString == "*"
    tags = subscription_data("t", " red || blue||red ")
    assert (tags.tagsSet, tags.codeSet, tags.expressionType) == (["red", "blue"], [112785, 3027034], "TAG")
    assert subscription_data("t", Sql("a > 3")).expressionType == "SQL92"
    for nothing in (Sql(" "), "||"):
        with pytest.raises(errors.FilterError):
            subscription_data("t", nothing)


def test_a_message_whose_tag_only_has_the_same_hash_does_not_match() -> None:
    data = subscription_data("t", "Aa")
    assert matches_tags(data, Message("t", b"", properties={"TAGS": "Aa"}))
    assert not matches_tags(data, Message("t", b"", properties={"TAGS": "BB"}))
    assert matches_tags(subscription_data("t"), Message("t", b""))


def test_tables_with_queues_as_keys_are_decoded() -> None:
    body = b'{"consumeTps":0.5,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"brokerOffset":9}}}'
    assert keyed_table(body, "offsetTable") == [(QUEUE, {"brokerOffset": 9})]
    assert keyed_table(b'{"offsetTable":null}', "offsetTable") == []
    assert keyed_table(b"{}", "offsetTable") == []


def test_only_messages_handled_without_a_gap_are_committed() -> None:
    queue = assigned()
    queue.add([message_at(0), message_at(1), message_at(2)], 5)
    queue.remove(message_at(1), 0)
    assert queue.position == 0
    queue.remove(message_at(0), 0)
    assert queue.position == 2
    queue.remove(message_at(2), 0)
    assert (queue.position, queue.cached_messages, queue.cached_bytes) == (5, 0, 0)


def test_a_queue_is_full_by_messages_or_by_bytes() -> None:
    queue = assigned(max_messages=2)
    queue.add([message_at(0)], 1)
    full_with_one = queue.is_full
    queue.add([message_at(1)], 2)
    assert (full_with_one, queue.is_full) == (False, True)
    queue = assigned(max_bytes=150)
    queue.add([message_at(0), message_at(1)], 2)
    assert queue.is_full


def test_a_full_queue_has_space_again_when_a_message_is_removed() -> None:
    async def scenario() -> None:
        queue = assigned(max_messages=1)
        queue.add([message_at(0)], 1)
        waiter = asyncio.create_task(queue.wait_for_space())
        await asyncio.sleep(0)
        assert not waiter.done()
        queue.remove(message_at(0), queue.generation)
        await asyncio.wait_for(waiter, 5)

    asyncio.run(scenario())


def test_messages_cached_before_a_seek_are_ignored() -> None:
    queue = assigned()
    queue.add([message_at(7)], 8)
    before = queue.generation
    queue.seek(3)
    queue.add([message_at(3)], 4)
    queue.remove(message_at(3), before)
    assert queue.position == 3


def test_local_offsets_survive_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        offsets = LocalOffsets(tmp_path / "new", "group", "")
        assert await offsets.load(QUEUE) is None
        await offsets.save({QUEUE: 7})
        await offsets.save({MessageQueue("t", "broker-a", 1): 8})
        again = LocalOffsets(tmp_path / "new", "group", "")
        assert await again.load(QUEUE) == 7
        assert await LocalOffsets(tmp_path / "new", "group", "other").load(QUEUE) is None

    asyncio.run(scenario())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["group_default.json"]


def test_a_corrupt_offset_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "group_default.json").write_text("{broken")
    with pytest.raises(errors.StoreError, match="is not a valid offset file"):
        asyncio.run(LocalOffsets(tmp_path, "group", "").load(QUEUE))


def test_an_unwritable_offset_file_is_an_error_with_path_and_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    offsets = LocalOffsets(tmp_path / "file", "group", "")
    for work in (offsets.load(QUEUE), offsets.save({QUEUE: 7})):
        with pytest.raises(errors.StoreError, match=r"cannot store offsets in .*group_default.json: Not a directory"):
            asyncio.run(work)


@pytest.mark.parametrize(
    "setting",
    [
        {"model": "both"},
        {"consume_from": "middle"},
        {"consume_from": -1},
        {"concurrency": 0},
        {"max_cached_messages": 0},
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(errors.ConfigError):
        ConsumerSettings(group="g", **setting)  # type: ignore[arg-type]
