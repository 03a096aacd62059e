"""Metrics of a real name server process: how near it is to each of its bounds, and what it does without its port."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from latermq.clock import SimulatedClock
from latermq.config import Config, MetricsConfig, ServerConfig, load_config
from latermq.config_json.topics import DataVersionJson, TopicJson, TopicTableJson
from latermq.errors import ConfigError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody
from latermq.server.namesrv import name_server
from latermq.server.namesrv.name_server import NameServerProcess
from latermq.server.namesrv.name_server_metrics import FAMILIES, NAME_SERVER_LIMITS
from tests.integration.raw_client import connect
from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.waiting import wait_until
from tests.support.metrics_scrape import ScrapedMetrics, scrape
from tests.support.serving import serving

BROKER = {"brokerName": "a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "0"}


@contextlib.contextmanager
def name_server_process(*settings: str) -> Iterator[int]:
    """A name server on a port of its own, which is told."""
    command = [sys.executable, "-m", "latermq", "namesrv", "--host", HOST, "--port", "0"]
    command += [word for setting in settings for word in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"name server \S+:(\d+)", process.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            process.terminate()
            assert process.wait(20) == 0


async def fill_and_overfill(port: int) -> None:
    """A broker with two topics, a key, and one too many of each."""
    table = TopicTableJson(
        topics={topic: TopicJson(name=topic) for topic in ("orders", "bills")},
        version=DataVersionJson(counter=1),
    )
    body = encode_body(RegisterBrokerBody(topicConfigSerializeWrapper=table))
    async with connect(port) as broker, connect(port) as other:
        key = {"namespace": "n", "key": "first", "value": "one"}
        assert (await other.call(Request.PUT_KV_CONFIG, key)).code == Response.SUCCESS
        refused = await other.call(Request.PUT_KV_CONFIG, key | {"key": "second"})
        assert refused.code == Response.SERVICE_NOT_AVAILABLE
        assert (await other.call(Request.PUT_KV_CONFIG, key | {"key": ""})).code == Response.INVALID_PARAMETER
        assert (await broker.call(Request.REGISTER_BROKER, BROKER, body)).code == Response.SUCCESS
        second = BROKER | {"brokerName": "b", "brokerAddr": "127.0.0.1:10912"}
        assert (await other.call(Request.REGISTER_BROKER, second, body)).code == Response.SERVICE_NOT_AVAILABLE
        await other.send(b"\xff" * 8)  # a frame that is too long
        assert await other.is_closed_by_server()


def used(figures: ScrapedMetrics) -> dict[str, float]:
    return figures.values("latermq_limit_used", "setting")


def test_a_name_server_process_tells_how_near_it_is_to_its_bounds() -> None:
    metrics_port = free_port()
    bounds = ("namesrv.max_brokers=1", "namesrv.max_kv_entries=1", f"metrics.namesrv_port={metrics_port}")
    with name_server_process(*bounds) as port:
        figures = scrape(metrics_port)
        assert figures.kinds.items() >= {family.name: family.kind.value for family in FAMILIES}.items()
        assert {sample.labels["node_id"] for sample in figures.samples if sample.labels} >= {f"{HOST}:{port}"}
        assert figures.values("latermq_limit", "setting").keys() == {limit.name for limit in NAME_SERVER_LIMITS}
        assert sum(used(figures).values()) == used(figures)["metrics_connections"] == 1  # this one
        assert figures.value("process_start_time_seconds") > 0
        with socket.create_connection((HOST, port)):
            wait_until(lambda: scrape(metrics_port).value("latermq_connections") == 1, 10.0, "a connection")
        asyncio.run(fill_and_overfill(port))
        figures = scrape(metrics_port)
        limit = figures.values("latermq_limit", "setting")
        assert limit["namesrv.max_brokers"] == used(figures)["namesrv.max_brokers"] == 1  # away, its place is kept
        assert used(figures)["namesrv.max_host_brokers"] == 1
        assert used(figures)["namesrv.max_topics"] == used(figures)["namesrv.max_host_topics"] == 2
        assert limit["namesrv.max_kv_entries"] == used(figures)["namesrv.max_kv_entries"] == 1
        assert used(figures)["namesrv.max_kv"] == len("n" + "first" + "one")
        refused = figures.values("latermq_requests_refused_total", "code")
        assert {code: count for code, count in refused.items() if count} == {"14": 2, "29": 1}
        assert figures.value("latermq_connections_closed_total", reason="malformed") == 1
        assert figures.value("latermq_namesrv_brokers_away") == 1


def test_serve_runs_both_endpoints_and_its_log_says_where(tmp_path: Path) -> None:
    broker, namesrv = free_port(), free_port()
    options = ("--set", f"metrics.port={broker}", "--set", f"metrics.namesrv_port={namesrv}")
    with serving(tmp_path / "data", *options) as server:
        assert scrape(namesrv).value("latermq_namesrv_brokers") == 1
        assert scrape(namesrv).value("latermq_limit", setting="server.max_connections", node_type="namesrv") > 0
        assert scrape(broker).value("latermq_limit", setting="server.max_connections", node_type="broker") > 0
        assert all(f"http://{HOST}:{port}/metrics" in server.log() for port in (broker, namesrv))


def test_a_port_that_was_asked_for_and_is_taken_ends_the_name_server_with_one_clear_line() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "latermq", "namesrv", "--port", "0", "--set", f"metrics.namesrv_port={port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"the name server cannot start: cannot bind the metrics port {port} on {HOST}" in ended.stderr
    assert "hint: Set metrics.namesrv_port to a free port, or to 0 to disable metrics" in ended.stderr
    assert "Traceback" not in ended.stderr


def warnings_of(metrics: MetricsConfig) -> list[str]:
    """Why a name server that starts with these ports, and accepts connections, has no metrics."""

    async def scenario() -> None:
        config = Config(server=ServerConfig(namesrv_port=0, max_connections=100), metrics=metrics)
        process = NameServerProcess(config, SimulatedClock())
        await process.start()
        assert accepts_connections(process.listener.port)
        await process.stop()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    assert not [line for line in logs if line["event"] == "metrics server listening"]
    return [line["reason"] for line in logs if line["event"] == "metrics disabled"]


def test_without_the_default_port_the_name_server_goes_on_without_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(name_server, "DEFAULT_NAMESRV_METRICS_PORT", port)
        (reason,) = warnings_of(MetricsConfig(namesrv_port=port))
    assert f"port {port}" in reason


def test_a_broker_that_was_given_the_default_port_of_the_name_server_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(name_server, "DEFAULT_NAMESRV_METRICS_PORT", port)
    (reason,) = warnings_of(MetricsConfig(port=port, namesrv_port=port))
    assert reason == f"metrics.port is also {port}"


def test_port_0_means_no_metrics() -> None:
    assert warnings_of(MetricsConfig(namesrv_port=0)) == []


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.namesrv_port must be 0–65535, not 65536"):
        load_config(settings=["metrics.namesrv_port=65536"], environment={})
