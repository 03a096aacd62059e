"""Transactions over sockets: sends, ends, checks to connected producers, and permissions."""

import asyncio
from pathlib import Path

import pytest

from latermq.errors import NoPermission
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import HALF_TOPIC, TRANSACTION_CHECK_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import decode_record
from latermq.protocol.remoting.clients import HeartbeatData, ProducerData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, JSON, Command, encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.transactions import EndTransactionHeader
from latermq.server.broker.process import BrokerProcess
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from tests.integration.brokers import run_with_broker, running_broker, send, send_fields
from tests.integration.raw_client import RawClient, connect, eventually
from tests.support.brokers_in_memory import bodies

GROUP = "producers"
COMMIT, ROLL_BACK, UNKNOWN = "8", "12", "0"
FAST = ("transaction.check_after=50ms", "transaction.check_every=100ms", "transaction.checks=3")


async def send_half(
    client: RawClient, body: bytes, key: str, encoding: int = JSON, **properties: str
) -> dict[str, str]:
    known = {"UNIQ_KEY": key, "PGROUP": GROUP, "TRAN_MSG": "true"} | properties
    reply = await send(client, "orders", body, properties=encode_properties(known), encoding=encoding, f="4")
    assert reply.code == Response.SUCCESS
    return reply.text_fields()


def end_fields(sent: dict[str, str], decision: str, **changes: str) -> dict[str, str]:
    fields = {
        "producerGroup": GROUP, "tranStateTableOffset": sent["queueOffset"], "topic": "orders",
        "commitLogOffset": str(int(sent["msgId"][-16:], 16)), "commitOrRollback": decision, "msgId": "any",
    }  # fmt: skip
    return fields | changes


async def heartbeat(client: RawClient, group: str = GROUP) -> None:
    beat = HeartbeatData(clientID="client", producerDataSet=[ProducerData(groupName=group)], consumerDataSet=[])
    assert (await client.call(Request.HEART_BEAT, body=encode_body(beat))).code == Response.SUCCESS


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_half_is_answered_as_by_rocketmq_and_ends_by_its_offsets(tmp_path: Path, encoding: int) -> None:
    async def scenario(process: BrokerProcess) -> None:
        broker = process.broker
        async with connect(process.listener.port) as client:
            await send(client, "orders", b"plain")
            sent = await send_half(client, b"one", "k1", encoding)
            assert sent["transactionId"] == "k1"
            assert sent["queueOffset"] == "0"
            assert bodies(broker) == [b"plain"]
            for _ in range(2):
                reply = await client.call(Request.END_TRANSACTION, end_fields(sent, COMMIT), encoding=encoding)
                assert reply.code == Response.SUCCESS
            reply = await client.call(Request.END_TRANSACTION, end_fields(sent, ROLL_BACK), encoding=encoding)
            assert (reply.code, "it was committed" in str(reply.remark)) == (604, True)
            assert bodies(broker) == [b"plain", b"one"]

    run_with_broker(tmp_path, scenario)


