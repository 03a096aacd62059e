"""Metrics over HTTP: from a real broker process, and what the small server does with requests that are none."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import structlog
import uvloop

from latermq.broker.metrics.broker_metrics import BrokerMetrics
from latermq.broker.metrics.exposition import Reading
from latermq.clock import SimulatedClock
from latermq.config import load_config
from latermq.errors import ConfigError, StoreError
from latermq.protocol.remoting.codes import Request, Response
from latermq.server import metrics_server
from latermq.server.broker import process
from latermq.server.broker.composition import broker_metrics
from latermq.server.broker.process import BrokerProcess
from latermq.server.metrics_server import MetricsServer
from latermq.store.files.memory_disk import MemoryDisk
from tests.integration.brokers import heartbeat, run_with_broker, running_broker
from tests.integration.command_line import Cli
from tests.integration.raw_client import connect
from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.waiting import wait_until
from tests.support.brokers_in_memory import open_broker
from tests.support.metrics_scrape import ScrapedMetrics, scrape
from tests.support.serving import serving

GET = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"


# A real broker


def test_a_broker_process_tells_what_waits_and_what_became_of_it(tmp_path: Path) -> None:
    port = free_port()
    options = ("--set", f"metrics.port={port}")
    with serving(tmp_path / "data", *options) as server:
        cli = Cli(server)
        cli.run("send", "orders", "waits", "--delay", "1h", "--key", "first")
        cli.run("send", "orders", "is cancelled", "--delay", "1h", "--key", "second")
        cli.run("send", "orders", "arrives", "--delay", "100ms")
        cli.run("cancel", "orders", "--key", "second")
        wait_until(
            lambda: scrape(port).values("rocketmq_timer_dequeue_total", "topic") == {"orders": 1}, 20.0, "a delivery"
        )
        figures = scrape(port)
        assert figures.values("rocketmq_timing_messages", "topic") == {"orders": 1}
        assert figures.values("rocketmq_timer_enqueue_total", "topic") == {"orders": 3}
        assert figures.value("latermq_timers_cancelled_total") == 1
        assert figures.value("latermq_timer_lateness_milliseconds_count", kind="timer") == 1
        assert figures.value("latermq_early_deliveries_total") == 0
        assert figures.value("rocketmq_messages_in_total") == 3
        with socket.create_connection((HOST, server.port)):
            wait_until(lambda: scrape(port).value("latermq_connections") == 1, 10.0, "a connection")
        assert figures.value("process_resident_memory_bytes") > 1_000_000
        assert f"http://{HOST}:{port}/metrics" in server.log()
        server.kill()
    with serving(tmp_path / "data", *options):
        figures = scrape(port)
        assert figures.values("rocketmq_timing_messages", "topic") == {"orders": 1}
        assert figures.value("rocketmq_timer_enqueue_total", topic="orders") == 0


def test_a_refusal_that_comes_late_is_counted_by_its_code_as_any_other(tmp_path: Path) -> None:
    async def scenario(broker: BrokerProcess) -> None:
        port = broker.listener.port
        async with connect(port) as operator:
            async with connect(port) as consumer:
                await heartbeat(consumer, "client", "readers", "orders")
                fields = {"consumerGroup": "readers", "clientId": "client"}
                await operator.send_only(Request.GET_CONSUMER_RUNNING_INFO, fields)
                assert (await consumer.receive()).code == Request.GET_CONSUMER_RUNNING_INFO
            reply = await operator.receive()  # the consumer went without an answer
            assert reply.code not in (Response.SUCCESS, Response.SYSTEM_ERROR)
            counts = broker.listener.statistics()
            assert counts[f"refused_requests_{reply.code}"] == counts["refused_requests"] == 1

    run_with_broker(tmp_path, scenario)


def test_a_port_that_was_asked_for_and_is_taken_ends_the_broker_with_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "latermq", "broker", "--data", str(tmp_path / "data"), "--port", "0"]
        command += ["--set", f"metrics.port={port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"the broker cannot start: cannot bind the metrics port {port} on {HOST}" in ended.stderr
    assert "hint: Set metrics.port to a free port, or to 0 to disable metrics" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_the_default_port_the_broker_goes_on_without_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(process, "DEFAULT_METRICS_PORT", port)

        async def scenario() -> None:
            async with running_broker(tmp_path, f"metrics.port={port}") as server:
                assert accepts_connections(server.listener.port)

        with structlog.testing.capture_logs() as logs:
            asyncio.run(scenario())
    (warning,) = [line for line in logs if line["log_level"] == "warning" and line["event"] == "metrics disabled"]
    assert f"port {port}" in warning["reason"]


def test_port_0_means_no_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, "metrics.port=0"):
            pass

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    assert not [line for line in logs if "metrics" in line["event"]]


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.port must be 0–65535, not 65536"):
        load_config(settings=["metrics.port=65536"], environment={})


# The small server


def with_server(
    scenario: Callable[[int, MetricsServer], Coroutine[None, None, None]],
    *,
    timeout_s: float = metrics_server.TIMEOUT_S,
) -> None:
    """Run a scenario against the metrics of an idle broker, served on a free port."""

    async def main() -> None:
        broker = open_broker(MemoryDisk(), SimulatedClock())
        server = MetricsServer(broker_metrics(broker), timeout_s=timeout_s)
        port = free_port()
        await server.start(HOST, port)
        try:
            await scenario(port, server)
        finally:
            await server.close()
            broker.close()

    uvloop.run(main())  # as in production: it refuses writes to a closed connection


async def ask(port: int, request: bytes) -> bytes:
    """Everything that is answered to these bytes until the server closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def until(happened: Callable[[], bool]) -> None:
    """Let the server go on until something has happened."""
    deadline_s = time.monotonic() + 10
    for _ in iter(happened, True):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


