"""A broker in this process on a free port, and clients that speak to it in frames."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from latermq.clock import SystemClock
from latermq.config import Config, load_config
from latermq.message.record import Message, decode_records
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import JSON, Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.server.broker.process import BrokerProcess
from tests.integration.raw_client import RawClient

NOBODY = "127.0.0.1:1"  # a name server that is not there; the broker goes on without


def small_config(*settings: str) -> Config:
    """A configuration for tests: small files, a free port, no name server."""
    return load_config(
        settings=[
            "server.port=0",
            f"server.namesrv={NOBODY}",
            "server.max_connections=1000",
            "metrics.port=0",
            "metrics.namesrv_port=0",
            "store.segment=16MiB",
            "store.reserve_step=1MiB",
            "store.index_slots=1000",
            "store.index_entries=10000",
            *settings,
        ],
        environment={},
    )


@asynccontextmanager
async def running_broker(data: Path, *settings: str) -> AsyncIterator[BrokerProcess]:
    process = BrokerProcess(small_config(*settings), SystemClock(), data)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def run_with_broker(
    data: Path, scenario: Callable[[BrokerProcess], Coroutine[None, None, None]], *settings: str
) -> None:
    """Run one scenario against one broker."""

    async def main() -> None:
        async with running_broker(data, *settings) as process:
            await scenario(process)

    asyncio.run(main())


def send_fields(topic: str, *, queue_id: int = 0, properties: str = "", **changes: str) -> dict[str, str]:
    """The header fields of SEND_MESSAGE_V2."""
    fields = {
        "a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return fields | changes


async def send(
    client: RawClient, topic: str, body: bytes = b"body", *, encoding: int = JSON, queue_id: int = 0,
    properties: str = "", **changes: str,
) -> Command:  # fmt: skip
    fields = send_fields(topic, queue_id=queue_id, properties=properties, **changes)
    return await client.call(Request.SEND_MESSAGE_V2, fields, body, encoding=encoding)


def pull_fields(topic: str, offset: int, /, *, group: str = "readers", **changes: str) -> dict[str, str]:
    """The header fields of PULL_MESSAGE; the subscription is in the request itself."""
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return fields | changes


async def pull(client: RawClient, topic: str, offset: int = 0, /, **changes: str) -> tuple[Command, list[Message]]:
    reply = await client.call(Request.PULL_MESSAGE, pull_fields(topic, offset, **changes))
    return reply, list(decode_records(reply.body))


async def heartbeat(client: RawClient, client_id: str, group: str, *topics: str) -> None:
    """Join a consumer group."""
    beat = HeartbeatData(
        clientID=client_id,
        producerDataSet=[ProducerData(groupName="producers")],
        consumerDataSet=[
            ConsumerData(groupName=group, subscriptionDataSet=[SubscriptionData(topic=topic) for topic in topics])
        ],
    )
    await client.send_only(Request.HEART_BEAT, body=encode_body(beat))
    # The answer and the notification that the group changed come in any order.
    replies = [await client.receive(), await client.receive()]
    assert {reply.code for reply in replies} == {Response.SUCCESS, Request.NOTIFY_CONSUMER_IDS_CHANGED}


def ids(reply: Command) -> list[str]:
    """The consumer ids of a GET_CONSUMER_LIST_BY_GROUP reply."""
    found: list[str] = msgspec.json.decode(reply.body)["consumerIdList"]
    return found
