"""A store of Apache RocketMQ 5.5.0 whose broker had messages in flight by POP: LaterMQ delivers exactly these again."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from latermq.group.pop.handles import encode_bit_set
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from tests.integration.brokers import send
from tests.integration.pop_client import PopClient, Popped
from tests.integration.raw_client import RawClient, connect
from tests.interop.clients5 import Client5
from tests.interop.peer import apache_peer
from tests.support.serving import Server, serving

TOPIC, ORDERED, QUEUES = "popped", "ordered", 4
BODIES = {str(number) for number in range(100)}
REMOTING, GRPC, IN_ORDER = "remoting-group", "grpc-group", "ordered-group"
# Longer than Apache's broker takes to stop, so that it does not store the messages for their next attempt.
HELD_S = 45
LATEST_S = HELD_S + 60


@dataclass
class Left:
    """The store, and the messages that consumers of Apache's broker acknowledged, held and sent back."""

    store: Path
    acked: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)  # of the group that uses remoting: their attempt does not count

    def reconsumed(self, group: str) -> dict[str, int]:
        """How often each message failed that is not acknowledged."""
        counted = self.held[group] - (self.suspended if group == REMOTING else set())
        return {body: int(body in counted) for body in BODIES - self.acked[group]}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    folder = tmp_path_factory.mktemp("apache")
    with apache_peer(folder, heap="512m") as peer:
        left = Left(peer.store)
        asyncio.run(fill(peer.broker_port))
        peer.start_proxy("256m")
        receive_half(left, folder / "client.log", peer.endpoints)
        asyncio.run(pop_half(left, peer.broker_port))
        peer.stop_broker()
        yield left


async def fill(port: int) -> None:
    async with connect(port) as client:
        for body in sorted(BODIES, key=int):
            reply = await send(client, TOPIC, body.encode(), queue_id=int(body) % QUEUES)
            assert reply.code == Response.SUCCESS
        for number in range(6):
            assert (await send(client, ORDERED, b"%d" % number)).code == Response.SUCCESS


def receive_half(left: Left, log: Path, endpoints: str) -> None:
    """Receive messages with the official client through Apache's proxy, and acknowledge every third."""
    client = Client5("java", log, endpoints)
    with client.program:
        consumer = client.simple(GRPC, TOPIC)
        messages = client.receive(consumer, 50, invisible_s=HELD_S)
        acked = messages[::3]
        client.ack(consumer, *acked)
    left.acked[GRPC] = {message["body"] for message in acked}
    left.held[GRPC] = {message["body"] for message in messages} - left.acked[GRPC]


async def pop_half(left: Left, port: int) -> None:
    async with connect(port) as client:
        popper = PopClient(client, REMOTING)
        popped: list[Popped] = []
        while len(popped) < 50:
            wanted = {"maxMsgNums": str(min(16, 50 - len(popped))), "invisibleTime": str(HELD_S * 1_000)}
            popped += await popper.pop(TOPIC, bornTime=str(now_ms()), **wanted)
        singly, together, changed = popped[0:50:5], popped[1:50:5], popped[2:50:5]
        for one in singly:
            assert (await client.call(Request.ACK_MESSAGE, one.fields)).code == Response.SUCCESS
        await ack_together(client, together)
        for number, one in enumerate(changed):
            is_suspended = "true" if number % 2 else "false"
            reply = await popper.change(one, HELD_S * 1_000, suspend=is_suspended)
            assert reply.code == Response.SUCCESS
            if number % 2:
                left.suspended.add(one.body.decode())
        left.acked[REMOTING] = {one.body.decode() for one in singly + together}
        left.held[REMOTING] = {one.body.decode() for one in popped} - left.acked[REMOTING]

        in_order = PopClient(client, IN_ORDER, {"order": "true", "invisibleTime": str(HELD_S * 1_000)})
        batch = await in_order.pop(ORDERED, bornTime=str(now_ms()), maxMsgNums="4")
        assert [one.body for one in batch] == [b"0", b"1", b"2", b"3"]
        for one in (batch[0], batch[2]):
            assert (await client.call(Request.ACK_MESSAGE, one.fields)).code == Response.SUCCESS