def test_every_request_gets_one_answer_and_the_connection_is_closed() -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        head, _, body = (await ask(port, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"\r\nConnection: close" in head
        assert ScrapedMetrics(body).value("latermq_early_deliveries_total") == 0
        assert (await ask(port, GET.replace(b"/metrics", b"/metrics?name=x"))).startswith(b"HTTP/1.1 200 ")
        assert (await ask(port, GET.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
        assert (await ask(port, GET + GET)).count(b"HTTP/1.1 200 ") == 1

    with_server(scenario)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/more HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics SPDY/3\r\n\r\n", 400),
        (b"\xff\x00 \r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
    ],
)
def test_what_is_no_request_for_metrics_is_answered_with_its_status(request_bytes: bytes, status: int) -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        answer = await ask(port, request_bytes)
        # What was sent beyond the limit may reset the connection before the answer is read.
        assert answer.startswith(b"HTTP/1.1 %d " % status) or (status == 431 and not answer)
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200 ")

    with_server(scenario)


def test_who_says_nothing_or_half_a_request_is_cut_off() -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        assert await ask(port, b"") == b""
        assert await ask(port, b"GET /metr") == b""

    with_server(scenario, timeout_s=0.1)


def test_who_reads_nothing_is_cut_off() -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        with socket.create_connection((HOST, port)) as client:
            client.sendall(GET)
            await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)

    # Larger than the buffers of both sockets together.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metrics_server, "_text", lambda reading: b"x" * (32 << 20))
        with_server(scenario, timeout_s=0.3)


def test_connections_that_ask_nothing_make_room_for_one_that_does() -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        idle = [await asyncio.open_connection(HOST, port) for _ in range(metrics_server.MAX_CONNECTIONS)]
        await until(lambda: server.connections == metrics_server.MAX_CONNECTIONS)
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200 ")
        assert await idle[0][0].read() == b""  # the oldest
        assert server.statistics()["metrics_displaced"] == 1
        for reader, writer in idle[1:]:
            writer.write(GET)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        for _, writer in idle:
            writer.transport.abort()

    with_server(scenario)


def test_a_peer_that_does_not_read_its_answer_makes_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CONNECTIONS", 2)
    text = metrics_server._text
    monkeypatch.setattr(metrics_server, "_text", lambda reading: text(reading) + b"# x\n" * (8 << 20))

    async def scenario(port: int, server: MetricsServer) -> None:
        unread = [socket.create_connection((HOST, port)) for _ in range(2)]
        for client in unread:
            client.sendall(GET)
        await until(lambda: server.statistics()["metrics_unread"] == 2)
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200 ")
        for client in unread:
            client.close()

    with_server(scenario)


def test_an_address_that_takes_every_place_gives_up_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CONNECTIONS", 3)

    async def scenario(port: int, server: MetricsServer) -> None:
        monitor, writer = await asyncio.open_connection(HOST, port)
        await until(lambda: server.connections == 1)
        greedy = [await asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0)) for _ in range(9)]
        await until(lambda: server.statistics()["metrics_displaced"] == 7)
        writer.write(GET)  # it was the oldest, and alone at its address
        assert (await monitor.read()).startswith(b"HTTP/1.1 200 ")
        for _, own in (*greedy, (monitor, writer)):
            own.transport.abort()

    with_server(scenario)


