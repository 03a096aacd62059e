"""POP consumption over real sockets."""

import asyncio
import time
from pathlib import Path

from latermq.group.pop.handles import encode_bit_set
from latermq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, running_broker, send
from tests.integration.pop_client import PopClient, Popped, pop_fields, read_reply
from tests.integration.raw_client import connect

SOON = "200"  # an invisible time in milliseconds


def port_of(process: BrokerProcess) -> int:
    return int(process.address.rpartition(":")[2])


async def until_waiting(process: BrokerProcess, pops: int) -> None:
    while process.broker.waiting_pops.statistics()["waiting_pops"] < pops:  # noqa: ASYNC110 -- a pop has no event
        await asyncio.sleep(0.01)


def test_a_popped_message_is_acknowledged_and_never_comes_back(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            for number in range(5):
                await send(raw, "orders", b"%d" % number, queue_id=number % 4)
            popped = await client.pop("orders", invisibleTime=SOON)
            assert sorted(one.body for one in popped) == [b"0", b"1", b"2", b"3", b"4"]
            assert await client.pop("orders") == []
            assert [await client.ack(one) for one in popped] == ["done"] * 5
            assert await client.ack(popped[0]) == "repeated"
            assert process.broker.in_flight.held == 0, "nothing is left that could come back"
            assert await client.pop("orders") == []

    run_with_broker(tmp_path, scenario)


def test_a_message_comes_back_after_its_invisible_time_with_one_more_attempt(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"one", properties="KEYS\x01k\x02")
            began_s = time.monotonic()
            (first,) = await client.pop("orders", invisibleTime="300")
            (again,) = await client.pop("orders", pollTime="5000")
            assert 0.3 <= time.monotonic() - began_s < 2
            assert (again.body, again.message.reconsume_times, again.message.topic) == (b"one", 1, "orders")
            assert again.message.properties["KEYS"] == "k"
            assert again.handle.mark == "1"
            assert await client.ack(first) == "stale"
            assert await client.ack(again) == "done"
            assert await client.pop("orders") == []

    run_with_broker(tmp_path, scenario)


def test_a_message_whose_properties_have_no_room_for_a_handle_comes_back_readable(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"short", properties="fill\x01x\x02")
            (short,) = await client.pop("orders")
            for spare_bytes in (0, 1, 90, 300):
                fill = "x" * (1 + MAX_PROPERTIES_BYTES - properties_bytes(short) - spare_bytes)
                await send(raw, "orders", b"full", properties=f"fill\x01{fill}\x02")
                (first,) = await client.pop("orders", invisibleTime="100")
                assert properties_bytes(first) == MAX_PROPERTIES_BYTES - spare_bytes
                (again,) = await client.pop("orders", pollTime="5000")
                assert properties_bytes(again) <= MAX_PROPERTIES_BYTES
                assert (again.body, again.message.properties["fill"]) == (b"full", fill)
                assert (again.message.reconsume_times, again.handle.mark) == (1, "1")
                assert await client.ack(again) == "done"

    run_with_broker(tmp_path, scenario)


def properties_bytes(popped: Popped) -> int:
    return len(encode_properties(popped.message.properties).encode())


def test_a_changed_invisible_time_gives_a_new_handle(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"one")
            (first,) = await client.pop("orders")
            reply = await client.change(first, 100)
            assert reply.code == Response.SUCCESS
            assert int(reply.text_fields()["popTime"]) > first.handle.pop_ms
            refused = await client.change(first, 100)
            assert (refused.code, refused.text_fields()["outcome"]) == (Response.NO_MESSAGE, "stale")
            (again,) = await client.pop("orders", pollTime="5000")
            assert again.message.reconsume_times == 1

    run_with_broker(tmp_path, scenario)


def test_a_waiting_pop_gets_a_message_at_once_and_only_one_of_them_does(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = port_of(process)
        async with connect(port) as first, connect(port) as second, connect(port) as sender:
            await send(sender, "orders", b"zero")
            assert len(await PopClient(first).pop("orders")) == 1
            for client in (first, second):
                await client.send_only(Request.POP_MESSAGE, pop_fields("orders", pollTime="1500"))
            await until_waiting(process, 2)
            began_s = time.monotonic()
            await send(sender, "orders", b"one")
            reply = await first.receive()
            assert time.monotonic() - began_s < 0.5
            assert [one.body for one in read_reply(reply, "orders", "readers")] == [b"one"]
            timed_out = await second.receive()
            assert timed_out.code == Response.POLLING_TIMEOUT

    run_with_broker(tmp_path, scenario)


def test_a_batch_acknowledgement_covers_messages_of_one_pop(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            for _ in range(5):
                await send(raw, "orders", b"x")
            popped = await client.pop("orders", invisibleTime=SOON)
            handle = popped[0].handle
            ack = {
                "c": "readers", "t": "orders", "r": "0", "so": handle.start_offset, "q": 0, "rq": 0,
                "pt": handle.pop_ms, "it": handle.invisible_ms, "b": encode_bit_set([0, 1, 3]),
            }  # fmt: skip
            reply = await raw.call(
                Request.BATCH_ACK_MESSAGE, {}, encode_body({"brokerName": "broker-a", "acks": [ack]})
            )
            assert (reply.code, reply.text_fields()["acknowledged"]) == (Response.SUCCESS, "3")
            assert process.broker.in_flight.held == 2, "no other one can come back"
            again = await client.pop("orders", pollTime="5000")
            while len(again) < 2:
                again += await client.pop("orders", pollTime="5000")
            assert len(again) == 2

    run_with_broker(tmp_path, scenario)


def test_a_consumer_in_order_gets_the_same_batch_for_the_same_attempt(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw, extra={"order": "true"})
            for number in range(4):
                await send(raw, "orders", b"%d" % number)
            first = await client.pop("orders", attemptId="a", maxMsgNums="2", invisibleTime="400")
            assert [one.body for one in first] == [b"0", b"1"]
            assert await client.pop("orders", attemptId="b") == []
            again = await client.pop("orders", attemptId="a", maxMsgNums="2", invisibleTime="400")
            assert [one.body for one in again] == [b"0", b"1"]
            assert await client.ack(again[0]) == "done"
            reply = await client.pop_reply("orders", attemptId="c", maxMsgNums="2", pollTime="5000")
            later = read_reply(reply, "orders", "readers")
            assert [one.body for one in later] == [b"1"]
            assert reply.text_fields()["orderCountInfo"] == "0 qo0%1 1;0 0 1"
            assert await client.ack(later[0]) == "done"
            assert [one.body for one in await client.pop("orders")] == [b"2", b"3"]

    run_with_broker(tmp_path, scenario)


def test_pops_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            client = PopClient(raw)
            for number in range(3):
                await send(raw, "orders", b"%d" % number)
            popped = await client.pop("orders", invisibleTime="60000")
            assert await client.ack(popped[0]) == "done"
        async with running_broker(tmp_path) as process, connect(port_of(process)) as raw:
            client = PopClient(raw)
            assert await client.pop("orders") == []
            assert await client.ack(popped[0]) == "repeated"
            assert await client.ack(popped[1]) == "done"
            reply = await client.change(popped[2], 0)
            assert reply.code == Response.SUCCESS
            (again,) = await client.pop("orders", pollTime="5000")
            assert again.body == b"2"

    asyncio.run(main())


def test_a_message_is_buried_after_its_last_attempt(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            config = {"groupName": "readers", "retryMaxTimes": 1}
            await raw.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, encode_body(config))
            await send(raw, "orders", b"bad")
            (first,) = await client.pop("orders", invisibleTime=SOON)
            (second,) = await client.pop("orders", invisibleTime=SOON, pollTime="5000")
            assert second.message.reconsume_times == 1
            assert await client.pop("orders", pollTime="1000") == []
            (dead,) = await PopClient(raw, "undertakers").pop("%DLQ%readers", pollTime="5000")
            assert (dead.body, dead.message.reconsume_times) == (b"bad", 2)
            assert dead.message.properties["RETRY_TOPIC"] == "orders"
            assert await client.ack(first) == "stale"

    run_with_broker(tmp_path, scenario)


def test_a_consumer_buries_a_message(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"bad")
            (popped,) = await client.pop("orders")
            fields = {
                "group": "readers", "topic": "orders", "queueId": "0", "offset": "0",
                "popTime": str(popped.handle.pop_ms), "reason": "it does not parse\x02TAGS\x01forged",
            }  # fmt: skip
            reply = await raw.call(Request.BURY_POPPED, fields)
            assert (reply.code, reply.text_fields()["outcome"]) == (Response.SUCCESS, "done")
            again = await raw.call(Request.BURY_POPPED, fields)
            assert again.code == Response.NO_MESSAGE
            (dead,) = await PopClient(raw, "undertakers").pop("%DLQ%readers")
            assert dead.message.properties["LMQ_DEAD_REASON"] == r"it does not parse\x02TAGS\x01forged"
            assert "TAGS" not in dead.message.properties

    run_with_broker(tmp_path, scenario)


def test_a_lease_holds_messages_until_it_ends(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"one")
            report = {"proxy": "p", "clients": [{"clientId": "c1", "group": "readers", "topics": ["orders"]}]}
            assert (await raw.call(Request.REPORT_CLIENTS, {}, encode_body(report))).code == Response.SUCCESS
            members = await raw.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
            assert b"c1" in members.body
            (held,) = await client.pop("orders", invisibleTime="1", lease="c1")
            next_ms = process.broker.pop_operations.next_due_ms()
            assert next_ms is not None
            assert next_ms > held.handle.pop_ms + 30_000, "the invisible time does not count"
            assert await client.pop("orders") == []
            ended = await raw.call(Request.END_LEASE, {"group": "readers", "clientId": "c1"})
            assert ended.code == Response.SUCCESS
            (again,) = await client.pop("orders", pollTime="5000")
            assert again.body == held.body

    run_with_broker(tmp_path, scenario)


def test_messages_popped_by_a_proxy_that_ends_are_not_held_for_hours(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        report = {"clients": [{"clientId": "c1", "group": "readers", "topics": ["orders"]}]}
        async with connect(port_of(process)) as raw:
            client = PopClient(raw)
            await send(raw, "orders", b"one")
            async with connect(port_of(process)) as proxy:
                await proxy.call(Request.REPORT_CLIENTS, {}, encode_body({"proxy": "p", **report}))
                (lost,) = await PopClient(proxy).pop("orders", lease="c1")
            began_s = time.monotonic()
            again: list[Popped] = []
            while not again and time.monotonic() - began_s < 10:  # its client is alive at another proxy
                await raw.call(Request.REPORT_CLIENTS, {}, encode_body({"proxy": "q", **report}))
                again = await client.pop("orders", pollTime="200")
            assert [one.body for one in again] == [b"one"]
            assert time.monotonic() - began_s > 0.9
            assert await client.ack(lost) == "stale"

    run_with_broker(tmp_path, scenario, "pop.lease=1s")


def test_a_notification_says_that_there_are_messages_without_popping_them(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw, connect(port_of(process)) as waiter:
            await send(raw, "orders", b"one")
            (first,) = await PopClient(raw).pop("orders")
            fields = {
                "consumerGroup": "readers", "topic": "orders", "queueId": "-1", "pollTime": "5000", "bornTime": "0",
            }  # fmt: skip
            opaque = await waiter.send_only(Request.NOTIFICATION, fields)
            await until_waiting(process, 1)
            info = await raw.call(Request.POLLING_INFO, fields)
            assert info.text_fields()["pollingNum"] == "1"
            await send(raw, "orders", b"two")
            reply: Command = await waiter.receive()
            assert (reply.opaque, reply.text_fields()["hasMsg"]) == (opaque, "true")
            (second,) = await PopClient(raw).pop("orders")
            assert (first.body, second.body) == (b"one", b"two")

    run_with_broker(tmp_path, scenario)


def test_a_cancelled_pop_is_answered_at_once_and_takes_no_message(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw, connect(port_of(process)) as other:
            await send(raw, "orders", b"first")
            assert len(await PopClient(raw).pop("orders")) == 1
            opaque = await raw.send_only(Request.POP_MESSAGE, pop_fields("orders", pollTime="60000"))
            await until_waiting(process, 1)
            assert (await other.call(Request.CANCEL_POP, {"pop": str(opaque)})).code == Response.SUCCESS
            assert process.broker.waiting_pops.statistics()["waiting_pops"] == 1, "it belongs to another connection"
            cancel = await raw.send_only(Request.CANCEL_POP, {"pop": str(opaque)})
            replies = [await raw.receive(), await raw.receive()]
            assert {reply.opaque: reply.code for reply in replies} == {
                opaque: Response.POLLING_TIMEOUT, cancel: Response.SUCCESS
            }  # fmt: skip
            assert process.broker.waiting_pops.statistics()["waiting_pops"] == 0
            await send(raw, "orders", b"second")
            assert [one.body for one in await PopClient(other).pop("orders")] == [b"second"]

    run_with_broker(tmp_path, scenario)
