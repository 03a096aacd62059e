"""Sending back over real sockets: what a client asks, what it is answered, and where the message then is."""

import asyncio
from pathlib import Path

import pytest

from latermq.config_json.groups import GroupJson
from latermq.message.record import Message
from latermq.protocol.remoting.clients import LockBatchRequest
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import heartbeat, pull, run_with_broker, send
from tests.integration.raw_client import RawClient, connect

RETRY = "%RETRY%readers"
DEAD = "%DLQ%readers"


def port_of(process: BrokerProcess) -> int:
    return int(process.address.rpartition(":")[2])


async def stored(client: RawClient, topic: str = "orders") -> Message:
    assert (await send(client, topic)).code == Response.SUCCESS
    _, [*_, last] = await pull(client, topic)
    return last


async def send_back(client: RawClient, message: Message, *, encoding: int = JSON, **changes: str) -> Command:
    fields = {
        "offset": str(message.physical_offset), "group": "readers", "delayLevel": "0",
        "originMsgId": message.message_id, "originTopic": message.topic, "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    return await client.call(Request.CONSUMER_SEND_MSG_BACK, fields | changes, encoding=encoding)


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_message_that_is_sent_back_comes_again_through_a_waiting_pull(
    tmp_path: Path, flush: str, encoding: int
) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client, connect(port_of(process)) as waiting:
            await heartbeat(client, "one", "readers", "orders", RETRY)
            message = await stored(client)
            held = asyncio.ensure_future(pull(waiting, RETRY, sysFlag="6", suspendTimeoutMillis="15000"))
            reply = await send_back(client, message, encoding=encoding)
            assert (reply.code, reply.remark) == (Response.SUCCESS, None)
            _, [again] = await held
            assert (again.body, again.reconsume_times) == (message.body, 1)
            assert again.properties["RETRY_TOPIC"] == "orders"
            assert again.store_timestamp_ms - message.store_timestamp_ms >= 1_000
            assert (await send_back(client, again, encoding=encoding, delayLevel="-1")).code == Response.SUCCESS
            _, [dead] = await pull(client, DEAD)
            assert (dead.body, dead.reconsume_times) == (message.body, 2)
            assert dead.properties["ORIGIN_MESSAGE_ID"] == message.message_id

    run_with_broker(tmp_path, scenario, f"store.flush={flush}", "timer.levels=1s 1s 1s")


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_group_without_retries_is_answered_and_its_message_dropped(tmp_path: Path, flush: str) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            group = GroupJson(name="readers", retry_queues=0)
            await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, encode_body(group))
            message = await stored(client)
            assert (await send_back(client, message, delayLevel="-1")).code == Response.SUCCESS
            assert (await pull(client, DEAD))[0].code == Response.TOPIC_NOT_EXIST

    run_with_broker(tmp_path, scenario, f"store.flush={flush}")


def test_what_cannot_be_sent_back_is_refused_with_rocketmqs_codes(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            group = GroupJson(name="readers")
            await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, encode_body(group))
            message = await stored(client)
            gone = await send_back(client, message, offset="999999")
            assert gone.code == Response.SYSTEM_ERROR
            assert "no message begins at 999999" in str(gone.remark)
            unknown = await send_back(client, message, group="strangers")
            assert unknown.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
            malformed = await client.call(Request.CONSUMER_SEND_MSG_BACK, {"group": "readers"})
            assert malformed.code == Response.SYSTEM_ERROR
            batch = await client.call(Request.SEND_BATCH_MESSAGE, {"b": RETRY, "e": "0", "m": "true"}, b"x")
            assert batch.code == Response.MESSAGE_ILLEGAL

    run_with_broker(tmp_path, scenario, "broker.auto_create_groups=false")


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_client_may_put_a_retry_by_itself_and_one_too_many_is_a_dead_letter(tmp_path: Path, encoding: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            for times in ("2", "3"):
                reply = await send(
                    client, RETRY, b"try %b" % times.encode(), encoding=encoding, properties="DELAY\x011\x02",
                    j=times, l="2",
                )  # fmt: skip
                assert reply.code == Response.SUCCESS
            _, [dead] = await pull(client, DEAD)
            assert (dead.body, dead.reconsume_times) == (b"try 3", 3)
            _, [again] = await pull(client, RETRY, sysFlag="6", suspendTimeoutMillis="15000")
            assert (again.body, again.reconsume_times) == (b"try 2", 2)

    run_with_broker(tmp_path, scenario)


def test_what_an_orderly_group_gives_back_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            await stored(client)
            lock = LockBatchRequest(
                consumerGroup="readers", clientId="one", mqSet=[MessageQueue("orders", "broker-a", 0)]
            )
            assert (await client.call(Request.LOCK_BATCH_MQ, {}, encode_body(lock))).code == Response.SUCCESS
            await send(client, RETRY, b"in order", properties="DELAY\x015\x02", j="1", l="2")
            _, [dead] = await pull(client, DEAD)
            assert dead.body == b"in order"

    run_with_broker(tmp_path, scenario)
