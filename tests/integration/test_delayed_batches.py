"""Batches with delays: raw frames and the SDK. Each message of a batch has its own delay."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from latermq.client import MessageQueue, OutgoingMessage, Producer, PullConsumer
from latermq.errors import IllegalMessage, TopicNotFound
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.record import Message
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import pull, run_with_broker, send_fields
from tests.integration.raw_client import RawClient, connect
from tests.support.serving import serving

LEVELS = "1s 2s"
ARRIVAL_TIMEOUT_S = 20.0


def batch(*members: tuple[bytes, str]) -> bytes:
    return encode_batch(
        BatchMember(0, body, f"DELAY\x01{level}\x02".encode() if level else b"") for body, level in members
    )


async def send_batch(client: RawClient, data: bytes) -> Command:
    return await client.call(Request.SEND_BATCH_MESSAGE, send_fields("orders", m="true"), data)


async def pulled(client: RawClient, count: int) -> list[Message]:
    """The topic's messages once there are so many; each pull waits at the broker for the next one."""
    messages: list[Message] = []
    async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
        while len(messages) < count:
            waiting = {"sysFlag": "6", "suspendTimeoutMillis": "5000"}
            messages += (await pull(client, "orders", len(messages), **waiting))[1]
    return messages


def test_a_batch_may_mix_messages_for_now_and_for_later(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            data = batch((b"two seconds", "2"), (b"now", ""), (b"one second", "1"), (b"now too", "0"))
            reply = await send_batch(client, data)
            assert reply.code == Response.SUCCESS
            assert len(reply.text_fields()["msgId"].split(",")) == 4
            _, at_once = await pull(client, "orders", 0)
            assert [message.body for message in at_once] == [b"now", b"now too"]
            got = await pulled(client, 4)
            assert [message.body for message in got[2:]] == [b"one second", b"two seconds"]
            for message, delay_ms in zip(got[2:], (1_000, 2_000), strict=True):
                assert message.store_timestamp_ms >= at_once[0].store_timestamp_ms + delay_ms

    run_with_broker(tmp_path, scenario, f"timer.levels={LEVELS}")


def test_all_of_a_batch_may_wait(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await send_batch(client, batch(*((b"%d" % number, "1") for number in range(50))))
            assert reply.code == Response.SUCCESS
            assert [message.body for message in await pulled(client, 50)] == [b"%d" % number for number in range(50)]

    run_with_broker(tmp_path, scenario, f"timer.levels={LEVELS}")


@pytest.mark.parametrize("bad", ["soon", "-1", "1.5"])
def test_one_bad_delay_refuses_the_batch_and_is_named(tmp_path: Path, bad: str) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await send_batch(client, batch((b"a", "1"), (b"b", ""), (b"c", bad)))
            assert reply.code == Response.MESSAGE_ILLEGAL
            assert "message 2 of the batch" in (reply.remark or "")
            assert process.broker.store.log.end == 0

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("lives", [1, 2])
def test_where_messages_wait_nobody_can_pull(tmp_path: Path, lives: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send_batch(client, batch((b"a", "2")))
            reply, _ = await pull(client, SCHEDULE_TOPIC, 0, queueId="1")
            assert reply.code == Response.NO_PERMISSION
            assert "cannot be consumed" in (reply.remark or "")
            assert SCHEDULE_TOPIC not in process.broker.topics.table.topics

    for _ in range(lives):  # the second finds the queues of the first
        run_with_broker(tmp_path, scenario)


def test_the_sdk_sends_batches_with_delays(tmp_path: Path) -> None:
    async def scenario(namesrv: str) -> None:
        async with Producer(namesrv) as producer, PullConsumer(namesrv, group="readers") as consumer:
            queue = MessageQueue("orders", "broker-a", 0)
            later = [OutgoingMessage("orders", b"later %d" % n, properties={"DELAY": "1"}) for n in range(5)]
            await producer.send(OutgoingMessage("orders", b"now"))
            await producer.send_batch([*later, OutgoingMessage("orders", b"now too")], queue=queue)
            bad = OutgoingMessage("orders", b"bad", properties={"DELAY": "soon"})
            with pytest.raises(IllegalMessage, match="message 5 of the batch"):
                await producer.send_batch([*later, bad], queue=queue)
            found: list[bytes] = []
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while b"later 4" not in found:
                    with contextlib.suppress(TopicNotFound):  # a broker tells of a new topic a moment after it has it
                        result = await consumer.pull(queue, len(found), 32)
                        found += [message.body for message in result.messages]
            assert [body for body in found if body != b"now"] == [b"now too", *(m.body for m in later)]

    with serving(tmp_path, "--set", f"timer.levels={LEVELS}") as server:
        asyncio.run(scenario(server.namesrv))