def test_while_every_place_is_being_answered_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CONNECTIONS", 2)
    may_end = threading.Event()
    text = metrics_server._text

    def slow_text(reading: Reading) -> bytes:
        assert may_end.wait(10)
        return text(reading)

    monkeypatch.setattr(metrics_server, "_text", slow_text)

    async def scenario(port: int, server: MetricsServer) -> None:
        asked = [asyncio.create_task(ask(port, GET)) for _ in range(2)]
        await until(lambda: server.statistics()["metrics_answering"] == 2)
        assert await ask(port, GET) == b""
        assert server.statistics()["metrics_refused"] == 1
        may_end.set()
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in await asyncio.gather(*asked))

    with_server(scenario)


def test_a_store_that_cannot_be_read_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(metrics: BrokerMetrics) -> None:
        raise StoreError("injected")

    async def scenario(port: int, server: MetricsServer) -> None:
        monkeypatch.setattr(BrokerMetrics, "read", fail)
        answer = await ask(port, GET)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"injected\n")
        monkeypatch.undo()
        assert (await ask(port, GET)).startswith(b"HTTP/1.1 200 ")

    with_server(scenario)


def test_closing_the_server_cuts_off_who_waits() -> None:
    async def scenario(port: int, server: MetricsServer) -> None:
        clients.append(socket.create_connection((HOST, port)))
        await until(lambda: server.connections == 1)

    clients: list[socket.socket] = []
    with_server(scenario)
    with clients[0] as client:
        client.settimeout(10)
        assert client.recv(1) == b""


async def until_answering(server: MetricsServer, count: int) -> None:
    for _ in range(3_000):
        if server.statistics()["metrics_answering"] >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{server.statistics()}")


def test_requests_that_arrive_during_formatting_share_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with many requests would otherwise hold every connection until the thread has formatted each of them."""
    may_finish = threading.Event()
    formatted = 0

    def text(_: object) -> bytes:
        nonlocal formatted
        formatted += 1
        assert may_finish.wait(30)
        return b"latermq_figure 1\n"

    monkeypatch.setattr(metrics_server, "_text", text)

    async def scenario(port: int, server: MetricsServer) -> None:
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        asked = [asyncio.create_task(ask(port, request)) for _ in range(metrics_server.MAX_CONNECTIONS)]
        await until_answering(server, len(asked))
        may_finish.set()
        answers = await asyncio.gather(*asked)
        assert all(b"200 OK" in answer and b"latermq_figure 1" in answer for answer in answers)
        assert formatted == 1
        assert b"200 OK" in await ask(port, request)
        assert formatted == 2, "a later request gets current values"

    with_server(scenario)


def test_a_server_that_stops_during_an_answer_writes_to_no_closed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_finish = threading.Event()
    monkeypatch.setattr(metrics_server, "_text", lambda _: b"late\n" if may_finish.wait(30) else b"")
    failures: list[str] = []

    async def scenario(port: int, server: MetricsServer) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context)))
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until_answering(server, 1)
        writer.transport.abort()
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        may_finish.set()
        await closing

    with_server(scenario)
    assert not failures
