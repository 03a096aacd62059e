"""Assignments over real sockets: queues of all brokers of a topic, as a name server knows them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from latermq.clock import SystemClock
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.namesrv.name_server import NameServerProcess
from tests.integration.brokers import heartbeat, running_broker, small_config
from tests.integration.raw_client import RawClient, connect

TOPIC, GROUP = "orders", "readers"


async def queues_of(client: RawClient) -> tuple[int, set[tuple[str, int]]]:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "me", "strategyName": "AVG"}
    reply = await client.call(Request.QUERY_ASSIGNMENT, body=msgspec.json.encode(body))
    if reply.code != Response.SUCCESS:
        return reply.code, set()
    found = msgspec.json.decode(reply.body)["messageQueueAssignments"]
    return 0, {(one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"]) for one in found}


def test_a_client_gets_the_same_queues_from_each_broker_and_keeps_them_while_no_name_server_answers(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        names = NameServerProcess(small_config("server.namesrv_port=0"), SystemClock(), tmp_path / "names")
        await names.start()
        async with AsyncExitStack() as stack:
            settings = [f"server.namesrv=127.0.0.1:{names.listener.port}"]
            brokers = [
                await stack.enter_async_context(running_broker(tmp_path / name, *settings, f"broker.name={name}"))
                for name in ("broker-a", "broker-b")
            ]
            clients = []
            for broker, queues in zip(brokers, (2, 3), strict=True):
                client = await stack.enter_async_context(connect(broker.listener.port))
                fields = {
                    "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(queues),
                    "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
                }  # fmt: skip
                assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, fields)).code == Response.SUCCESS
                await heartbeat(client, "me", GROUP, TOPIC)
                clients.append(client)
            whole = {("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1), ("broker-b", 2)}
            assert [await queues_of(client) for client in clients] == [(0, whole), (0, whole)]
            await names.stop()
            for broker in brokers:
                broker._cluster_routes._known.clear()
            # Without the other broker's queues the client would leave them.
            assert [await queues_of(client) for client in clients] == [(Response.SYSTEM_BUSY, set())] * 2

    asyncio.run(main())
