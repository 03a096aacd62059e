"""With a hook that refuses, every request to a real broker and a real name server is refused, and nothing changes."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from latermq.broker.messages.reply_budget import ReplyBudget
from latermq.clock import SystemClock
from latermq.config_json.offsets import OffsetTableJson
from latermq.errors import NoPermission
from latermq.message.batch import BatchMember, encode_batch
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, JSON, Command, encode_frame
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.server.broker.process import BrokerProcess
from latermq.server.namesrv.name_server import NameServerProcess
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from tests.integration.brokers import run_with_broker, send, send_fields, small_config
from tests.integration.raw_client import RawClient, connect
from tests.support.served_requests import broker_endpoints, name_server_endpoints
from tests.support.signed_requests import sample_of

REFUSAL = "the test permits nothing"
MAX_BINARY_CODE = 0x7FFF


def permit_nothing(_: Connection, __: Endpoint, ___: Command, ____: Any) -> None:
    raise NoPermission(REFUSAL)


def frame_of(endpoint: Endpoint, *, encoding: int, flag: int = 0) -> bytes:
    """A request that its handler could be called with."""
    fields, body = sample_of(endpoint)
    return encode_frame(endpoint.code, int(endpoint.code), flag=flag, encoding=encoding, fields=fields, body=body)


async def assert_all_refused(client: RawClient, endpoints: Iterable[Endpoint]) -> None:
    for endpoint in endpoints:
        # A binary header has 16 bits for the code, so it cannot hold those of POP.
        for encoding in (JSON, BINARY) if endpoint.code <= MAX_BINARY_CODE else (JSON,):
            oneway = frame_of(endpoint, encoding=encoding, flag=FLAG_ONEWAY)
            await client.send(oneway + frame_of(endpoint, encoding=encoding))
            reply = await client.receive()
            assert (reply.opaque, reply.code) == (endpoint.code, Response.NO_PERMISSION), endpoint.code.name
            assert REFUSAL in (reply.remark or ""), f"{endpoint.code.name} was refused by its handler: {reply.remark}"


def state_of(process: BrokerProcess) -> dict[str, object]:
    """All that requests can change."""
    broker = process.broker
    return {
        "log": broker.store.log.end,
        # The broker makes empty queues of its own.
        "queues": {(one.topic, one.queue_id): one.next_offset for one in broker.store.queues if one.next_offset},
        "topics": encode_body(broker.topics.table),
        "groups": encode_body(broker.groups.table),
        "offsets": decode_body(broker.tables.offsets_body(ReplyBudget(broker.config)), OffsetTableJson).offsets,
        "consumers": [(group.name, list(group.members)) for group in broker.members.consumer_groups()],
        "producers": {name: len(members) for name, members in broker.members.producer_groups().items()},
        "waiting pulls": dict(broker.waiting.by_queue),
        "pops": (broker.pop_operations.statistics(), broker.waiting_pops.statistics()),
        "epoch": (broker.ingest.epoch, broker.ingest.offset),
    }


def heartbeat(*topics: str) -> bytes:
    wants = [SubscriptionData(topic=topic, subString="*", expressionType="TAG") for topic in topics]
    data = [ConsumerData(groupName="readers", subscriptionDataSet=wants)]
    return encode_body(HeartbeatData(clientID="client", consumerDataSet=data))


def test_a_broker_refuses_every_request_that_is_not_permitted(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        served = {one.code for some in broker_endpoints().values() for one in some}
        assert {one.code for one in process.service.table} == served
        async with connect(process.listener.port) as client:
            assert (await send(client, "orders")).code == Response.SUCCESS
            before = state_of(process)
            process.service.table.authorize = permit_nothing
            await assert_all_refused(client, process.service.table)
            reply = await client.call(Request.HEART_BEAT, {}, heartbeat("orders", "bills"))
            assert reply.code == Response.NO_PERMISSION
            batch = encode_batch([BatchMember(0, b"one", b""), BatchMember(0, b"two", b"")])
            reply = await client.call(Request.SEND_BATCH_MESSAGE, send_fields("orders", m="true"), batch)
            assert reply.code == Response.NO_PERMISSION
            await client.send(
                b"".join(encode_frame(310, n, fields=send_fields("orders"), body=b"x") for n in range(99))
            )
            replies = [await client.receive() for _ in range(99)]
            assert [(one.opaque, one.code) for one in replies] == [(n, Response.NO_PERMISSION) for n in range(99)]
            assert state_of(process) == before
            process.service.table.authorize = None
            assert (await send(client, "orders")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_a_heartbeat_is_refused_as_a_whole_where_one_of_its_topics_is_not_permitted(tmp_path: Path) -> None:
    def no_bills(_: Connection, endpoint: Endpoint, command: Command, content: Any) -> None:
        if any(access.name == "bills" for access in endpoint.accesses(command, content)):
            raise NoPermission(REFUSAL)

    async def scenario(process: BrokerProcess) -> None:
        process.service.table.authorize = no_bills
        async with connect(process.listener.port) as client:
            reply = await client.call(Request.HEART_BEAT, {}, heartbeat("orders", "bills"))
            assert reply.code == Response.NO_PERMISSION
            assert process.broker.members.consumer_group("readers") is None
            assert (await client.call(Request.HEART_BEAT, {}, heartbeat("orders"))).code == Response.SUCCESS
            assert process.broker.members.consumer_group("readers") is not None

    run_with_broker(tmp_path, scenario)


def test_a_name_server_refuses_every_request_that_is_not_permitted(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = NameServerProcess(small_config("server.namesrv_port=0"), SystemClock(), tmp_path)
        await process.start()
        try:
            table = process.server.table
            assert [one.code for one in table] == [one.code for one in name_server_endpoints()]
            async with connect(process.listener.port) as client:
                key = {"namespace": "n", "key": "k", "value": "v"}
                assert (await client.call(Request.PUT_KV_CONFIG, key)).code == Response.SUCCESS
                before = process.server.statistics()
                table.authorize = permit_nothing
                await assert_all_refused(client, table)
                table.authorize = None
                assert process.server.statistics() == before
                kept = await client.call(Request.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
                assert kept.text_fields()["value"] == "v"
        finally:
            await process.stop()

    asyncio.run(scenario())
