"""The requests between a broker and the pipeline, over the wire: against a broker in this process, and killed ones."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec import Struct

from latermq.message.names import TIMER_TOPIC
from latermq.message.record import Message, decode_records
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline_secret import Recipient, load_secret, sign
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command
from latermq.protocol.remoting.pipeline import (
    SIGNATURE,
    BeginPipelineHeader,
    CommitIngestHeader,
    WindowReadyHeader,
    decode_state,
    signed_fields,
)
from latermq.protocol.remoting.rows import encode_rows
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send
from tests.integration.raw_client import TIMEOUT_S, RawClient, connect, eventually
from tests.support.rows import Row, batch_of
from tests.support.serving import Server, serving

HOUR_MS = 3_600_000


def port_of(process: BrokerProcess) -> int:
    return int(process.address.rpartition(":")[2])


def rows_of(now_ms: int, count: int, first: int = 0) -> list[Row]:
    return [
        Row(f"K{number}", due_ms=now_ms + HOUR_MS + number, body=b"%d" % number)
        for number in range(first, first + count)
    ]


async def state_of(client: RawClient) -> PipelineState:
    return told(await client.call(Request.PIPELINE_STATE, {}))


def told(reply: Command) -> PipelineState:
    assert reply.code == Response.SUCCESS, reply.remark
    return decode_state(reply.body)


def signed(data: Path, state: PipelineState, code: int, header: Struct) -> dict[str, str]:
    """The fields of a request as the driver of the broker with this data directory sends it."""
    fields = signed_fields(header)
    recipient = Recipient(state.store_id, state.instance)
    signature = sign(load_secret(data / "pipeline.secret"), code, recipient, fields)
    return {name: str(value) for name, value in fields.items()} | {SIGNATURE: signature}


def beginning(data: Path, state: PipelineState, after_epoch: int) -> dict[str, str]:
    header = BeginPipelineHeader(tableEnd=state.ingest_offset, afterEpoch=after_epoch)
    return signed(data, state, Request.BEGIN_PIPELINE, header)


async def begin(client: RawClient, data: Path) -> PipelineState:
    state = await state_of(client)
    return told(await client.call(Request.BEGIN_PIPELINE, beginning(data, state, state.epoch)))


async def schedule(client: RawClient, rows: Sequence[Row], encoding: int = JSON) -> Command:
    return await client.call(Request.SCHEDULE_ROWS, {"job": "tests"}, encode_rows(batch_of(rows)), encoding=encoding)


async def commit(client: RawClient, data: Path, offset: int, epoch: int) -> Command:
    header = CommitIngestHeader(offset=offset, epoch=epoch)
    fields = signed(data, await state_of(client), Request.COMMIT_INGEST, header)
    return await client.call(Request.COMMIT_INGEST, fields)


async def pull(client: RawClient, offset: int, **fields: object) -> Command:
    asked = {"topic": TIMER_TOPIC, "queueId": 0, "offset": offset, **fields}
    return await client.call(Request.PULL_RECORDS, {name: str(value) for name, value in asked.items()})


async def all_timers(client: RawClient) -> list[Message]:
    """Every flushed record of the timer topic, pulled as a driver does."""
    found: list[Message] = []
    while True:
        reply = await pull(client, len(found), maxBytes=4096)
        assert reply.code == Response.SUCCESS, reply.remark
        if not reply.body:
            return found
        found += decode_records(reply.body)
        assert int(reply.text_fields()["nextOffset"]) == len(found)


async def flushed(client: RawClient, entries: int) -> None:
    """Wait until so many entries of the timer topic are flushed."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await state_of(client)).flushed_entry < entries:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def counts(reply: Command) -> tuple[int, int]:
    assert reply.code == Response.SUCCESS, reply.remark
    fields = reply.text_fields()
    return int(fields["scheduled"]), int(fields["known"])


