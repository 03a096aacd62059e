"""Clients that misbehave get an error reply or lose their connection; the others notice nothing."""

import asyncio
import contextlib
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from structlog.testing import capture_logs

from latermq.clock import SystemClock
from latermq.config import Config, Duration, MetricsConfig, ServerConfig, Size
from latermq.config_json.topics import TopicJson, TopicTableJson
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, JSON, encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody
from latermq.server.broker.process import BrokerProcess
from latermq.server.namesrv.name_server import NameServerProcess
from latermq.server.remoting.listener import Listener
from tests.integration.brokers import NOBODY, small_config
from tests.integration.raw_client import RawClient, connect, eventually

LogLine = dict[str, Any]


@dataclass
class Served:
    """A server under test, with a request that a good client makes and that gets a large answer."""

    port: int
    listener: Listener
    good_code: int
    own_connections: int  # of peers that the server needs to be one

    async def still_serves(self) -> None:
        async with connect(self.port) as good:
            reply = await good.call(self.good_code)
            assert reply.code == Response.SUCCESS


@asynccontextmanager
async def name_server(config: ServerConfig) -> AsyncIterator[Served]:
    process = NameServerProcess(Config(server=config, metrics=MetricsConfig(namesrv_port=0)), SystemClock())
    await process.start()
    try:
        async with connect(process.listener.port) as broker:
            # About 300 KB of topics, which the list of all topics answers.
            topics = [f"topic-{number:05}-{'x' * 40}" for number in range(5_000)]
            table = TopicTableJson(topics={topic: TopicJson(name=topic) for topic in topics})
            header = {"brokerName": "a", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}
            body = encode_body(RegisterBrokerBody(topicConfigSerializeWrapper=table))
            assert (await broker.call(Request.REGISTER_BROKER, header, body)).code == Response.SUCCESS
            beating = asyncio.create_task(keep_registered(broker, header))
            yield Served(process.listener.port, process.listener, Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 1)
            beating.cancel()
    finally:
        await process.stop()


async def keep_registered(broker: RawClient, header: dict[str, str]) -> None:
    """Beat often enough not to idle away in tests where others do."""
    while True:
        await broker.call(Request.BROKER_HEARTBEAT, header)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def broker(config: ServerConfig) -> AsyncIterator[Served]:
    settings = msgspec.structs.replace(config, namesrv=NOBODY)
    with tempfile.TemporaryDirectory() as folder:
        process = BrokerProcess(msgspec.structs.replace(small_config(), server=settings), SystemClock(), Path(folder))
        # About 250 KB of topics, which the table of all topics answers.
        for number in range(1_000):
            process.broker.topics.adopt(Topic(name=f"topic-{number:05}-{'x' * 40}"))
        await process.start()
        try:
            yield Served(process.listener.port, process.listener, Request.GET_ALL_TOPIC_CONFIG, 0)
        finally:
            await process.stop()


SERVERS: dict[str, Callable[[ServerConfig], AbstractAsyncContextManager[Served]]] = {
    "name server": name_server,
    "broker": broker,
}
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass
class Bench:
    """Runs one scenario against one server on one kind of event loop and collects what was logged meanwhile."""

    server: Callable[[ServerConfig], AbstractAsyncContextManager[Served]]
    loop: Callable[[], asyncio.AbstractEventLoop]

    def run(self, scenario: Callable[[Served, list[LogLine]], Coroutine[None, None, None]], **settings: object) -> None:
        config = msgspec.structs.replace(ServerConfig(namesrv_port=0, port=0, max_connections=1000), **settings)

        async def main() -> None:
            async with self.server(config) as served:
                with capture_logs() as lines:
                    await scenario(served, lines)  # type: ignore[arg-type]
                    await served.still_serves()
                assert len(lines) == 1, lines

        with asyncio.Runner(loop_factory=self.loop) as runner:
            runner.run(main())


@pytest.fixture(params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SERVERS)
def bench(request: pytest.FixtureRequest, loop_name: str) -> Bench:
    return Bench(SERVERS[request.param], LOOPS[loop_name])


def raw_frame(header: bytes, encoding: int = JSON) -> bytes:
    return struct.pack(">II", 4 + len(header), encoding << 24 | len(header)) + header


BROKEN = {
    "garbage": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(64),
    "a length above the limit": struct.pack(">II", (16 << 20) + 1, 20) + bytes(100),
    "a negative length": struct.pack(">II", 0xFFFFFFF0, 20),
    "a header longer than its frame": struct.pack(">II", 20, 100) + bytes(40),
    "an unknown header encoding": raw_frame(b"{}", encoding=9),
    "a JSON header that is none": raw_frame(b"not json"),
    "a JSON header without a code": raw_frame(b'{"opaque":1}'),
    "a JSON header nested too deep": raw_frame(b'{"code":1,"x":' + b"[" * 50_000),
    "a binary header that is cut off": raw_frame(bytes(10), encoding=BINARY),
    "a binary header with wrong lengths": raw_frame(struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 99), encoding=BINARY),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_bytes_that_are_no_frame_close_the_connection_with_one_log_line(bench: Bench, data: bytes) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            await client.send(data)
            assert await client.is_closed_by_server()
            assert lines[0]["event"] == "connection closed"
            assert lines[0]["peer"] == client.name
            assert lines[0]["reason"]

    bench.run(scenario)


