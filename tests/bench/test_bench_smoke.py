"""Short runs of every benchmark: they work and report figures. The values do not matter here."""

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latermq.cli.bench.process_usage import cpu_s, listener_pid, memory
from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA
from latermq.protocol.remoting.frames import FrameReader
from tests.bench.__main__ import GRPC, NEEDED_TOOLS, PAIRED, TIMERS, arguments, main, needed_tools
from tests.bench.access_load import ACCESS
from tests.bench.attacks import ATTACKS, measure_attacks
from tests.bench.contenders import APACHE, APACHE_FINE, LATERMQ, LATERMQ_ROCKSDB, LATERMQ_USERS
from tests.bench.far_bytes import measure_far_bytes
from tests.bench.http_console import measure_http
from tests.bench.load import Load
from tests.bench.path import PULL_BATCH, QUEUES, TOPIC, SocketlessBroker, measure_path
from tests.bench.pop_state import POP_SIZES, measure_pop_state
from tests.bench.proxies import APACHE_CLUSTER, APACHE_LOCAL
from tests.bench.proxy_path import measure_proxy_path
from tests.bench.report import markdown, medians
from tests.bench.roll import measure_roll
from tests.bench.scenarios import Row, SideBySide
from tests.bench.sizes import Sizes
from tests.support.needs import need_tool
from tests.support.serving import Server, serving