async def ack_together(client: RawClient, messages: list[Popped]) -> None:
    """Acknowledge in batches, one for each queue of each pop."""
    batches = defaultdict(list)
    for one in messages:
        batches[one.handle._replace(offset=0)].append(one.handle.offset)
    acks = [
        {
            "c": REMOTING, "t": TOPIC, "r": handle.mark, "so": handle.start_offset, "q": handle.queue_id,
            "rq": handle.revive_queue_id, "pt": handle.pop_ms, "it": handle.invisible_ms,
            "b": encode_bit_set([offset - handle.start_offset for offset in offsets]),
        }
        for handle, offsets in batches.items()
    ]  # fmt: skip
    assert any(len(offsets) > 1 for offsets in batches.values())
    body = encode_body({"brokerName": "broker-a", "acks": acks})
    assert (await client.call(Request.BATCH_ACK_MESSAGE, {}, body)).code == Response.SUCCESS


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def server(left: Left) -> Iterator[Server]:
    with serving(left.store, grpc=True) as server:
        yield server


def test_a_group_that_popped_gets_every_message_that_it_did_not_acknowledge(left: Left, server: Server) -> None:
    """Once each, and with its number of attempts; acknowledged ones, singly or in a batch, do not return."""
    assert asyncio.run(pop_all(server.port, left.reconsumed(REMOTING))) == left.reconsumed(REMOTING)


async def pop_all(port: int, expected: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    async with connect(port) as client:
        popper = PopClient(client, REMOTING)
        deadline_s = time.monotonic() + LATEST_S
        while len(found) < len(expected) and time.monotonic() < deadline_s:
            for one in await popper.pop(TOPIC, pollTime="1000", bornTime=str(now_ms())):
                body = one.body.decode()
                assert body not in found, "it is delivered twice"
                found[body] = one.message.reconsume_times
                assert await popper.ack(one) == "done"
        assert await popper.pop(TOPIC, pollTime="3000", bornTime=str(now_ms())) == []
    return found


def test_a_group_of_5x_clients_gets_every_message_that_it_did_not_acknowledge(
    left: Left, server: Server, tmp_path: Path
) -> None:
    expected, found = left.reconsumed(GRPC), dict[str, int]()
    client = Client5("java", tmp_path / "client.log", server.proxy)
    with client.program:
        consumer = client.simple(GRPC, TOPIC, await_s=1)
        deadline_s = time.monotonic() + LATEST_S
        while len(found) < len(expected) and time.monotonic() < deadline_s:
            messages = client.receive_once(consumer)
            client.ack(consumer, *messages)
            for message in messages:
                assert message["body"] not in found, "it is delivered twice"
                found[message["body"]] = message["attempt"] - 1
        assert client.receive_once(consumer) == []
    assert sorted(found) == sorted(expected)
    assert {body: count for body, count in found.items() if count != expected[body]} == {}


def test_a_group_that_popped_in_order_continues_with_what_it_did_not_acknowledge(left: Left, server: Server) -> None:
    assert asyncio.run(pop_in_order(server.port)) == [b"1", b"3", b"4", b"5"]


async def pop_in_order(port: int) -> list[bytes]:
    found: list[bytes] = []
    async with connect(port) as client:
        popper = PopClient(client, IN_ORDER, {"order": "true"})
        deadline_s = time.monotonic() + LATEST_S
        while len(found) < 4 and time.monotonic() < deadline_s:
            for one in await popper.pop(ORDERED, maxMsgNums="2", pollTime="1000", bornTime=str(now_ms())):
                found.append(one.body)
                assert await popper.ack(one) == "done"
    return found