def test_the_long_form_of_a_send_stores_halves_and_batches_refuse_them(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            properties = encode_properties({"UNIQ_KEY": "k", "PGROUP": GROUP, "TRAN_MSG": "True"})
            fields = {"topic": "orders", "queueId": "0", "properties": properties, "defaultTopicQueueNums": "4"}
            reply = await client.call(Request.SEND_MESSAGE, fields, b"one")
            assert reply.text_fields()["transactionId"] == "k"
            assert bodies(process.broker, HALF_TOPIC) == [b"one"]
            batch = encode_batch([BatchMember(0, b"x", properties.encode())])
            for flag in "04":
                reply = await client.call(Request.SEND_MESSAGE_V2, send_fields("orders", m="true", f=flag), batch)
                assert reply.code in (Response.MESSAGE_ILLEGAL, Response.NO_PERMISSION)
            assert bodies(process.broker) == []

    run_with_broker(tmp_path, scenario)


def test_a_transaction_ends_by_its_key_alone(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send_half(client, b"one", "k1")
            fields = {"producerGroup": GROUP, "commitOrRollback": COMMIT, "transactionId": "k1", "topic": "orders"}
            for changes, code in (
                ({"producerGroup": "others"}, 1),
                ({"topic": "bills"}, 1),
                ({"transactionId": "k2"}, 1),
                ({"transactionId": ""}, 1),
                ({"commitLogOffset": "0"}, 1),
                ({"commitOrRollback": "7"}, 1),
                ({"commitOrRollback": UNKNOWN}, 0),
                ({}, 0),
                ({}, 0),
                ({"commitOrRollback": ROLL_BACK}, 604),
            ):
                reply = await client.call(Request.END_TRANSACTION, fields | changes)
                assert reply.code == code, (changes, reply.remark)
            assert bodies(process.broker) == [b"one"]

    run_with_broker(tmp_path, scenario)


def test_runs_of_sends_with_halves_among_them_keep_their_order(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await send(client, "orders", b"first")
            frames = []
            for number in range(40):
                known = {"UNIQ_KEY": f"k{number}", "PGROUP": GROUP}
                known |= {"TRAN_MSG": "true"} if number % 4 == 0 else {}
                flag = "4" if number % 8 == 0 else "0"  # the property alone decides, as in RocketMQ
                fields = send_fields("orders", properties=encode_properties(known), f=flag)
                frames.append(encode_frame(Request.SEND_MESSAGE_V2, 100 + number, fields=fields, body=b"%d" % number))
            await client.send(b"".join(frames))
            replies = [await client.receive() for _ in range(40)]
            assert [reply.opaque for reply in replies] == [100 + number for number in range(40)]
            assert {reply.code for reply in replies} == {0}
            broker = process.broker
            assert bodies(broker, HALF_TOPIC) == [b"%d" % number for number in range(0, 40, 4)]
            assert bodies(broker) == [b"first"] + [b"%d" % number for number in range(40) if number % 4]

    run_with_broker(tmp_path, scenario)


def test_a_producer_is_asked_over_its_connection_and_its_answer_ends_the_transaction(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client, connect(process.listener.port) as other:
            await heartbeat(other, "others")
            sent = await send_half(client, b"one", "k1")
            await asyncio.sleep(0.15)  # the check is due, but nobody is connected
            await heartbeat(client)
            check = await client.receive()
            assert (check.code, check.flag) == (Request.CHECK_TRANSACTION_STATE, FLAG_ONEWAY)
            fields = check.text_fields()
            assert (fields["tranStateTableOffset"], fields["transactionId"]) == ("0", "k1")
            assert fields["offsetMsgId"] == sent["msgId"]
            record = decode_record(check.body)
            assert (record.topic, record.body) == ("orders", b"one")
            end = end_fields(sent, COMMIT, fromTransactionCheck="true", topic=HALF_TOPIC)
            await client.send(encode_frame(Request.END_TRANSACTION, 5, flag=FLAG_ONEWAY, fields=end))
            await eventually(lambda: bodies(process.broker) == [b"one"], "the commit")

    run_with_broker(tmp_path, scenario, *FAST)


def test_a_transaction_without_an_answer_is_given_up_into_a_topic_that_operators_read(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            await heartbeat(client)
            sent = await send_half(client, b"one", "k1")
            codes = [(await client.receive()).code for _ in range(3)]
            assert codes == [Request.CHECK_TRANSACTION_STATE] * 3
            broker = process.broker
            await eventually(lambda: bodies(broker, TRANSACTION_CHECK_TOPIC) == [b"one"], "it is given up")
            reply = await client.call(Request.END_TRANSACTION, end_fields(sent, COMMIT))
            assert (reply.code, "TRANS_CHECK_MAX_TIME_TOPIC" in str(reply.remark)) == (604, True)
            assert TRANSACTION_CHECK_TOPIC in broker.topics.names()
            assert bodies(broker) == []

    run_with_broker(tmp_path, scenario, *FAST)


def test_the_topic_of_the_half_decides_whether_its_end_is_permitted(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        def no_orders(_: Connection, endpoint: Endpoint, command: Command, content: EndTransactionHeader) -> None:
            if any(access.name == "orders" for access in endpoint.accesses(command, content)):
                raise NoPermission("not for you")

        async with connect(process.listener.port) as client:
            sent = await send_half(client, b"one", "k1")
            process.service.table.authorize = no_orders
            for fields in (
                end_fields(sent, COMMIT, topic="bills"),
                end_fields(sent, COMMIT, topic=""),
                {"producerGroup": GROUP, "commitOrRollback": COMMIT, "transactionId": "k1"},
            ):
                assert (await client.call(Request.END_TRANSACTION, fields)).code == Response.NO_PERMISSION
            process.service.table.authorize = None
            assert (await client.call(Request.END_TRANSACTION, end_fields(sent, COMMIT))).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_transactions_survive_a_restart(tmp_path: Path, flush: str) -> None:
    async def main() -> None:
        settings = (f"store.flush={flush}",)
        async with running_broker(tmp_path, *settings) as process, connect(process.listener.port) as client:
            sent = [await send_half(client, b"%d" % number, f"k{number}") for number in range(3)]
            assert (await client.call(Request.END_TRANSACTION, end_fields(sent[0], COMMIT))).code == 0
        async with running_broker(tmp_path, *settings) as process, connect(process.listener.port) as client:
            assert len(process.broker.open_halves) == 2
            assert (await client.call(Request.END_TRANSACTION, end_fields(sent[0], COMMIT))).code == 0
            assert (await client.call(Request.END_TRANSACTION, end_fields(sent[1], COMMIT))).code == 0
            assert bodies(process.broker) == [b"0", b"1"]

    asyncio.run(main())
