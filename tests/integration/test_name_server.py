"""A real name server on a real socket: brokers register, clients find them, operators look and change."""

import asyncio
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.config import Config, MetricsConfig, ServerConfig
from latermq.config_json.topics import DataVersionJson, TopicJson, TopicTableJson
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, Command
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.routes import ClusterInfo, KVTable, RegisterBrokerBody, TopicRoute
from latermq.protocol.remoting.topics import TopicList
from latermq.server.namesrv.name_server import NameServerProcess
from tests.integration.raw_client import RawClient, connect, eventually

BROKER = {"brokerName": "a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
CONFIG = Config(server=ServerConfig(namesrv_port=0, max_connections=100), metrics=MetricsConfig(namesrv_port=0))

Scenario = Callable[[NameServerProcess], Coroutine[None, None, None]]


def run(scenario: Scenario, data: Path | None = None) -> None:
    async def main() -> None:
        process = NameServerProcess(CONFIG, SimulatedClock(), data)
        await process.start()
        try:
            await scenario(process)
        finally:
            await process.stop()

    asyncio.run(main())


async def register(client: RawClient, *topics: str, encoding: int = JSON) -> Command:
    table = TopicTableJson(
        topics={topic: TopicJson(name=topic) for topic in topics}, version=DataVersionJson(counter=1)
    )
    body = encode_body(RegisterBrokerBody(topicConfigSerializeWrapper=table))
    header = BROKER | {"bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), "compressed": "false"}
    reply = await client.call(Request.REGISTER_BROKER, header, body, encoding)
    assert reply.code == Response.SUCCESS, reply.remark
    return reply


async def route(client: RawClient, topic: str) -> TopicRoute | None:
    reply = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if reply.code in (Response.TOPIC_NOT_EXIST, Response.SERVICE_NOT_AVAILABLE):
        assert topic in (reply.remark or "")
        return None
    assert reply.code == Response.SUCCESS, reply.remark
    return decode_body(reply.body, TopicRoute)


@pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])
def test_a_client_finds_a_registered_broker(encoding: int) -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as broker, connect(process.listener.port) as client:
            assert await route(client, "orders") is None
            await register(broker, "orders", encoding=encoding)
            found = await route(client, "orders")
            assert found is not None
            assert found.brokerDatas[0].brokerAddrs == {0: "127.0.0.1:10911"}
            assert found.queueDatas[0].writeQueueNums == 8

    run(scenario)


def test_route_keys_are_text_so_that_every_language_reads_them() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            await register(client, "orders")
            reply = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            assert b'"brokerAddrs":{"0":"127.0.0.1:10911"}' in reply.body

    run(scenario)


def test_a_broker_is_gone_as_soon_as_its_connection_is() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            async with connect(process.listener.port) as broker:
                await register(broker, "orders")
            await eventually(lambda: process.server.statistics()["brokers"] == 0, "the broker to be gone")
            assert await route(client, "orders") is None

    run(scenario)


def test_a_broker_that_connects_anew_registers_once_its_first_connection_is_closed() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as second:
            async with connect(process.listener.port) as first:
                await register(first, "orders")
                assert (await second.call(Request.REGISTER_BROKER, BROKER)).code == Response.NO_PERMISSION
            await eventually(lambda: process.listener.statistics()["connections"] == 1, "the first one to be gone")
            await register(second, "orders")
            assert await route(second, "orders") is not None

    run(scenario)


def test_a_silent_broker_loses_its_connection_too() -> None:
    async def scenario(process: NameServerProcess) -> None:
        clock = process.listener.clock
        assert isinstance(clock, SimulatedClock)
        async with connect(process.listener.port) as broker:
            await register(broker, "orders")
            clock.advance(100_000)
            await broker.call(Request.BROKER_HEARTBEAT, BROKER)
            clock.advance(100_000)
            process.server.expire()
            assert await route(broker, "orders") is not None
            clock.advance(100_000)
            process.server.expire()
            assert await broker.is_closed_by_server()

    run(scenario)


def test_a_broker_unregisters() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as broker:
            await register(broker, "orders")
            assert (await broker.call(Request.UNREGISTER_BROKER, BROKER)).code == Response.SUCCESS
            assert await route(broker, "orders") is None

    run(scenario)


def test_a_broker_asks_whether_its_topics_are_known() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as broker:
            known, newer = encode_body(DataVersionJson(counter=1)), encode_body(DataVersionJson(counter=2))
            reply = await broker.call(Request.QUERY_DATA_VERSION, BROKER, known)
            assert (reply.text_fields(), reply.body) == ({"changed": "true"}, b"")
            await register(broker, "orders")
            reply = await broker.call(Request.QUERY_DATA_VERSION, BROKER, known)
            assert reply.text_fields() == {"changed": "false"}
            assert decode_body(reply.body, DataVersionJson) == DataVersionJson(counter=1)
            reply = await broker.call(Request.QUERY_DATA_VERSION, BROKER, newer)
            assert reply.text_fields() == {"changed": "true"}

    run(scenario)


