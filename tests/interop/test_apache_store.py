"""A store of Apache RocketMQ 5.5.0 that LaterMQ opens: its open transactions continue."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.message.properties import encode_properties
from latermq.message.record import decode_record
from latermq.protocol.remoting.clients import HeartbeatData, ProducerData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from tests.integration.brokers import pull, send_fields
from tests.integration.raw_client import RawClient, connect
from tests.interop.peer import apache_peer
from tests.support.serving import serving

PRODUCERS, TOPIC = "producers", "orders"
COMMIT, ROLL_BACK = "8", "12"
# Halves are checked before the store changes hands. Apache's broker notes ends after up to 3 s, and must not check a
# half that has ended: it would store it again, as an open one.
PEER = {"transactionTimeOut": "6000", "transactionCheckInterval": "3000"}
SETTINGS = ("transaction.check_after=2s", "transaction.check_every=2s")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Left"]:
    """The store that Apache's broker leaves behind, and what its clients were told."""
    left = Left()
    with apache_peer(tmp_path_factory.mktemp("apache"), PEER, heap="512m") as peer:
        asyncio.run(left.fill(peer.broker_port))
        peer.stop_broker()
        left.store = peer.store
        yield left


class Left:
    store: Path

    async def fill(self, port: int) -> None:
        # Checks come on the connection that sent the heartbeat, so replies are awaited on another.
        async with connect(port) as checked, connect(port) as client:
            await beat(checked)
            await self._transactions(client, checked)
            await send_half(client, b"open 3")  # which is not checked before the broker stops

    async def _transactions(self, client: RawClient, checked: RawClient) -> None:
        for body, decision in ((b"committed", COMMIT), (b"rolled back", ROLL_BACK)):
            fields = end_fields(await send_half(client, body), decision)
            assert (await client.call(Request.END_TRANSACTION, fields)).code == Response.SUCCESS
        awaited = {b"open 1", b"open 2"}
        for body in sorted(awaited):
            await send_half(client, body)
        while awaited:
            command = await checked.receive()
            assert command.code == Request.CHECK_TRANSACTION_STATE
            awaited.discard(decode_record(command.body).body)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def beat(client: RawClient) -> None:
    data = HeartbeatData(clientID="client", producerDataSet=[ProducerData(groupName=PRODUCERS)], consumerDataSet=[])
    assert (await client.call(Request.HEART_BEAT, body=encode_body(data))).code == Response.SUCCESS


def half_request(body: bytes) -> tuple[dict[str, str], bytes]:
    known = {"UNIQ_KEY": body.decode().replace(" ", "-"), "PGROUP": PRODUCERS, "TRAN_MSG": "true"}
    return send_fields(TOPIC, properties=encode_properties(known), f="4", g=str(now_ms())), body


async def send_half(client: RawClient, body: bytes) -> Command:
    reply = await client.call(Request.SEND_MESSAGE_V2, *half_request(body))
    assert reply.code == Response.SUCCESS
    return reply


def end_fields(sent: Command, decision: str) -> dict[str, str]:
    fields = sent.text_fields()
    return {
        "producerGroup": PRODUCERS, "tranStateTableOffset": fields["queueOffset"], "topic": TOPIC,
        "commitLogOffset": str(int(fields["msgId"][-16:], 16)), "commitOrRollback": decision,
        "fromTransactionCheck": "false", "msgId": "any", "transactionId": fields.get("transactionId", ""),
    }  # fmt: skip


def test_open_halves_are_checked_and_end_as_their_producer_decides(left: Left) -> None:
    """Also those that Apache's broker has checked, which it stores again at each check."""
    options = [option for setting in SETTINGS for option in ("--set", setting)]
    with serving(left.store, *options) as server:
        asyncio.run(decide(server.port))


async def decide(port: int) -> None:
    decisions = {b"open 1": COMMIT, b"open 2": ROLL_BACK, b"open 3": COMMIT}
    async with connect(port) as checked, connect(port) as client:
        await beat(checked)
        left = dict(decisions)
        while left:
            check = await checked.receive()
            assert check.code == Request.CHECK_TRANSACTION_STATE
            body = decode_record(check.body).body
            assert body in decisions, "it has ended"
            if body in left:
                fields = check.text_fields()
                answer = {name: fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "transactionId")}
                answer |= {"producerGroup": PRODUCERS, "commitOrRollback": left.pop(body), "msgId": fields["msgId"]}
                assert (await client.call(Request.END_TRANSACTION, answer)).code == Response.SUCCESS
        stored: list[bytes] = []
        for queue_id in range(4):
            _, messages = await pull(client, TOPIC, 0, queueId=str(queue_id))
            stored += [message.body for message in messages]
        assert sorted(stored) == [b"committed", b"open 1", b"open 3"]
