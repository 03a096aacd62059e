"""RocketMQ's recall and LaterMQ's own requests about timers, in raw frames against a broker process."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from latermq.message.properties import encode_properties
from latermq.message.recall_handle import encode_recall_handle
from latermq.model.timers import Verdict
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command
from latermq.protocol.remoting.timers import decode_outcomes, decode_page
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send, send_fields
from tests.integration.raw_client import RawClient, connect, eventually

TOPIC = "orders"
HOUR_MS = 3_600_000


async def schedule(client: RawClient, unique_key: str, *, encoding: int = JSON, **properties: str) -> str:
    """Send a timer due in an hour; its handle."""
    encoded = encode_properties({"UNIQ_KEY": unique_key, "TIMER_DELAY_MS": str(HOUR_MS), **properties})
    reply = await send(client, TOPIC, properties=encoded, encoding=encoding)
    assert reply.code == Response.SUCCESS
    return reply.text_fields()["recallHandle"]


async def recall(client: RawClient, handle: str, topic: str = TOPIC) -> Command:
    fields = {"producerGroup": "shop", "topic": topic, "recallHandle": handle, "bname": "broker-a"}
    return await client.call(Request.RECALL_MESSAGE, fields)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_handle_recalls_what_it_was_given_for(encoding: int, tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            handle = await schedule(client, "U1", encoding=encoding)
            fields = {"topic": TOPIC, "recallHandle": handle}
            for _ in range(2):
                reply = await client.call(Request.RECALL_MESSAGE, fields, encoding=encoding)
                assert (reply.code, reply.text_fields()["msgId"]) == (Response.SUCCESS, "U1")
            assert process.broker.pending.count(topic=TOPIC) == 0

    run_with_broker(tmp_path, scenario)


def test_a_recall_that_cannot_be_has_apaches_code(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            handle = await schedule(client, "U1")
            far_ms = process.broker.clock.now_ms() + HOUR_MS
            expected = [
                (await recall(client, handle, "nowhere"), Response.TOPIC_NOT_EXIST, "does not exist"),
                (await recall(client, ""), Response.ILLEGAL_OPERATION, "recall handle is invalid"),
                (await recall(client, "v1 a b c d"), Response.ILLEGAL_OPERATION, "recall handle is invalid"),
                (
                    await recall(client, encode_recall_handle("other", "broker-a", far_ms, "U1")),
                    Response.ILLEGAL_OPERATION,
                    "belongs to topic 'other'",
                ),
                (
                    await recall(client, encode_recall_handle(TOPIC, "broker-b", far_ms, "U1")),
                    Response.ILLEGAL_OPERATION,
                    "belongs to broker 'broker-b'",
                ),
                (
                    await recall(client, encode_recall_handle(TOPIC, "broker-a", far_ms, "U2")),
                    Response.ILLEGAL_OPERATION,
                    "not found",
                ),
                (
                    await recall(client, encode_recall_handle(TOPIC, "broker-a", 1, "U2")),
                    Response.ILLEGAL_OPERATION,
                    "not found. The due time in the handle has passed",
                ),
            ]
            for reply, code, remark in expected:
                assert reply.code == code
                assert remark in (reply.remark or "")
            assert process.broker.pending.count(topic=TOPIC) == 1

    run_with_broker(tmp_path, scenario)


def test_recalls_can_be_forbidden(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            handle = await schedule(client, "U1")
            assert (await recall(client, handle)).code == Response.NO_PERMISSION
            fields = {"topic": TOPIC, "uniqueKey": "U1"}
            assert (await client.call(Request.CANCEL_TIMER, fields)).code == Response.NO_PERMISSION
            status = await client.call(Request.TIMER_STATUS, fields)
            assert decode_outcomes(status.body)[0].verdict == Verdict.PENDING

    run_with_broker(tmp_path, scenario, "timer.recall=false")


def test_with_sync_flush_an_answer_comes_when_its_record_is_safe(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        log = process.broker.store.log
        async with connect(process.listener.port) as client:
            first, second = await schedule(client, "U1"), await schedule(client, "U2", KEYS="4711")
            before = log.end
            assert (await recall(client, first)).code == Response.SUCCESS
            assert before < log.end <= log.flushed
            before = log.end
            fields = {"topic": TOPIC, "key": "4711", "delayMs": "1000000"}
            [outcome] = decode_outcomes((await client.call(Request.MOVE_TIMER, fields)).body)
            assert (outcome.verdict, outcome.unique_key) == (Verdict.MOVED, "U2")
            assert before < log.end <= log.flushed
            # Nothing is written the second time, so there is nothing to wait for.
            assert (await recall(client, first)).code == Response.SUCCESS
            fields = {"topic": TOPIC, "recallHandle": second}
            [outcome] = decode_outcomes((await client.call(Request.CANCEL_TIMER, fields)).body)
            assert outcome.verdict == Verdict.CANCELLED

    run_with_broker(tmp_path, scenario, "store.flush=sync", "store.flush_every=60s")


def test_timers_can_be_cancelled_on_a_disk_that_takes_no_messages(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        broker = process.broker
        used_ratio = mock.Mock()

        def fill(used: float) -> None:
            used_ratio.return_value = used
            broker.gate.check_disk()

        with mock.patch.object(broker.store, "used_ratio", used_ratio):
            fill(0.5)
            async with connect(process.listener.port) as client:
                await cancel_while_filling(client, fill)

    async def cancel_while_filling(client: RawClient, fill: Callable[[float], None]) -> None:
        first, second = await schedule(client, "U1"), await schedule(client, "U2")
        fill(0.9)
        assert (await send(client, TOPIC)).code == Response.SERVICE_NOT_AVAILABLE
        assert (await recall(client, first)).code == Response.SUCCESS
        fill(0.97)
        assert (await recall(client, second)).code == Response.SERVICE_NOT_AVAILABLE
        fill(0.5)
        assert (await recall(client, second)).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_a_list_goes_on_where_its_last_page_ended(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for number in range(7):
                await schedule(client, f"U{number}")
            pending = process.broker.pending
            await eventually(lambda: len(pending.list(topic=TOPIC).timers) == 7, "all seven are listed")
            pages: list[list[str]] = []
            cursor = ""
            while cursor or not pages:
                fields = {"topic": TOPIC, "limit": "3", "cursor": cursor}
                page = decode_page((await client.call(Request.LIST_TIMERS, fields)).body)
                pages.append([timer.unique_key for timer in page.timers])
                cursor = page.next
            assert pages == [["U0", "U1", "U2"], ["U3", "U4", "U5"], ["U6"]]
            reply = await client.call(Request.LIST_TIMERS, {"cursor": "nonsense"})
            assert reply.code == Response.INVALID_PARAMETER

    run_with_broker(tmp_path, scenario)


def test_with_sync_flush_a_cancel_that_takes_slices_is_answered_by_a_sync_of_its_own(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for number in range(300):
                properties = encode_properties({"UNIQ_KEY": f"U{number}", "TIMER_DELAY_MS": str(HOUR_MS), "KEYS": "k"})
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields(TOPIC, properties=properties))
            for _ in range(300):
                assert (await client.receive()).code == Response.SUCCESS
            reply = await client.call(Request.CANCEL_TIMER, {"topic": TOPIC, "key": "k"})
            assert len(decode_outcomes(reply.body)) == 300
            assert process.broker.store.log.flushed == process.broker.store.log.end

    run_with_broker(tmp_path, scenario, "store.flush=sync", "store.flush_every=60s")
