"""Waiting pops are tried at once when queues become free for them, and not at their next poll."""

import asyncio
from pathlib import Path

from latermq.protocol.remoting.codes import Request, Response
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import heartbeat, pull, run_with_broker, send
from tests.integration.pop_client import pop_fields, read_reply
from tests.integration.raw_client import RawClient, connect
from tests.integration.test_pop import port_of, until_waiting
from tests.integration.test_pop_changes import make_topic

POLL = "60000"  # longer than the test may take


async def start_pop(raw: RawClient, process: BrokerProcess, topic: str) -> None:
    """Begin a pop that finds nothing and waits."""
    await raw.send_only(Request.POP_MESSAGE, pop_fields(topic, pollTime=POLL))
    await until_waiting(process, 1)


async def answer(raw: RawClient, topic: str) -> list[bytes]:
    async with asyncio.timeout(15.0):
        reply = await raw.receive()
    assert reply.code == Response.SUCCESS, reply
    return [one.body for one in read_reply(reply, topic, "readers")]


def test_a_waiting_pop_takes_over_the_queue_of_a_member_that_pulls_and_leaves(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = port_of(process)
        async with connect(port) as popper:
            async with connect(port) as puller:
                await make_topic(puller)
                await heartbeat(puller, "puller", "readers", "orders")
                await send(puller, "orders", b"one")
                _, pulled = await pull(puller, "orders")
                assert [message.body for message in pulled] == [b"one"]
                await start_pop(popper, process, "orders")
            assert await answer(popper, "orders") == [b"one"]  # it was not committed

    run_with_broker(tmp_path, scenario)


def test_a_waiting_pop_gets_the_messages_of_queues_that_are_added(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = port_of(process)
        async with connect(port) as popper, connect(port) as operator:
            await make_topic(operator, 1, 2)
            await send(operator, "orders", b"one", queue_id=1)
            await start_pop(popper, process, "orders")
            await make_topic(operator, 2)
            assert await answer(popper, "orders") == [b"one"]

    run_with_broker(tmp_path, scenario)
