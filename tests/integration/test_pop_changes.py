"""Changes from outside while messages are in flight, over real sockets: resets, deletions, and retention."""

import asyncio
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, running_broker, send
from tests.integration.pop_client import PopClient, Popped
from tests.integration.raw_client import RawClient, connect

TOPIC = "orders"


async def make_topic(raw: RawClient, queues: int = 1, write_queues: int = 0) -> None:
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(queues),
        "writeQueueNums": str(write_queues or queues), "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    assert (await raw.call(Request.UPDATE_AND_CREATE_TOPIC, fields)).code == Response.SUCCESS


async def send_all(raw: RawClient, *bodies: bytes) -> None:
    for body in bodies:
        assert (await send(raw, TOPIC, body)).code == Response.SUCCESS


async def reset(raw: RawClient, offset: int) -> None:
    fields = {
        "topic": TOPIC, "group": "readers", "timestamp": "-1", "isForce": "true", "queueId": "0",
        "offset": str(offset),
    }  # fmt: skip
    assert (await raw.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == Response.SUCCESS


async def floor(raw: RawClient) -> str:
    fields = {"consumerGroup": "readers", "topic": TOPIC, "queueId": "0"}
    return (await raw.call(Request.QUERY_CONSUMER_OFFSET, fields)).text_fields()["offset"]


def bodies(popped: list[Popped]) -> list[bytes]:
    return [one.body for one in popped]


def port_of(process: BrokerProcess) -> int:
    return process.listener.port


def test_a_reset_to_the_start_delivers_everything_again_and_old_handles_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            await make_topic(raw)
            await send_all(raw, b"0", b"1", b"2")
            client = PopClient(raw)
            old = await client.pop(TOPIC, invisibleTime="1000")
            assert await client.ack(old[0]) == "done"
            await reset(raw, 0)
            again = await client.pop(TOPIC)
            assert bodies(again) == [b"0", b"1", b"2"]
            assert [one.message.reconsume_times for one in again] == [0, 0, 0]
            assert {await client.ack(one) for one in old} <= {"stale", "repeated"}
            assert (await client.change(old[1], 60_000)).code == Response.NO_MESSAGE
            await asyncio.sleep(1.5)  # the invisible time of the first pop
            assert await client.pop(TOPIC) == []
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            client = PopClient(raw)
            assert await client.pop(TOPIC) == []
            assert [await client.ack(one) for one in again] == ["done"] * 3
            assert await floor(raw) == "3"

    asyncio.run(main())


def test_a_reset_to_the_end_forgets_what_is_in_flight(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            await make_topic(raw)
            await send_all(raw, b"0", b"1", b"2")
            client = PopClient(raw)
            (old,) = await client.pop(TOPIC, invisibleTime="500", maxMsgNums="1")
            await reset(raw, 3)
            assert await floor(raw) == "3"
            await send_all(raw, b"3")
            assert bodies(await client.pop(TOPIC)) == [b"3"]
            await asyncio.sleep(1)
            assert await client.pop(TOPIC) == []
            assert await client.ack(old) in ("stale", "repeated")

    run_with_broker(tmp_path, scenario)


def test_a_topic_that_is_deleted_and_created_again_has_no_messages_in_flight(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            await make_topic(raw)
            await send_all(raw, b"old 0", b"old 1")
            client = PopClient(raw)
            old = await client.pop(TOPIC, invisibleTime="1000")
            assert (await raw.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == Response.SUCCESS
            for one in old:
                fields = one.fields | {"invisibleTime": "1000"}
                assert (await raw.call(Request.ACK_MESSAGE, one.fields)).code == Response.TOPIC_NOT_EXIST
                changed = await raw.call(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)
                assert changed.code == Response.TOPIC_NOT_EXIST
            await make_topic(raw)
            await send_all(raw, b"new 0", b"new 1")
            new = await client.pop(TOPIC)
            assert bodies(new) == [b"new 0", b"new 1"]
            assert "done" not in [await client.ack(one) for one in old]
            await asyncio.sleep(1.5)  # the invisible time of the deleted messages
            assert await client.pop(TOPIC) == []
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            client = PopClient(raw)
            assert await client.pop(TOPIC) == []
            assert [await client.ack(one) for one in new] == ["done", "done"]

    asyncio.run(main())


@pytest.mark.parametrize("clean_offsets", ["true", "false"])
def test_a_group_that_is_deleted_has_no_messages_in_flight(tmp_path: Path, clean_offsets: str) -> None:
    """Its messages are not delivered to it again later, and if it comes back it begins anew or at its old offset."""

    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            await make_topic(raw)
            await send_all(raw, b"0", b"1")
            client = PopClient(raw)
            old = await client.pop(TOPIC, invisibleTime="500")
            assert await client.ack(old[0]) == "done"
            fields = {"groupName": "readers", "cleanOffset": clean_offsets}
            assert (await raw.call(Request.DELETE_SUBSCRIPTIONGROUP, fields)).code == Response.SUCCESS
            assert (await client.ack(old[1])) == "unknown"
            await asyncio.sleep(1)
            assert process.broker.topics.find("%RETRY%readers_orders") is None
            again = await client.pop(TOPIC)
            assert bodies(again) == ([b"0", b"1"] if clean_offsets == "true" else [b"1"])
            assert [one.message.reconsume_times for one in again] == [0] * len(again)
            assert "done" not in [await client.ack(one) for one in old]
            assert [await client.ack(one) for one in again] == ["done"] * len(again)

    run_with_broker(tmp_path, scenario)


def test_a_topic_with_fewer_queues_keeps_its_messages_in_flight(tmp_path: Path) -> None:
    """A message that was popped from a queue that is no longer read comes back after its time, once."""

    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            await make_topic(raw, queues=2)
            for queue_id in range(2):
                await send(raw, TOPIC, b"%d" % queue_id, queue_id=queue_id)
            client = PopClient(raw)
            old = await client.pop(TOPIC, invisibleTime="1000")
            assert sorted(bodies(old)) == [b"0", b"1"]
            await make_topic(raw, queues=1)
            again = await client.pop(TOPIC, pollTime="5000")
            again += await client.pop(TOPIC, pollTime="1000")
            assert sorted(bodies(again)) == [b"0", b"1"]
            assert [await client.ack(one) for one in again] == ["done", "done"]

    run_with_broker(tmp_path, scenario)


def test_retention_delivers_a_message_in_flight_again_before_its_segment_goes(tmp_path: Path) -> None:
    """Its time is not up, but its segment is: it moves to the retry topic without an attempt."""

    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            await make_topic(raw)
            await send_all(raw, b"held", b"acknowledged")
            client = PopClient(raw)
            held, acknowledged = await client.pop(TOPIC, invisibleTime="3600000")
            assert await client.ack(acknowledged) == "done"
            first_segment = process.broker.store.log.start
            # Otherwise the journal keeps up to 256 MiB of the log.
            process.broker.pop_journal._snapshot._max_pinned_bytes = 0
            filler = b"x" * 1_000_000
            for _ in range(40):  # the segments have 16 MiB
                assert (await send(raw, "filler", filler)).code == Response.SUCCESS
            await asyncio.sleep(1.1)  # store.retention
            for _ in range(100):
                await raw.call(Request.DELETE_EXPIRED_COMMITLOG)
                if process.broker.store.log.start > first_segment:
                    break
                await asyncio.sleep(0.1)
            assert process.broker.store.log.start > first_segment
            (again,) = await client.pop(TOPIC, pollTime="5000")
            assert (again.body, again.message.reconsume_times) == (b"held", 0)
            assert await client.ack(held) in ("stale", "unknown")
            assert await client.ack(again) == "done"
            assert await client.pop(TOPIC) == []

    run_with_broker(tmp_path, scenario, "store.retention=1s", "store.checkpoint_every=100ms")