def test_a_driver_begins_pulls_and_commits(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            assert (await state_of(client)).epoch == 0
            begun = await begin(client, tmp_path)
            assert begun.epoch == 1
            assert begun.store_id == process.broker.store.store_id
            await schedule(client, rows_of(begun.now_ms, 300))
            process.broker.store.flush()
            found = await all_timers(client)
            assert [message.body for message in found] == [b"%d" % number for number in range(300)]
            assert [message.queue_offset for message in found] == list(range(300))
            reply = await commit(client, tmp_path, 300, begun.epoch)
            assert reply.text_fields() == {"ingestOffset": "300"}
            state = await state_of(client)
            assert (state.ingest_offset, state.min_entry, state.flushed_entry) == (300, 0, 300)

    run_with_broker(tmp_path, scenario)


def test_a_driver_that_was_followed_by_another_can_neither_pull_nor_commit(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            old = (await begin(client, tmp_path)).epoch
            new = (await begin(client, tmp_path)).epoch
            assert new == old + 1
            for reply in (await commit(client, tmp_path, 0, old), await pull(client, 0, epoch=old)):
                assert reply.code == Response.ILLEGAL_OPERATION
                assert "epoch" in (reply.remark or "")
            assert (await pull(client, 0, epoch=new)).code == Response.SUCCESS
            assert (await pull(client, 0)).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_epoch_and_ingest_offset_are_on_disk_before_they_are_told(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            begun = await begin(client, tmp_path)
            assert b'"epoch":1' in (tmp_path / "latermq.ingest").read_bytes()
            await schedule(client, rows_of(begun.now_ms, 10))
            process.broker.store.flush()
            await commit(client, tmp_path, 7, begun.epoch)
            assert b'"offset":7' in (tmp_path / "latermq.ingest").read_bytes()
            # Ones that come together are each answered with what is true then.
            state = await state_of(client)
            opaques = [
                await client.send_only(Request.BEGIN_PIPELINE, beginning(tmp_path, state, epoch)) for epoch in (1, 2, 3)
            ]
            replies = [await client.receive() for _ in opaques]
            assert [reply.opaque for reply in replies] == opaques
            assert [decode_state(reply.body).epoch for reply in replies] == [2, 3, 4]

    run_with_broker(tmp_path, scenario)


def test_pulls_that_cannot_be_answered_say_why(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            beyond = await pull(client, 5)
            assert (beyond.code, beyond.body) == (Response.QUERY_NOT_FOUND, b"")
            assert (await pull(client, 0, topic="nowhere")).code == Response.TOPIC_NOT_EXIST
            assert (await pull(client, 0, queueId=3)).code == Response.INVALID_PARAMETER
            assert (await client.call(Request.PULL_RECORDS, {"topic": "t"})).code == Response.SYSTEM_ERROR

    run_with_broker(tmp_path, scenario)


def test_records_of_any_topic_are_pulled_as_they_were_sent(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            for number in range(20):
                await send(client, "orders", b"%d" % number)
            process.broker.store.flush()
            reply = await pull(client, 5, topic="orders", untilOffset=8)
            assert [message.body for message in decode_records(reply.body)] == [b"5", b"6", b"7"]
            assert reply.text_fields() == {"nextOffset": "8", "minOffset": "0", "flushedOffset": "20"}

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_rows_are_scheduled_once_and_delivered(tmp_path: Path, encoding: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            rows = [Row(f"K{number}", delay_ms=50, body=b"%d" % number) for number in range(100)]
            assert counts(await schedule(client, rows[:60], encoding)) == (60, 0)
            assert counts(await schedule(client, rows, encoding)) == (40, 60)
            queues = [process.broker.store.queues.ensure("orders", number) for number in range(8)]
            await eventually(lambda: sum(queue.next_offset for queue in queues) >= 100, "all rows")
            assert counts(await schedule(client, rows, encoding)) == (0, 100)
            assert sum(queue.next_offset for queue in queues) == 100

    run_with_broker(tmp_path, scenario)


def test_a_bad_row_is_named_and_nothing_is_scheduled(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            now_ms = process.broker.clock.now_ms()
            rows = [*rows_of(now_ms, 10), Row("", now_ms + HOUR_MS)]
            reply = await schedule(client, rows)
            assert reply.code == Response.MESSAGE_ILLEGAL
            assert (reply.remark or "").startswith("row 10: it has no unique key")
            assert process.broker.store.queues.find(TIMER_TOPIC, 0) is None
            broken = await client.call(Request.SCHEDULE_ROWS, {"job": "tests"}, b"no rows at all")
            assert broken.code == Response.SYSTEM_ERROR
            assert counts(await schedule(client, rows[:10])) == (10, 0)

    run_with_broker(tmp_path, scenario)


def test_with_sync_flush_rows_are_answered_when_they_are_on_disk(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        log = process.broker.store.log
        now_ms = process.broker.clock.now_ms()
        async with connect(port_of(process)) as client:
            for first in range(0, 100, 10):
                assert counts(await schedule(client, rows_of(now_ms, 20, first)))[0] >= 10
                assert log.flushed == log.end

    run_with_broker(tmp_path, scenario, "store.flush=sync", "store.flush_every=1h")


def test_a_window_that_is_not_there_cannot_be_ready(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as client:
            begun = await begin(client, tmp_path)
            header = WindowReadyHeader(number=3, attempt="spark-1-ab", epoch=begun.epoch)
            fields = signed(tmp_path, begun, Request.WINDOW_READY, header)
            reply = await client.call(Request.WINDOW_READY, fields)
            assert reply.code == Response.INVALID_PARAMETER

    run_with_broker(tmp_path, scenario)


# Killed


def test_a_kill_takes_back_no_epoch_and_no_ingest_offset(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        async with connect(server.port) as client:
            begun = await begin(client, tmp_path)
            await schedule(client, rows_of(begun.now_ms, 50))
            await flushed(client, 50)
            assert (await commit(client, tmp_path, 40, begun.epoch)).code == Response.SUCCESS
            server.kill()

    async def second(server: Server) -> None:
        async with connect(server.port) as client:
            state = await state_of(client)
            assert (state.epoch, state.ingest_offset) == (1, 40)
            assert (await commit(client, tmp_path, 45, 1)).code == Response.SUCCESS  # its driver may go on
            assert (await begin(client, tmp_path)).epoch == 2

    with serving(tmp_path) as server:
        asyncio.run(first(server))
    with serving(tmp_path) as server:
        asyncio.run(second(server))


async def send_and_kill(server: Server, batches: Sequence[Sequence[Row]], answers: int) -> None:
    """Send all at once and wait for so many answers; the kill comes while the broker is at the others."""
    async with connect(server.port) as client:
        for rows in batches:
            await client.send_only(Request.SCHEDULE_ROWS, {"job": "tests"}, encode_rows(batch_of(rows)))
        for _ in range(answers):
            counts(await client.receive())
        server.kill()


async def send_all(server: Server, batches: Sequence[Sequence[Row]]) -> tuple[list[tuple[int, int]], list[Message]]:
    """What became of each batch, and all timers that there are then."""
    async with connect(server.port) as client:
        done = [counts(await schedule(client, rows)) for rows in batches]
        await flushed(client, sum(map(len, batches)))
        return done, await all_timers(client)


def test_rows_sent_again_after_a_kill_before_their_answer_are_there_once(tmp_path: Path) -> None:
    chance = Random(7)
    rows = rows_of(round(time.time() * 1000), 12_000)
    batches = [rows[start : start + 500] for start in range(0, len(rows), 500)]
    for answers in (chance.randrange(1, 6), chance.randrange(6, 20)):
        with serving(tmp_path) as server:
            asyncio.run(send_and_kill(server, batches, answers))
    with serving(tmp_path) as server:
        done, found = asyncio.run(send_all(server, batches))
    assert all(scheduled + known == 500 for scheduled, known in done)
    assert all(known == 500 for _, known in done[:answers])
    assert [message.properties["UNIQ_KEY"] for message in found] == [row.key for row in rows]