def test_what_came_before_broken_bytes_is_answered(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            await client.send(encode_frame(served.good_code, 7) + encode_frame(served.good_code, 8) + bytes(20))
            assert [(await client.receive()).opaque for _ in range(2)] == [7, 8]
            assert await client.is_closed_by_server()

    bench.run(scenario)


@pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])
def test_an_unknown_request_code_is_answered_and_the_connection_goes_on(bench: Bench, encoding: int) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            for _ in range(3):
                reply = await client.call(31_999, encoding=encoding)
                assert reply.code == Response.REQUEST_CODE_NOT_SUPPORTED
                assert "31999" in (reply.remark or "")
            assert (await client.call(served.good_code, encoding=encoding)).code == Response.SUCCESS

    bench.run(scenario)


def test_a_header_that_lacks_a_field_is_answered_and_the_connection_goes_on(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            reply = await client.call(Request.UNREGISTER_BROKER, {"brokerName": "a"})
            assert reply.code != Response.SUCCESS
            assert reply.remark
            assert "exc_info" not in lines[0]
            assert (await client.call(served.good_code)).code == Response.SUCCESS

    bench.run(scenario)


def test_a_bad_request_that_wants_no_answer_gets_none(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            await client.send(encode_frame(31_999, 5, flag=FLAG_ONEWAY))
            assert (await client.call(served.good_code)).code == Response.SUCCESS

    bench.run(scenario)


def test_a_client_that_goes_inside_a_frame_leaves_one_log_line(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        before = served.listener.statistics()["connections"]
        async with connect(served.port) as client:
            await client.send(encode_frame(served.good_code, 1, body=bytes(1000))[:-500])
            await eventually(lambda: served.listener.statistics()["held_bytes"] > 500, "the part frame to arrive")
        await eventually(lambda: lines, "the log line")
        assert served.listener.statistics()["connections"] == before

    bench.run(scenario)


def test_a_frame_that_comes_byte_by_byte_is_answered(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            for byte in encode_frame(31_999, 3):
                await client.send(bytes([byte]))
            assert (await client.receive()).opaque == 3

    bench.run(scenario)


def test_a_frame_that_never_ends_keeps_no_connection_open(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            await client.send(struct.pack(">II", 1 << 20, 100))
            dripping = asyncio.create_task(drip(client))
            assert await client.is_closed_by_server()
            dripping.cancel()
        await eventually(lambda: lines, "the log line")
        assert "not completed" in lines[0]["reason"]

    async def drip(client: RawClient) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await client.send(b"x")
                await asyncio.sleep(0.01)

    bench.run(scenario, idle_timeout=Duration(400))


def test_a_client_that_never_reads_is_paused_in_bounded_memory_and_then_cut_off(bench: Bench) -> None:
    write_buffer = Size(1 << 20)

    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port, receive_buffer_bytes=4096) as client:
            requests = b"".join(encode_frame(served.good_code, opaque) for opaque in range(500))
            await client.send(requests)
            statistics = await eventually(lambda: paused(served), "the connection to be paused")
            # A buffer that was not quite full, one more round and one answer, of the 100 MB that were asked for.
            assert statistics["held_bytes"] < 3 * write_buffer
            await served.still_serves()
            assert served.listener.statistics()["held_bytes"] < 3 * write_buffer
            await eventually(lambda: lines, "the client to be cut off")
            assert lines[0]["event"] == "connection aborted"
            assert lines[0]["peer"] == client.name
            assert served.listener.statistics()["closed_unread"] == 1
            await eventually(lambda: served.listener.statistics()["held_bytes"] == 0, "its memory to be given back")

    bench.run(scenario, write_buffer=write_buffer, stalled_timeout=Duration(500))


def test_a_client_that_reads_late_gets_every_answer_in_order(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port, receive_buffer_bytes=4096) as client:
            # Bytes that are no frame come last: the answers before them must not be lost to the closing either.
            await client.send(b"".join(encode_frame(served.good_code, opaque) for opaque in range(60)) + bytes(8))
            await eventually(lambda: paused(served), "the connection to be paused")
            assert [(await client.receive()).opaque for _ in range(60)] == list(range(60))
            assert await client.is_closed_by_server()

    bench.run(scenario, write_buffer=Size(1 << 20))


def paused(served: Served) -> dict[str, int] | None:
    statistics = served.listener.statistics()
    return statistics if statistics["paused"] == 1 else None


def test_an_idle_connection_is_closed(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with connect(served.port) as client:
            assert await client.is_closed_by_server()
            await eventually(lambda: lines, "the log line")
            assert lines[0]["reason"] == "idle"
            assert served.listener.statistics()["closed_idle"] == 1

    bench.run(scenario, idle_timeout=Duration(400))


def test_connections_above_the_limit_are_refused_with_one_log_line(bench: Bench) -> None:
    async def scenario(served: Served, lines: list[LogLine]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(served.port)) for _ in range(3 - served.own_connections)]
            for client in clients:
                assert (await client.call(served.good_code)).code == Response.SUCCESS
            for _ in range(5):
                async with connect(served.port) as refused:
                    assert await refused.is_closed_by_server()
            assert (await clients[0].call(served.good_code)).code == Response.SUCCESS
            statistics = served.listener.statistics()
            assert statistics["refused"] == 5
            assert statistics["address_connections"] == statistics["max_address_connections"] == 3
        await eventually(
            lambda: served.listener.statistics()["connections"] == served.own_connections, "the clients to be gone"
        )

    bench.run(scenario, max_connections=3)
