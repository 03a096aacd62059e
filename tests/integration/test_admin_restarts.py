"""Administration works while name servers and brokers restart."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from latermq.client.admin import Admin
from latermq.client.consumer.push_consumer import PushConsumer
from latermq.client.session.failures import NoNameServer
from latermq.clock import SystemClock
from latermq.errors import LaterMQError, TopicNotFound
from latermq.server.broker.process import BrokerProcess
from latermq.server.namesrv.name_server import NameServerProcess
from tests.integration.brokers import small_config
from tests.interop.ports import HOST, free_port

RESTARTS = 3


class Servers:
    """A name server and a broker that keep their ports across restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namesrv_port = free_port()
        self.namesrv = f"{HOST}:{self._namesrv_port}"
        ports = (f"server.namesrv={self.namesrv}", f"server.namesrv_port={self._namesrv_port}")
        self._config = small_config(*ports, f"server.port={free_port()}", "broker.register_every=500ms")

    async def start_name_server(self) -> None:
        self.name_server = NameServerProcess(self._config, SystemClock(), self._folder / "namesrv")
        await self.name_server.start()

    async def start_broker(self) -> None:
        self.broker = BrokerProcess(self._config, SystemClock(), self._folder / "broker")
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.name_server.stop()


async def call_until(done: asyncio.Event, call: Callable[[], Awaitable[object]], outcomes: Counter[str]) -> None:
    while not done.is_set():
        try:
            await call()
            outcomes["answered"] += 1
        except LaterMQError as error:
            outcomes[type(error).__name__] += 1
        await asyncio.sleep(0.005)


def test_no_admin_call_fails_while_servers_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = Servers(tmp_path)
        await servers.start_name_server()
        await servers.start_broker()
        done, outcomes = asyncio.Event(), Counter[str]()
        try:
            async with Admin(servers.namesrv, request_timeout_s=20) as admin:
                await admin.create_topic("orders", 2)
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: admin.topic_stats("orders"),
                    lambda: admin.timer_status("orders", unique_key="unknown"),
                    lambda: admin.count_timers("orders"),
                    admin.groups,
                    admin.brokers,
                ]
                tasks = [asyncio.create_task(call_until(done, call, outcomes)) for call in calls]
                for _ in range(RESTARTS):
                    await asyncio.sleep(0.2)
                    await servers.broker.stop()
                    await asyncio.sleep(0.2)
                    await servers.start_broker()
                    await asyncio.sleep(0.2)
                    await servers.name_server.stop()
                    await asyncio.sleep(0.2)
                    await servers.start_name_server()
                done.set()
                await asyncio.gather(*tasks)
                assert outcomes["answered"] > 50
                assert set(outcomes) == {"answered"}
                with pytest.raises(TopicNotFound):
                    await admin.topic_stats("nowhere")
        finally:
            await servers.stop()

    asyncio.run(scenario())


def test_a_call_without_an_answer_fails_within_its_timeout() -> None:
    async def scenario() -> None:
        async with Admin(f"{HOST}:{free_port()}", request_timeout_s=0.5) as admin:
            begin_s = time.monotonic()
            with pytest.raises(NoNameServer, match="no name server answers"):
                await admin.topics()
            assert time.monotonic() - begin_s < 5

    asyncio.run(scenario())


def test_a_name_server_that_returns_and_hangs_does_not_extend_a_call() -> None:
    async def scenario() -> None:
        port = free_port()
        released = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await released.wait()
            writer.close()

        async def return_later() -> asyncio.Server:
            await asyncio.sleep(0.6)
            return await asyncio.start_server(hang, HOST, port)

        server = asyncio.create_task(return_later())
        async with Admin(f"{HOST}:{port}", request_timeout_s=1.0) as admin:
            began_s = time.monotonic()
            with pytest.raises(LaterMQError):
                await admin.route("orders")
            assert time.monotonic() - began_s < 1.3
        released.set()
        (await server).close()

    asyncio.run(scenario())


def test_a_consumer_may_subscribe_before_its_brokers_exist(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = Servers(tmp_path)
        await servers.start_name_server()
        try:
            async with PushConsumer(servers.namesrv, "early", lambda message: None) as consumer:
                await consumer.subscribe("orders")
                assert consumer.statistics()["queues"] == 0
        finally:
            await servers.name_server.stop()

    asyncio.run(scenario())