def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as broker:
            reply = await broker.call(Request.REGISTER_BROKER, BROKER | {"bodyCrc32": "5"}, b"{}")
            assert reply.code == Response.SYSTEM_ERROR
            assert "checksum" in (reply.remark or "")
            assert process.server.statistics()["brokers"] == 0

    run(scenario)


def test_an_operator_lists_clusters_topics_and_members() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            await register(client, "orders", "bills")

            async def ask(code: int, **fields: str) -> bytes:
                reply = await client.call(code, fields)
                assert reply.code == Response.SUCCESS, reply.remark
                return reply.body

            info = decode_body(await ask(Request.GET_BROKER_CLUSTER_INFO), ClusterInfo)
            assert info.clusterAddrTable == {"c": ["a"]}
            assert info.brokerAddrTable["a"].brokerAddrs == {0: "127.0.0.1:10911"}
            topics = decode_body(await ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), TopicList)
            assert topics.topicList == ["orders", "bills"]
            topics = decode_body(await ask(Request.GET_TOPICS_BY_CLUSTER, cluster="c"), TopicList)
            assert topics.topicList == ["orders", "bills"]
            system = decode_body(await ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS), TopicList)
            assert (system.topicList, system.brokerAddr) == (["c", "a"], "127.0.0.1:10911")
            members = msgspec.json.decode(await ask(Request.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="a"))
            assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}

    run(scenario)


def test_an_operator_stops_and_allows_writing_and_deletes_a_topic() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            await register(client, "orders", "bills")
            reply = await client.call(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
            assert reply.text_fields() == {"wipeTopicCount": "2"}
            found = await route(client, "orders")
            assert found is not None
            assert found.queueDatas[0].perm == 4
            reply = await client.call(Request.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
            assert reply.text_fields() == {"addTopicCount": "2"}
            await client.call(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
            assert await route(client, "orders") is None
            assert await route(client, "bills") is not None

    run(scenario)


def test_an_ordered_topic_has_its_setting_in_its_route_and_brokers_hear_of_it() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            await client.call(Request.PUT_KV_CONFIG, ORDER | {"value": "a:4"})
            reply = await register(client, "orders")
            assert decode_body(reply.body, KVTable).table == {"orders": "a:4"}
            found = await route(client, "orders")
            assert found is not None
            assert found.orderTopicConf == "a:4"

    run(scenario)


def test_keys_are_kept_over_a_restart_and_can_be_deleted(tmp_path: Path) -> None:
    async def put(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            await client.call(Request.PUT_KV_CONFIG, ORDER | {"value": "a:4"})

    async def look_and_delete(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await client.call(Request.GET_KV_CONFIG, ORDER)
            assert reply.text_fields() == {"value": "a:4"}
            reply = await client.call(Request.GET_KVLIST_BY_NAMESPACE, ORDER)
            assert decode_body(reply.body, KVTable).table == {"orders": "a:4"}
            assert (await client.call(Request.DELETE_KV_CONFIG, ORDER)).code == Response.SUCCESS
            assert (await client.call(Request.GET_KV_CONFIG, ORDER)).code == Response.QUERY_NOT_FOUND
            reply = await client.call(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "nobody"})
            assert reply.code == Response.QUERY_NOT_FOUND

    run(put, tmp_path)
    run(look_and_delete, tmp_path)
    assert msgspec.json.decode((tmp_path / "kvConfig.json").read_bytes()) == {"configTable": {}}


def test_settings_are_shown_and_not_changed() -> None:
    async def scenario(process: NameServerProcess) -> None:
        async with connect(process.listener.port) as client:
            reply = await client.call(Request.GET_NAMESRV_CONFIG)
            assert b"server.max_connections=100\n" in reply.body
            assert (await client.call(Request.UPDATE_NAMESRV_CONFIG, body=reply.body)).code == Response.SUCCESS
            for body in (b"server.max_connections=7\n", b"unheard=of", b"nonsense", b"\xff"):
                reply = await client.call(Request.UPDATE_NAMESRV_CONFIG, body=body)
                assert reply.code in (Response.NO_PERMISSION, Response.SYSTEM_ERROR)
                assert reply.remark

    run(scenario)


SERVER = """
import sys
from latermq.config import load_config
from latermq.server.namesrv.name_server import run_name_server
settings = ["server.namesrv_port=0", "server.max_connections=100", "metrics.namesrv_port=0"]
config = load_config(settings=settings, environment={})
sys.exit(run_name_server(config, None, lambda text: print(text, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_cleanly_with_clients_connected(number: signal.Signals) -> None:
    async def client_sees_the_end(port: int, pid: int) -> None:
        async with connect(port) as client:
            assert (await client.call(Request.GET_BROKER_CLUSTER_INFO)).code == Response.SUCCESS
            os.kill(pid, number)
            assert await client.is_closed_by_server()

    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("name server 127.0.0.1:")
            asyncio.run(client_sees_the_end(int(line.rpartition(":")[2]), server.pid))
            assert server.wait(30) == 0
        finally:
            server.kill()
