"""The broker over real sockets, request by request, in frames made here."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import MAX_TOPIC_CHARS
from latermq.protocol.remoting.clients import LockBatchRequest
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, JSON, encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import (
    heartbeat,
    ids,
    pull,
    pull_fields,
    run_with_broker,
    running_broker,
    send,
    send_fields,
)
from tests.integration.raw_client import connect, eventually
from tests.support.brokers_in_memory import STAMP


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_message_is_sent_and_pulled_in_both_header_encodings(tmp_path: Path, encoding: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await send(
                client, "orders", b"hello", encoding=encoding, properties="TAGS\x01red\x02KEYS\x01k1\x02"
            )
            fields = reply.text_fields()
            assert (reply.code, fields["queueId"], fields["queueOffset"]) == (Response.SUCCESS, "0", "0")
            answer = await client.call(Request.PULL_MESSAGE, pull_fields("orders", 0), encoding=encoding)
            assert answer.text_fields() == {
                "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1",
            }  # fmt: skip
            _, [message] = await pull(client, "orders")
            assert (message.body, message.properties) == (b"hello", {"TAGS": "red", "KEYS": "k1", **STAMP})
            assert message.message_id == fields["msgId"]

    run_with_broker(tmp_path, scenario)


def test_a_sender_cannot_name_the_cluster_that_took_its_message(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for properties in ("CLUSTER\x01elsewhere\x02", "a\x01b\x02TRACE_ON\x01false"):
                await send(client, "orders", properties=properties)
            _, [first, second] = await pull(client, "orders")
            assert (first.properties, second.properties) == (STAMP, {"a": "b", **STAMP})

    run_with_broker(tmp_path, scenario)


def test_the_long_names_of_send_message_work_as_well(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            fields = {
                "producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                "queueId": "2", "sysFlag": "0", "bornTimestamp": "5", "flag": "7", "properties": "a\x01b\x02",
            }  # fmt: skip
            reply = await client.call(Request.SEND_MESSAGE, fields, b"x")
            assert reply.code == Response.SUCCESS
            _, [message] = await pull(client, "orders", queueId="2")
            assert (message.flag, message.born_timestamp_ms, message.properties) == (7, 5, {"a": "b", **STAMP})

    run_with_broker(tmp_path, scenario)


def test_a_one_way_send_is_stored_and_never_answered(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send(client, "orders")
            frame = encode_frame(Request.SEND_MESSAGE_V2, 77, flag=FLAG_ONEWAY, fields=send_fields("orders"), body=b"x")
            await client.send(frame)
            bad = encode_frame(Request.SEND_MESSAGE_V2, 78, flag=FLAG_ONEWAY, fields=send_fields("no good"), body=b"x")
            await client.send(bad)
            _, messages = await pull(client, "orders")
            assert [message.body for message in messages] == [b"body", b"x"]

    run_with_broker(tmp_path, scenario)


def test_a_batch_is_stored_in_order_and_answers_all_ids(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send(client, "orders")
            members = [BatchMember(0, b"body %d" % number, b"KEYS\x01k%d\x02" % number) for number in range(5)]
            reply = await client.call(
                Request.SEND_BATCH_MESSAGE, send_fields("orders", m="true"), encode_batch(members)
            )
            fields = reply.text_fields()
            assert fields["queueOffset"] == "1"
            _, messages = await pull(client, "orders", 1)
            assert [message.body for message in messages] == [member.body for member in members]
            assert fields["msgId"].split(",") == [message.message_id for message in messages]

    run_with_broker(tmp_path, scenario)


def test_a_batch_with_one_bad_member_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            members = [BatchMember(0, b"good", b""), BatchMember(0, b"bad", b"a\x01\0\x02")]
            for body in (encode_batch(members), encode_batch(members[:1])[:-1], b"", b"garbage" * 9):
                reply = await client.call(Request.SEND_BATCH_MESSAGE, send_fields("orders"), body)
                assert reply.code == Response.MESSAGE_ILLEGAL, reply.remark
            assert "message 1 of the batch" in ((await client.call(
                Request.SEND_BATCH_MESSAGE, send_fields("orders"), encode_batch(members))).remark or "")  # fmt: skip
            reply, messages = await pull(client, "orders")
            assert messages == []

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize(
    ("topic", "body", "properties", "changes", "code"),
    [
        ("orders", b"x" * (4 * 1024 * 1024 + 1), "", {}, Response.MESSAGE_ILLEGAL),
        ("no spaces", b"x", "", {}, Response.MESSAGE_ILLEGAL),
        ("", b"x", "", {}, Response.MESSAGE_ILLEGAL),
        ("t" * (MAX_TOPIC_CHARS + 1), b"x", "", {}, Response.MESSAGE_ILLEGAL),
        ("SCHEDULE_TOPIC_XXXX", b"x", "", {}, Response.NO_PERMISSION),
        ("rmq_sys_wheel_timer", b"x", "", {}, Response.NO_PERMISSION),
        ("orders", b"x", "k\x01" + "v" * 32_767 + "\x02", {}, Response.MESSAGE_ILLEGAL),
        ("orders", b"x", "k\x01a\0b\x02", {}, Response.MESSAGE_ILLEGAL),
        ("orders", b"x", "DELAY\x01soon\x02", {}, Response.MESSAGE_ILLEGAL),
        ("orders", b"x", "DELAY\x01-1\x02", {}, Response.MESSAGE_ILLEGAL),
        ("orders", b"x", "TIMER_DELIVER_MS\x019999999999999\x02", {}, Response.MESSAGE_ILLEGAL),
        ("orders", b"x", "KEYS\x01k\x02", {"f": "4"}, Response.MESSAGE_ILLEGAL),  # a half without TRAN_MSG
        ("orders", b"x", "TRAN_MSG\x01true\x02", {"f": "8"}, Response.MESSAGE_ILLEGAL),  # already committed
        ("orders", b"x", "", {"e": "99"}, Response.INVALID_PARAMETER),
        ("orders", b"x", "", {"e": "many"}, Response.SYSTEM_ERROR),
        ("orders", b"x", "", {"h": str(1 << 40)}, Response.SYSTEM_ERROR),
    ],
)
def test_a_bad_message_is_refused_with_its_code_and_a_remark(
    tmp_path: Path, topic: str, body: bytes, properties: str, changes: dict[str, str], code: int
) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            end = process.broker.store.log.end
            reply = await client.call(
                Request.SEND_MESSAGE_V2, send_fields(topic, properties=properties) | changes, body
            )
            assert (reply.code, bool(reply.remark)) == (code, True)
            assert process.broker.store.log.end == end
            assert (await send(client, "orders")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_words_that_only_look_like_a_delay_are_no_delay(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await send(client, "orders", properties="MODEL\x01DELAY\x02DELIVERY\x01today\x02")
            assert reply.code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_the_broker_chooses_a_queue_for_who_does_not(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            chosen = [(await send(client, "orders", queue_id=-1)).text_fields()["queueId"] for _ in range(8)]
            assert sorted(chosen) == sorted("01230123")

    run_with_broker(tmp_path, scenario)


def test_without_auto_creation_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await send(client, "orders")).code == Response.TOPIC_NOT_EXIST

    run_with_broker(tmp_path, scenario, "broker.auto_create_topics=false")


def test_a_pull_of_nothing_waits_and_is_answered_by_the_next_message(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as reader, connect(process.listener.port) as writer:
            await send(writer, "orders", b"first")
            fields = pull_fields("orders", 1, sysFlag="6", suspendTimeoutMillis="15000")
            await reader.send_only(Request.PULL_MESSAGE, fields)
            await eventually(lambda: process.broker.waiting.statistics()["waiting_pulls"] == 1, "a pull waits")
            await send(writer, "orders", b"elsewhere", queue_id=1)
            assert process.broker.waiting.statistics()["waiting_pulls"] == 1
            await send(writer, "orders", b"second")
            reply = await reader.receive()
            assert (reply.code, reply.text_fields()["nextBeginOffset"]) == (Response.SUCCESS, "2")
            assert b"second" in reply.body

    run_with_broker(tmp_path, scenario)


def test_a_waiting_pull_is_answered_when_its_time_is_up(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send(client, "orders")
            reply, _ = await pull(client, "orders", 1, sysFlag="6", suspendTimeoutMillis="200")
            assert reply.code == Response.PULL_NOT_FOUND

    run_with_broker(tmp_path, scenario)


def test_a_waiting_pull_sleeps_through_what_its_filter_drops(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as reader, connect(process.listener.port) as writer:
            await send(writer, "orders", properties="TAGS\x01red\x02")
            wanted = {"subscription": "blue || green", "sysFlag": "6", "suspendTimeoutMillis": "15000"}
            await reader.send_only(Request.PULL_MESSAGE, pull_fields("orders", 0, **wanted))
            await eventually(lambda: process.broker.waiting.statistics()["waiting_pulls"] == 1, "a pull waits")
            for _ in range(3):
                await send(writer, "orders", properties="TAGS\x01red\x02")
            assert process.broker.waiting.statistics()["waiting_pulls"] == 1
            await send(writer, "orders", b"wanted", properties="TAGS\x01green\x02")
            reply = await reader.receive()
            assert (reply.code, reply.text_fields()["nextBeginOffset"]) == (Response.SUCCESS, "5")
            assert b"wanted" in reply.body

    run_with_broker(tmp_path, scenario)


def test_tags_that_share_a_code_are_told_apart_by_the_record(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            # "Aa" and "BB" have the same hash code in Java.
            await send(client, "orders", b"one", properties="TAGS\x01Aa\x02")
            await send(client, "orders", b"two", properties="TAGS\x01BB\x02")
            _, messages = await pull(client, "orders", subscription="BB")
            assert [message.body for message in messages] == [b"two"]

    run_with_broker(tmp_path, scenario)


def test_sql_filters_see_the_properties(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for price in (5, 50, 500):
                await send(client, "orders", b"%d" % price, properties=f"price\x01{price}\x02")
            sql = {"expressionType": "SQL92", "subscription": "price BETWEEN 10 AND 1000"}
            _, messages = await pull(client, "orders", **sql)
            assert [message.body for message in messages] == [b"50", b"500"]
            reply, _ = await pull(client, "orders", expressionType="SQL92", subscription="price >")
            assert reply.code == Response.SUBSCRIPTION_PARSE_FAILED

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [(0, Response.SUCCESS, 3), (3, Response.PULL_NOT_FOUND, 3), (4, Response.PULL_OFFSET_MOVED, 3),
     (99, Response.PULL_OFFSET_MOVED, 3), (-1, Response.PULL_OFFSET_MOVED, 0)],
)  # fmt: skip
def test_offsets_outside_the_queue_are_set_right(tmp_path: Path, offset: int, code: int, next_offset: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for _ in range(3):
                await send(client, "orders")
            reply, _ = await pull(client, "orders", offset)
            assert (reply.code, reply.text_fields()["nextBeginOffset"]) == (code, str(next_offset))

    run_with_broker(tmp_path, scenario)


def test_a_pull_returns_no_more_than_its_limits(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for _ in range(40):
                await send(client, "orders", b"x" * 10_000)
            assert len((await pull(client, "orders", maxMsgNums="7"))[1]) == 7
            assert len((await pull(client, "orders", maxMsgNums="1000"))[1]) == 25
            assert len((await pull(client, "orders", maxMsgBytes="31000"))[1]) == 3

    run_with_broker(tmp_path, scenario)


def test_offsets_are_committed_and_kept_over_a_restart(tmp_path: Path) -> None:
    offset = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}

    async def first(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            for _ in range(5):
                await send(client, "orders")
            assert (await client.call(Request.QUERY_CONSUMER_OFFSET, offset)).text_fields() == {"offset": "0"}
            none = await client.call(Request.QUERY_CONSUMER_OFFSET, offset | {"setZeroIfNotFound": "false"})
            assert none.code == Response.QUERY_NOT_FOUND
            await client.call(Request.UPDATE_CONSUMER_OFFSET, offset | {"commitOffset": "3"})
            await pull(client, "orders", 4, sysFlag="5", commitOffset="4", group="others")

    async def second(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await client.call(Request.QUERY_CONSUMER_OFFSET, offset)).text_fields() == {"offset": "3"}
            others = offset | {"consumerGroup": "others"}
            assert (await client.call(Request.QUERY_CONSUMER_OFFSET, others)).text_fields() == {"offset": "4"}

    run_with_broker(tmp_path, first)
    run_with_broker(tmp_path, second)


def test_members_are_told_when_their_group_changes(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        group = {"consumerGroup": "readers"}
        async with connect(port) as first:
            assert (await first.call(Request.GET_CONSUMER_LIST_BY_GROUP, group)).code != Response.SUCCESS
            await heartbeat(first, "client-1", "readers", "orders")
            async with connect(port) as second:
                await heartbeat(second, "client-2", "readers", "orders")
                told = await first.receive()
                assert (told.code, told.text_fields()) == (Request.NOTIFY_CONSUMER_IDS_CHANGED, group)
                members = await first.call(Request.GET_CONSUMER_LIST_BY_GROUP, group)
                assert sorted(ids(members)) == ["client-1", "client-2"]
                await second.call(Request.UNREGISTER_CLIENT, {"clientID": "client-2", "consumerGroup": "readers"})
                assert (await first.receive()).code == Request.NOTIFY_CONSUMER_IDS_CHANGED
                await heartbeat(second, "client-2", "readers", "orders")
                assert (await first.receive()).code == Request.NOTIFY_CONSUMER_IDS_CHANGED
            # The connection is gone without a word.
            assert (await first.receive()).code == Request.NOTIFY_CONSUMER_IDS_CHANGED
            assert ids(await first.call(Request.GET_CONSUMER_LIST_BY_GROUP, group)) == ["client-1"]
        assert process.broker.topics.find("%RETRY%readers") is not None

    run_with_broker(tmp_path, scenario)


def test_one_client_holds_the_lock_of_a_queue(tmp_path: Path) -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2)]

    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:

            async def lock(client_id: str, code: int = Request.LOCK_BATCH_MQ) -> int:
                request = LockBatchRequest(consumerGroup="readers", clientId=client_id, mqSet=queues)
                reply = await client.call(code, body=encode_body(request))
                return len(msgspec.json.decode(reply.body)["lockOKMQSet"]) if reply.body else 0

            assert await lock("one") == 0  # of a topic that does not exist
            await send(client, "orders")
            assert await lock("one") == 2
            assert await lock("two") == 0
            assert await lock("one") == 2
            await lock("two", Request.UNLOCK_BATCH_MQ)
            assert await lock("two") == 0
            await lock("one", Request.UNLOCK_BATCH_MQ)
            assert await lock("two") == 2

    run_with_broker(tmp_path, scenario)


def test_with_sync_flush_an_answer_waits_for_its_sync_and_one_sync_serves_many(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        store = process.broker.store
        gate = threading.Event()
        flushes = 0
        flush = store.log.flush

        def slow_flush() -> int:
            nonlocal flushes
            gate.wait(10)
            flushes += 1
            return flush()

        store.log.flush = slow_flush  # type: ignore[method-assign]
        try:
            async with connect(process.listener.port) as client:
                for _ in range(50):
                    await client.send_only(Request.SEND_MESSAGE_V2, send_fields("orders"), b"x")
                await eventually(lambda: process.broker.traffic.messages_in == 50, "all are stored")
                waiting = asyncio.create_task(client.receive())
                done, _ = await asyncio.wait([waiting], timeout=0.2)
                assert not done
                gate.set()
                replies = [await waiting] + [await client.receive() for _ in range(49)]
                assert {reply.code for reply in replies} == {Response.SUCCESS}
                assert store.log.flushed == store.log.end
                assert flushes <= 4
        finally:
            gate.set()
            store.log.flush = flush  # type: ignore[method-assign]

    run_with_broker(tmp_path, scenario, "store.flush=sync", "store.flush_every=10s")


def test_a_full_disk_refuses_messages_but_serves_pulls(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send(client, "orders", b"before")
            process.broker.store.used_ratio = lambda: 0.86  # type: ignore[method-assign]
            process.broker.gate.check_disk()
            refused = await send(client, "orders")
            assert refused.code == Response.SERVICE_NOT_AVAILABLE
            assert "86%" in (refused.remark or "")
            assert len((await pull(client, "orders"))[1]) == 1
            process.broker.store.used_ratio = lambda: 0.5  # type: ignore[method-assign]
            process.broker.gate.check_disk()
            assert (await send(client, "orders")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_stopping_answers_waiting_pulls_and_keeps_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as process:
            async with connect(process.listener.port) as client:
                await send(client, "orders")
                fields = pull_fields("orders", 1, sysFlag="6", suspendTimeoutMillis="30000")
                await client.send_only(Request.PULL_MESSAGE, fields)
                await eventually(lambda: process.broker.waiting.statistics()["waiting_pulls"] == 1, "a pull waits")
                stopping = asyncio.create_task(process.stop())
                assert (await client.receive()).code == Response.PULL_NOT_FOUND
                await stopping
            process.stop = _nothing  # type: ignore[method-assign]
        async with running_broker(tmp_path) as process, connect(process.listener.port) as client:
            assert not process.broker.store.recovery.crashed
            assert len((await pull(client, "orders"))[1]) == 1

    asyncio.run(main())


async def _nothing() -> None:
    """Stopped already."""


def test_a_checkpoint_is_made_as_soon_as_the_log_has_grown_enough(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        store = process.broker.store
        async with connect(process.listener.port) as client:
            for _ in range(4):
                assert (await send(client, "orders", b"x" * 20_000)).code == Response.SUCCESS
            await eventually(lambda: store.checkpoint_offset == store.log.end, "a checkpoint")
            # Less than that waits for the next one by time.
            safe = store.checkpoint_offset
            assert (await send(client, "orders", b"x" * 20_000)).code == Response.SUCCESS
            await asyncio.sleep(1.5)
            assert store.checkpoint_offset == safe

    run_with_broker(tmp_path, scenario, "store.checkpoint_every=1h", "store.checkpoint_after=64KiB")
