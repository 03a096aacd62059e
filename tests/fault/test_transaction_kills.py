"""`kill -9` between half, commit and answer, with real processes: a committed message is there once, others never."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from latermq.client import PullConsumer
from latermq.message.properties import encode_properties
from latermq.protocol.remoting.codes import Request
from tests.fault.test_kill import TOPIC, find_queues, read_queue
from tests.integration.brokers import send_fields
from tests.integration.raw_client import RawClient, connect
from tests.support.needs import LONG
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real
KILLS = 10 if LONG else 3
GROUP = "producers"
COMMIT, ROLL_BACK = "8", "12"


class Load:
    """Sends halves and ends two thirds of them; repeats every end that got no answer."""

    def __init__(self) -> None:
        self.number = 0
        self.open: dict[bytes, dict[str, str]] = {}  # answered halves whose end is not confirmed: fields of 37
        self.confirmed: dict[bytes, str] = {}
        self.left: set[bytes] = set()  # never ended

    async def run(self, client: RawClient) -> None:
        """Work until the connection breaks."""
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                for body in list(self.open):
                    await self.end(client, body)
                await self._send(client)

    async def _send(self, client: RawClient) -> None:
        self.number += 1
        body = b"%06d" % self.number
        known = {"UNIQ_KEY": f"k{self.number}", "PGROUP": GROUP, "TRAN_MSG": "true"}
        known |= {"TIMER_DELAY_MS": "300"} if self.number % 4 == 0 else {}
        fields = send_fields(TOPIC, properties=encode_properties(known), f="4")
        reply = await client.call(Request.SEND_MESSAGE_V2, fields, body)
        if reply.code:
            return
        if self.number % 5 == 0:
            self.left.add(body)
            return
        self.open[body] = {
            "producerGroup": GROUP,
            "transactionId": f"k{self.number}",
            "commitOrRollback": ROLL_BACK if self.number % 3 == 0 else COMMIT,
        }

    async def end(self, client: RawClient, body: bytes) -> None:
        """End a half, perhaps again; it must succeed either way."""
        reply = await client.call(Request.END_TRANSACTION, self.open[body])
        assert reply.code == 0, (body, reply.remark)
        self.confirmed[body] = self.open.pop(body)["commitOrRollback"]


async def stored(server: Server) -> list[bytes]:
    async with PullConsumer(server.namesrv, group="auditors") as consumer:
        queues = await find_queues(consumer)
        return [message.body for queue in queues for message in await read_queue(consumer, queue)]


def test_kills_neither_lose_nor_repeat_a_committed_message(tmp_path: Path) -> None:
    async def main() -> None:
        chance, load = Random(1), Load()
        with serving(tmp_path / "data", "--no-http", "--no-grpc", "--no-pipeline") as server:
            for _ in range(KILLS):
                pid = server.broker_pid()
                async with connected(server) as client:
                    running = asyncio.create_task(load.run(client))
                    await asyncio.sleep(0.5 + chance.random())
                    os.kill(pid, signal.SIGKILL)
                    await asyncio.wait_for(running, 30)
                for _ in range(600):
                    if server.child_pid("broker") not in (None, pid):
                        break
                    await asyncio.sleep(0.05)
            async with connected(server) as client:
                for body in list(load.open):
                    await load.end(client, body)
            await asyncio.sleep(2)  # the delayed ones
            found = await stored(server)
        committed = {body for body, decision in load.confirmed.items() if decision == COMMIT}
        assert len(committed) > KILLS
        assert sorted(found) == sorted(committed)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[RawClient]:
    """A client of the broker, as soon as it accepts connections."""
    for _ in range(600):
        try:
            async with connect(server.port) as client:
                await client.call(Request.GET_BROKER_CONFIG)
                yield client
                return
        except ConnectionError:
            await asyncio.sleep(0.05)
    raise AssertionError("the broker does not come back")