TINY = Sizes(messages=300, repeats=2, warm=300, stored=500, sync_threads=2, rate=3_000.0)
# Functions that decode a record, by their names in modules.
RECORD_DECODERS = {
    "body_crc32", "check_record", "decode_properties", "decode_record", "decode_records", "find_property", "layout",
    "decompress_message", "record_properties", "record_property",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data"), "--no-http", "--no-grpc", "--no-pipeline") as running:
        yield running


def bench(server: Server, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "latermq", "bench", *options, "--namesrv", server.namesrv, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.parametrize("options", [("--in-flight", "50"), ("--sync", "--concurrency", "4"), ("--rate", "2000")])
def test_bench_send_reports_rate_latency_and_cpu(server: Server, options: tuple[str, ...]) -> None:
    figures = bench(server, "send", "--topic", "smoke", "--count", "300", *options)
    assert figures["messages"] == 300
    assert figures["mode"] == ("sync" if "--sync" in options else "async")
    assert figures["latency_p50_ms"] <= figures["latency_p99_ms"] <= figures["latency_max_ms"]
    assert figures["client_cpu_us_per_message"] > 0
    assert figures["broker_pid"] == server.broker_pid()
    assert figures["broker_cpu_us_per_message"] is not None


def test_bench_consume_reads_the_topic_to_its_end(server: Server) -> None:
    bench(server, "send", "--topic", "drained", "--count", "299")
    figures = bench(server, "consume", "--topic", "drained")
    # Including the message that created the topic.
    assert figures["messages"] == 300
    assert bench(server, "consume", "--topic", "drained", "--count", "32")["messages"] < 300


def test_bench_measures_the_given_broker(server: Server) -> None:
    figures = bench(server, "send", "--count", "10", "--broker-pid", str(server.namesrv_pid()))
    assert figures["broker_pid"] == server.namesrv_pid()


def test_a_process_is_found_by_its_port_and_measured(server: Server) -> None:
    pid = listener_pid(server.port)
    assert pid == server.broker_pid()
    assert (cpu_s(pid) or 0) > 0
    held = memory(pid)
    assert held is not None
    assert 0 < held.anonymous_bytes < held.resident_bytes


def test_a_missing_process_has_no_figures() -> None:
    missing_pid = 2**22 + 1  # above the highest pid of Linux
    assert cpu_s(missing_pid) is None
    assert memory(missing_pid) is None
    assert listener_pid(1) is None


def run_bench(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> dict[str, Any]:
    """Run the command on LaterMQ alone. Return its JSON output."""
    for tool in NEEDED_TOOLS:
        need_tool(tool, "the load generator is Apache's Java client")
    # The handler for SIGTERM belongs to the command, not to the test session.
    monkeypatch.setattr("signal.signal", lambda *_: None)
    file = folder / "out.json"
    sizes = ("--repeats", "1", "--warm", "300", "--stored", "500", "--rate", "3000", "--burst", "300")
    assert main([*options, *sizes, "--only", "latermq", "--folder", str(folder), "--json", str(file)]) == 0
    assert not list(folder.glob("latermq-bench-*"))
    document: dict[str, Any] = json.loads(file.read_text())
    assert all(run["figures"].get("failed sends", 0) == 0 for run in document["runs"])
    return document


def test_every_scenario_measures_latermq_with_the_java_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = ("--delayed", "200", "--level", "1")
    document = run_bench(monkeypatch, tmp_path, *PAIRED, "path", "--messages", "300", *delays)
    table = capsys.readouterr().out
    assert set(document["medians"]) == {*PAIRED, "path"}
    assert len(document["runs"]) == len(PAIRED) + 1
    assert document["medians"]["send-async"]["messages/s"][LATERMQ] > 0
    for scenario in ("levels", "levels-paced", "levels-burst"):
        results = document["medians"][scenario]
        assert results["delivered"][LATERMQ] == (300 if scenario == "levels-burst" else 200)
        assert (
            results["stored early"][LATERMQ]
            == results["never stored"][LATERMQ]
            == results["stored twice"][LATERMQ]
            == 0
        )
        assert results["lateness p50 (ms)"][LATERMQ] <= results["lateness max (ms)"][LATERMQ]
    assert document["medians"]["levels-burst"]["due within (ms)"][LATERMQ] < 2_000
    assert document["medians"]["restart"]["messages stored"][LATERMQ] >= 500
    assert "python -m tests.bench" in table
    assert "| restart" in table


def test_every_timer_scenario_measures_both_engines_with_the_java_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ("--timers", "200", "--spread", "1", "--pending", "400", "--sample", "100", "--growth", "500")
    results = run_bench(monkeypatch, tmp_path, *TIMERS, *sizes, "--calm", "0.5")["medians"]
    assert set(results) == {*TIMERS, "timers-pending 400"} - {"timers-pending"}
    counts = {"timers-spread": 200, "timers-burst": 300, "timers-pending 400": 100, "timers-grow": 200}
    for engine in (LATERMQ, LATERMQ_ROCKSDB):
        for scenario, count in counts.items():
            figures = {figure: values[engine] for figure, values in results[scenario].items()}
            assert figures["delivered"] + figures["sent too late"] == count
            assert figures["stored early"] == figures["never stored"] == figures["stored twice"] == 0
        assert results["timers-burst"]["due within (ms)"][engine] < 1_000
        assert results["timers-pending 400"]["pending"][engine] == 400
        assert results["timers-restart"]["pending"][engine] >= 550
        assert (
            results["timers-restart"]["never stored"][engine] == results["timers-restart"]["stored twice"][engine] == 0
        )
        assert results["timers-restart"]["until a send is accepted (s)"][engine] > 0


def test_the_cost_of_users_and_tls_is_measured_with_the_java_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = run_bench(monkeypatch, tmp_path, *ACCESS, "--messages", "300")["medians"]
    assert set(results) == set(ACCESS)
    for scenario, figures in results.items():
        rate = figures["connections/s" if "connect" in scenario else "messages/s"]
        assert set(rate) == {LATERMQ, LATERMQ_USERS}
        assert min(rate.values()) > 0


@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_timers_forty_days_ahead_are_renewed_and_delivered(tmp_path: Path, engine: str) -> None:
    figures = measure_roll(tmp_path, engine, 10, 200)
    assert figures["delivered"] == 10
    assert 20 <= figures["rolls (per timer)"] <= 27  # windows of 36 to 48 hours
    assert figures["commit log (bytes/timer)"] > figures["of it when it was scheduled (bytes/timer)"] * 20
    assert figures["engine (bytes/timer)"] > 20 * 29


def test_the_bytes_of_a_far_timer_are_told_by_stage_and_part(tmp_path: Path) -> None:
    stages = dict(measure_far_bytes(tmp_path, 2_000, 200))
    waiting, delivered = stages["scheduled"], stages["delivered"]
    assert waiting["log: body"] == delivered["log: body"] == 200
    # The name of the topic is in the record of the timer too, as a property, next to that of the timer topic.
    assert waiting["log: topic"] - delivered["log: topic"] == len("rmq_sys_wheel_timer") - len("bench-far")
    for stage in ("appended to the timeline", "compacted", "in a window"):
        assert 200 < stages[stage]["column record"] < 300  # bodies are random, so they do not compress
    assert set(stages["compacted"]) == {*(f"column {name}" for name in FILE_SCHEMA.names), "footer and page index"}
    assert stages["its name, and its deletion"]["RocksDB"] > 16


def test_messages_in_flight_are_popped_and_acknowledged_at_a_cost_that_is_reported(tmp_path: Path) -> None:
    figures = measure_pop_state(tmp_path, 1_024)
    for size in POP_SIZES:
        own = {name.partition(": ")[2]: value for name, value in figures.items() if name.startswith(f"pops of {size}:")}
        assert own.pop("acknowledged") == 1_024
        assert all(value > 0 for value in own.values())
    assert figures["pops of 32: journal, pop (bytes/message)"] < figures["pops of 1: journal, pop (bytes/message)"]


def test_the_first_contender_alternates() -> None:
    class FakeContender:
        stored = 0
        namesrv = ""
        broker_pid = os.getpid()
        broker_address = ""
        log_folder = Path()

        def __init__(self, name: str) -> None:
            self.name = name

        def kill(self) -> None: ...

        def restart(self) -> float:
            return 0.0

    class FakeLoad(Load):
        def __init__(self) -> None:
            pass

        def fill(self, *_: object) -> None: ...

        def make_topic(self, *_: object) -> None: ...

    rows = SideBySide([FakeContender("a"), FakeContender("b")], FakeLoad(), TINY).scenarios["restart"]()
    assert [row.contender for row in rows] == ["a", "b", "b", "a"]


def test_the_report_compares_medians() -> None:
    measured = {LATERMQ: (30.0, 10.0, 20.0), APACHE: (8.0, 9.0, 10.0)}
    rows = [
        Row("send-async", name, repeat, {"messages/s": value})
        for name, values in measured.items()
        for repeat, value in enumerate(values)
    ]
    assert medians(rows)["send-async"]["messages/s"] == {LATERMQ: 20.0, APACHE: 9.0}
    line = next(line for line in markdown(rows, "bench").splitlines() if line.startswith("| send-async"))
    assert [cell.strip() for cell in line.split("|")[3:6]] == ["20 (10–30)", "9 (8–10)", "2.22"]


def test_scenarios_with_more_contenders_have_their_own_table() -> None:
    late = {LATERMQ: 2.0, LATERMQ_ROCKSDB: 3.0, APACHE: 500.0, APACHE_FINE: 50.0}
    rows = [Row("timers-spread", name, 0, {"lateness p50 (ms)": value}) for name, value in late.items()]
    rows += [Row("send-async", name, 0, {"messages/s": 5.0}) for name in (LATERMQ, APACHE)]
    lines = [line for line in markdown(rows, "bench").splitlines() if line.startswith("| ")]
    assert [len(line.split("|")) - 2 for line in lines] == [5, 5, 5, 8, 8, 8]
    assert [cell.strip() for cell in lines[-1].split("|")[3:9]] == ["2", "3", "500", "50", "0.00", "0.04"]


def test_proxies_have_their_own_table_with_a_ratio_to_each_mode() -> None:
    cpu = {LATERMQ: 30.0, APACHE_LOCAL: 60.0, APACHE_CLUSTER: 90.0}
    rows = [Row("grpc-send", name, 0, {"proxy + broker CPU (µs/message)": value}) for name, value in cpu.items()]
    rows += [Row("send-async", name, 0, {"messages/s": 5.0}) for name in (LATERMQ, APACHE)]
    rows.append(Row("pop-pull", APACHE_CLUSTER, 0, {"pull: messages/s": 5.0}))
    lines = [line for line in markdown(rows, "bench").splitlines() if line.startswith("| ")]
    assert [len(line.split("|")) - 2 for line in lines] == [5, 5, 5, 7, 7, 7, 7]
    assert [cell.strip() for cell in lines[-2].split("|")[3:8]] == ["30", "60", "90", "0.50", "0.33"]
    assert [cell.strip() for cell in lines[-1].split("|")[3:8]] == ["", "", "5", "", ""]


@pytest.mark.parametrize(
    ("argv", "tools"),
    [
        (("path", "proxy-path"), ()),
        (("send-async",), NEEDED_TOOLS),
        (("grpc-send", "--only", "latermq"), ("go",)),
        (("grpc-java", "--only", "latermq"), (*NEEDED_TOOLS, "go")),
        (("pop-pull",), (*NEEDED_TOOLS, "go")),
    ],
)
def test_only_the_tools_of_the_wanted_scenarios_are_needed(argv: tuple[str, ...], tools: tuple[str, ...]) -> None:
    assert needed_tools(arguments(argv)) == tools


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["send-telepathic"])
    assert "unknown scenario send-telepathic" in capsys.readouterr().err


def test_the_path_without_sockets_is_measured_in_stages(tmp_path: Path) -> None:
    figures = measure_path(tmp_path, 500, 200)
    assert {"send, whole (µs/message)", "key index (µs/message)", "pull (µs/message)"} <= set(figures)
    assert "batch of 10,000 timers (ms)" in figures
    assert all(value > 0 for value in figures.values())


def test_the_path_of_the_proxy_is_measured_without_sockets(tmp_path: Path) -> None:
    figures = measure_proxy_path(tmp_path, 320, 200)
    assert set(figures) == {
        f"{call}, {part} (µs/message)" for call in ("send", "receive", "ack") for part in ("proxy", "broker")
    }
    assert all(value > 0 for value in figures.values())


def test_a_pull_of_32_messages_decodes_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SocketlessBroker(tmp_path, 200)
    try:
        path.connection.data_received(path.send_frames(PULL_BATCH * QUEUES))
        path.subscribe()
        queue = path.broker.store.queues.find(TOPIC, 3)
        assert queue is not None
        stored = b"".join(path.broker.store.reader.fetch(queue, 0, max_count=PULL_BATCH, max_bytes=1 << 20).pieces)
        with monkeypatch.context() as poisoned:
            poison_decoders(poisoned)
            path.connection.data_received(path.pull_frame(3, 0))
    finally:
        path.close()
    (reply,) = FrameReader().feed(path.transport.last)
    assert reply.code == 0
    assert reply.body == stored
    assert reply.body.count(b"x" * 200) == PULL_BATCH


def poison_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(*_: object, **__: object) -> None:
        raise AssertionError("a record was decoded")

    found = set()
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("latermq."):
            for name in RECORD_DECODERS & set(vars(module)):
                monkeypatch.setattr(module, name, poison)
                found.add(name)
    assert {"decode_record", "layout", "decode_properties", "find_property"} <= found
    for name in ("crc32", "decompress", "decompressobj"):
        monkeypatch.setattr(zlib, name, poison)


def test_bulk_changes_are_measured_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the handler belongs to the command
    file = tmp_path / "out.json"
    options = ("--bulk", "400", "--repeats", "1", "--folder", str(tmp_path), "--json", str(file))
    assert main(["bulk-cancel", "bulk-schedule", *options]) == 0
    results = json.loads(file.read_text())["medians"]
    assert {"bulk-cancel", "bulk-move", "bulk-schedule"} <= set(results)
    assert results["bulk-cancel"]["names/s"][LATERMQ] > 0
    assert {"rows/s", "known rows/s", "rows, broker CPU (µs)"} <= set(results["bulk-schedule"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pipeline_is_measured_with_a_real_spark(tmp_path: Path) -> None:
    """In a separate process, because the benchmark ends its Spark, which other tests may share."""
    for tool in NEEDED_TOOLS:
        need_tool(tool, "Spark and the load generator require it")
    file = tmp_path / "out.json"
    sizes = ("--far-warm", "1000", "--far-part", "2000", "--far-parts", "2", "--far-near", "500")
    near = ("--timers", "200", "--spread", "1", "--calm", "0.5")
    options = ("--repeats", "1", "--folder", str(tmp_path), "--json", str(file))
    command = [sys.executable, "-m", "tests.bench", "pipeline", "pipeline-near", *sizes, *near, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    results = json.loads(file.read_text())["medians"]
    assert {"pipeline-schedule", "pipeline-ingest", "pipeline-bytes"} <= set(results)
    assert {"pipeline-build 200 of 2,000", "pipeline-build 200 of 4,000", "pipeline-build 2,000 of 4,000"} <= set(
        results
    )
    # The records are 200 random bytes and what RocketMQ puts around them. Those that wait have some more properties.
    of_timer = {name: values[LATERMQ] for name, values in results["pipeline-bytes"].items()}
    assert 200 < of_timer["delivered record in the log (bytes/timer)"] < of_timer["record in the log (bytes/timer)"]
    assert of_timer["timeline, compaction included (bytes/timer)"] > 2 * of_timer["window (bytes/timer)"] > 400
    assert of_timer["names in RocksDB (bytes/timer)"] > 0
    assert of_timer["all (bytes/timer)"] == pytest.approx(sum(of_timer.values()) / 2)
    assert results["pipeline-near, ingest and build"]["never stored"][LATERMQ] == 0
    assert "ingested meanwhile" in results["pipeline-near, ingest and build"]


def run_over_timeline(scenario: str, folder: Path) -> dict[str, float]:
    """Run a scenario over a small timeline in a process, because it ends its Spark. Return its figures."""
    need_tool("java", "Spark requires it")
    file = folder / "out.json"
    options = ("--timeline-rows", "5000", "--folder", str(folder), "--json", str(file))
    command = [sys.executable, "-m", "tests.bench", scenario, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    medians = json.loads(file.read_text())["medians"][f"{scenario} 5,000"]
    return {name: values[LATERMQ] for name, values in medians.items()}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_timeline_is_measured_without_a_broker(tmp_path: Path) -> None:
    figures = run_over_timeline("timeline", tmp_path)
    assert figures["bytes per row"] > 200  # the records are random, so they do not compress
    # Of the large window of 500 timers, 25 were cancelled and 25 moved to another day.
    assert figures["rows of window 2"] == 450
    stages = (
        "roll of 500 without Spark",
        "roll of 500 on Spark",
        "sql over an hour",
        "count per day",
        "first compaction",
    )
    assert all(figures[f"{stage} (s)"] > 0 for stage in stages)
    assert figures["the same after 30 days of commits (s)"] > 0


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_pipeline_sql_is_measured_with_the_command_and_a_real_driver(tmp_path: Path) -> None:
    figures = run_over_timeline("pipeline-sql", tmp_path)
    steps = (
        "start until the driver is ready",
        "a day, cold",
        "a day, warm",
        "all timers, warm",
        "count per day",
        "a day, without a driver",
    )
    assert all(figures[f"{step} (s)"] > 0 for step in steps)
    # The command itself loads no part of Spark: that alone takes more than a second.
    assert (
        figures["a day, warm, CPU of the command (s)"] < figures["a day, without a driver, CPU of the command (s)"] / 3
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_console_is_measured_over_a_timeline(tmp_path: Path) -> None:
    figures = run_over_timeline("http-far", tmp_path)
    lists = (
        "first page",
        "page in the middle",
        "next page of that topic",
        "page by key in the middle",
        "page behind all rows",
        "page of a topic behind all rows",
        "page by key",
    )
    assert all(figures[f"{name} (ms)"] > 0 for name in lists)
    assert figures["peak memory of the console (MiB)"] < 150


GRPC_SIZES = (
    "--grpc-warm", "1", "--grpc-seconds", "1", "--grpc-messages", "1000", "--grpc-delayed", "200", "--grpc-spread", "1",
    "--grpc-ahead", "2", "--grpc-invisible", "10", "--grpc-later", "1", "--waiting", "100", "--repeats", "1",
)  # fmt: skip


def run_grpc_bench(folder: Path, *options: str) -> dict[str, Any]:
    """Run the command in a process. Return its medians."""
    need_tool("go", "it builds the load generator")
    file = folder / "out.json"
    command = [sys.executable, "-m", "tests.bench", *options, *GRPC_SIZES, "--folder", str(folder), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    results: dict[str, Any] = json.loads(file.read_text())["medians"]
    return results


def check_grpc_figures(results: dict[str, Any], contender: str) -> None:
    figures = {
        scenario: {figure: values[contender] for figure, values in by_figure.items() if contender in values}
        for scenario, by_figure in results.items()
    }
    assert figures["grpc-waiting"]["waiting"] == 100
    assert figures["grpc-send"]["messages/s"] > 0
    assert figures["grpc-send"]["proxy + broker CPU (µs/message)"] > 0
    assert figures["grpc-receive"]["messages per call"] > 1
    assert figures["grpc-delay"]["received early"] == 0
    for scenario in ("grpc-receive", "grpc-delay"):
        assert figures[scenario]["not received"] == figures[scenario]["failed calls"] == 0
    assert figures["grpc-delay"]["lateness p50 (ms)"] <= figures["grpc-delay"]["lateness max (ms)"]
    if contender != APACHE_LOCAL:
        assert figures["pop-pull"]["pop, one ack per pop: CPU, pull = 1"] > 0
        assert not any(value for name, value in figures["pop-pull"].items() if name.endswith("failed calls"))


def test_every_grpc_scenario_measures_latermq_with_the_go_client(tmp_path: Path) -> None:
    names = [name for name in GRPC if name != "grpc-java"]
    results = run_grpc_bench(tmp_path, *names, "--only", "latermq")
    assert set(results) == set(names)
    check_grpc_figures(results, LATERMQ)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_grpc_scenario_measures_the_proxies_of_apache_with_both_clients(tmp_path: Path) -> None:
    for tool in NEEDED_TOOLS:
        need_tool(tool, "Apache's proxy and the official client require it")
    results = run_grpc_bench(tmp_path, *GRPC, "--only", "apache")
    assert set(results) == {*GRPC, "grpc-java, send", "grpc-java, receive"} - {"grpc-java"}
    for contender in (APACHE_LOCAL, APACHE_CLUSTER):
        check_grpc_figures(results, contender)


def test_attacks_report_the_slowest_requests_of_another_client(tmp_path: Path) -> None:
    names = ("many cheap requests in one read", "routes")
    results = dict(measure_attacks(tmp_path, 0.3, names))
    assert tuple(results) == names
    for figures in results.values():
        assert {"send, slowest (ms)", "pull, p99 (ms)", "route, slowest (ms)"} <= set(figures)
        assert min(figures.values()) > 0


def test_the_console_is_measured_with_requests_batches_pages_and_viewers(tmp_path: Path) -> None:
    sizes = Sizes(http_requests=40, http_timers=200, viewers=3, watch_s=1.0)
    figures = measure_http(tmp_path / "data", sizes)
    assert all(value > 0 for name, value in figures.items() if "CPU" not in name), figures
    assert {"schedule one (requests/s)", "batch (timers/s)", "first page (ms)", "memory with viewers (MiB)"} <= set(
        figures
    )


def test_every_attack_sends_complete_frames() -> None:
    for attack in ATTACKS:
        reader = FrameReader()
        assert len(reader.feed(attack.bytes_of())) > 0 or not attack.connections
        assert (reader.held_bytes, reader.broken) == (0, None)
