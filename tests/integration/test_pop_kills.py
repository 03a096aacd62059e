"""`kill -9` of a real broker between a pop and its acknowledgement."""

import asyncio
import contextlib
from pathlib import Path

from latermq.protocol.remoting.codes import Response
from tests.integration.brokers import send
from tests.integration.pop_client import PopClient, Popped
from tests.integration.raw_client import connect
from tests.support.serving import serving

MESSAGES = 60


def test_acknowledgements_and_invisible_times_survive_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        popped = asyncio.run(pop_and_ack_some(server.port))
        server.kill()
        ports = server.same_ports
    acked, held, returned = popped
    with serving(tmp_path / "data", *ports) as server:
        asyncio.run(check_after_kill(server.port, acked, held, returned))


async def pop_and_ack_some(port: int) -> tuple[list[Popped], list[Popped], list[Popped]]:
    """Return what was acknowledged, what is still held, and what was given back. Each was answered before the kill."""
    async with connect(port) as raw:
        client = PopClient(raw)
        for number in range(MESSAGES):
            await send(raw, "orders", b"%d" % number, queue_id=number % 4)
        popped: list[Popped] = []
        while len(popped) < MESSAGES:
            popped += await client.pop("orders", maxMsgNums="16", invisibleTime="600000")
        acked, held, returned = popped[:20], popped[20:40], popped[40:]
        assert await client.ack_all(acked[:10]) == ["done"] * 10
        assert [await client.ack(one) for one in acked[10:]] == ["done"] * 10
        for one in returned:
            assert (await client.change(one, 0)).code == Response.SUCCESS
        return acked, held, returned


async def check_after_kill(port: int, acked: list[Popped], held: list[Popped], returned: list[Popped]) -> None:
    async with connect(port) as raw:
        client = PopClient(raw)
        assert await client.ack_all(acked) == ["repeated"] * len(acked)
        again: list[Popped] = []
        with contextlib.suppress(TimeoutError):
            while len(again) < len(returned):
                found = await client.pop("orders", pollTime="3000")
                assert found, "what was given back must come"
                again += found
        assert sorted(one.body for one in again) == sorted(one.body for one in returned)
        assert await client.pop("orders", pollTime="500") == [], "held messages must not come early"
        assert await client.ack_all(held) == ["done"] * len(held)
        assert await client.ack_all(again) == ["done"] * len(again)
        assert await client.pop("orders") == []
