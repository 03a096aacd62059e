"""Retry topics that two groups share, because `_` separates their names and occurs in them."""

from latermq.broker.pop.pop_request import PopRequest
from latermq.message.names import retry_topic
from latermq.message.properties import ORIGIN_GROUP, RETRY_TOPIC
from latermq.message.record import decode_records
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request
from tests.support.admins import HOST, FakeConnection
from tests.support.mixed_group import INVISIBLE_MS, MixedGroup


def opened(*topics: str) -> MixedGroup:
    world = MixedGroup()
    for topic in topics:
        world.broker.topics.put(Topic(name=topic, read_queues=1, write_queues=1))
    world.broker.tables.save()
    return world


def send(world: MixedGroup, topic: str, body: bytes, properties: str = "") -> None:
    world.broker.writer.send(topic, 0, body, properties, world.clock.now_ms(), HOST)


def pop(world: MixedGroup, group: str, topic: str) -> list[bytes]:
    world.broker.groups.require(group)
    popped = world.broker.pops.pop(PopRequest(group, topic, -1, 32, INVISIBLE_MS))
    world.broker.pop_positions.commit()
    return [one.body for part in popped.parts for piece in part.pieces for one in decode_records(piece)]


def fail(world: MixedGroup) -> None:
    """Let the invisible times end. The topics of the copies are created and saved on the way."""
    for _ in range(2):
        world.advance(INVISIBLE_MS + 1_000)
        world.broker.tables.save()
        world.broker.pop_expiry.run()


def test_pops_do_not_get_the_retries_of_another_group() -> None:
    world = opened("b_c", "c")
    send(world, "b_c", b"of a")
    send(world, "c", b"of a_b")
    assert pop(world, "a", "b_c") == [b"of a"]
    fail(world)
    assert pop(world, "a_b", "c") == [b"of a_b"]
    assert pop(world, "a", "b_c") == [b"of a"]
    fail(world)
    world.crash()
    assert pop(world, "a_b", "c") == [b"of a_b"]
    assert pop(world, "a", "b_c") == [b"of a"]


def test_pops_do_not_adopt_another_groups_retries_as_those_of_members_that_pull() -> None:
    world = opened("b")
    send(world, "b", b"one")
    assert pop(world, "a", "b") == [b"one"]
    fail(world)
    send(world, retry_topic("a_b"), b"sent back", f"{RETRY_TOPIC}\x01b\x02")
    assert pop(world, "a_b", "b") == [b"one"]  # from the topic itself
    fail(world)
    assert sorted(pop(world, "a_b", "b")) == [b"one", b"sent back"]


def test_a_pull_of_a_retry_topic_skips_another_groups_retries() -> None:
    world = opened("b")
    send(world, "b", b"one")
    assert pop(world, "a", "b") == [b"one"]
    fail(world)
    topic = retry_topic("a_b")
    send(world, topic, b"sent back", f"{RETRY_TOPIC}\x01orders\x02{ORIGIN_GROUP}\x01z\x02")
    fields = {
        "consumerGroup": "a_b", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    reply = world.call(FakeConnection("127.0.0.1:5"), Request.PULL_MESSAGE, fields)
    assert [one.body for one in decode_records(reply.body)] == [b"sent back"]
