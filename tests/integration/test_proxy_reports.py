"""Reports of proxies to a broker: leases and members that survive moves of clients, full groups and many topics."""

import asyncio
import json
from pathlib import Path

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send
from tests.integration.pop_client import PopClient
from tests.integration.raw_client import RawClient, connect
from tests.integration.test_pop import port_of


def report_of(proxy: str, clients: dict[str, str], topics: list[str] | None = None) -> bytes:
    """A report of clients, each with its group."""
    rows = [{"clientId": name, "group": group, "topics": ["orders"]} for name, group in clients.items()]
    return encode_body({"proxy": proxy, "clients": rows, "topics": topics or []})


async def report(raw: RawClient, proxy: str, clients: dict[str, str], topics: list[str] | None = None) -> None:
    reply = await raw.call(Request.REPORT_CLIENTS, {}, report_of(proxy, clients, topics))
    assert reply.code == Response.SUCCESS, reply


def test_a_client_that_moved_to_another_proxy_keeps_its_messages(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as old, connect(port_of(process)) as new:
            client = PopClient(new)
            await send(new, "orders", b"one")
            await report(old, "old", {"c": "readers"})
            (held,) = await client.pop("orders", invisibleTime="1", lease="c")
            await report(new, "new", {"c": "readers"})
            await report(old, "old", {"c": "readers"})  # which has not noticed it yet
            lost = {"group": "readers", "clientId": "c"}
            assert (await old.call(Request.END_LEASE, lost | {"proxy": "old"})).code == Response.SUCCESS
            assert await client.pop("orders", pollTime="2000") == []
            members = await new.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
            assert b'"c"' in members.body
            # The last proxy that reported it has lost it, too.
            assert (await new.call(Request.END_LEASE, lost | {"proxy": "new"})).code == Response.SUCCESS
            (again,) = await client.pop("orders", pollTime="5000")
            assert again.body == held.body

    run_with_broker(tmp_path, scenario)


def test_a_full_group_takes_neither_leases_nor_places_from_others(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw:
            await report(raw, "p", {"f1": "full", "f2": "full", "f3": "full", "c1": "readers", "c2": "readers"})
            for group, ids in (("full", [b"f1", b"f2"]), ("readers", [b"c1", b"c2"])):
                members = await raw.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
                assert [name for name in (b"f1", b"f2", b"f3", b"c1", b"c2") if name in members.body] == ids
            assert process.broker.reported_clients.statistics()["refused_reports"] == 1

    run_with_broker(tmp_path, scenario, "broker.max_group_members=2")


def test_checks_of_transactions_arrive_however_many_topics_a_proxy_publishes(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as proxy, connect(port_of(process)) as sender:
            topics = [f"topic-{number}" for number in range(3_000)]
            await report(proxy, "p", {}, topics[:1_500])
            await report(proxy, "p", {}, topics[1_500:])
            for topic in (topics[0], topics[-1]):
                properties = f"TRAN_MSG\x01true\x02PGROUP\x01{topic}\x02UNIQ_KEY\x01key of {topic}\x02"
                await send(sender, topic, b"half", properties=properties, sysFlag="4")
                check: Command = await proxy.receive()
                assert check.code == Request.CHECK_TRANSACTION_STATE
                assert check.text_fields()["transactionId"] == f"key of {topic}"

    run_with_broker(tmp_path, scenario, "transaction.check_after=100ms")


def test_a_proxy_that_connects_again_is_asked_at_once(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as sender:
            async with connect(port_of(process)) as lost:
                await report(lost, "p", {}, ["orders"])
            properties = "TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01key\x02"
            await send(sender, "orders", b"half", properties=properties, sysFlag="4")
            await asyncio.sleep(0.5)  # it is due while no proxy is there
            async with connect(port_of(process)) as proxy:
                await report(proxy, "p", {}, ["orders"])
                async with asyncio.timeout(5.0):
                    check: Command = await proxy.receive()
                assert check.code == Request.CHECK_TRANSACTION_STATE

    run_with_broker(tmp_path, scenario, "transaction.check_after=100ms", "transaction.check_every=60s")


def test_a_report_for_a_group_with_many_topics_takes_more_slices(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(port_of(process)) as raw, connect(port_of(process)) as other:
            topics = [f"topic-{number}" for number in range(256)]
            wide = [{"clientId": "first", "group": "wide", "topics": topics}]
            assert (await raw.call(Request.REPORT_CLIENTS, {}, encode_body({"proxy": "p", "clients": wide}))).code == 0
            await raw.send_only(Request.REPORT_CLIENTS, {}, report_of("p", {f"c{n}": "wide" for n in range(1_000)}))
            while (known := await member_count(other)) == 1:
                """The report has not begun yet."""
            assert known < 1_001, "another client is served in between"
            await raw.receive()
            assert await member_count(other) == 1_001

    run_with_broker(tmp_path, scenario)


async def member_count(raw: RawClient) -> int:
    reply = await raw.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "wide"})
    return len(json.loads(reply.body)["consumerIdList"])
